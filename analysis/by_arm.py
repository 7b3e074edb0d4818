"""The sections of a report that set its arms side by side."""

import pandas as pd

from analysis import look
from analysis.arms import Arms
from analysis.claims import FEWEST_SEEDS
from analysis.page import Block, Fold, Heading, Table, text
from analysis.words import interval, number, p_value, whole


def arms(given: Arms | None) -> list[Block]:
    if given is None:
        return []
    name, unit = look.name_of(given.metric)
    head = ["arm", "base", "n", "mean", "95 % interval", "interquartile mean", "area under the course"]
    head += [f"steps to {number(given.level)}", "reached"]
    if given.reference:
        head.append(f"P(above {given.reference})")
    if given.placebo:
        head.append(f"gain over {given.placebo}")
    lines = []
    for row in given.table.to_dict("records"):
        within = f" [{number(row['iqm_low'])}, {number(row['iqm_high'])}]" if row["iqm_low"] == row["iqm_low"] else ""
        n = f"{row['n']} (without {row['without']})" if row["without"] else row["n"]
        line = [row["arm"], row["base"], n, number(row["mean"])]
        line += [_between(row["low"], row["high"]), f"{number(row['iqm'])}{within}"]
        line += [number(row["area"]) + (f" (without {row['area_without']})" if row["area_without"] else "")]
        line += [f"{whole(row['median'])}", f"{row['reached']} of {row['waited']}"]
        if given.reference:
            within = f"[{number(row['better_low'], 2)}, {number(row['better_high'], 2)}]"
            within = "(no interval)" if row["better_reason"] else within
            line.append(f"{number(row['better'], 2)} {within}" if row["better_n"] else "–")
        if given.placebo:
            line.append(interval({**row, "difference": row["gain"], "low": row["gain_low"], "high": row["gain_high"]}
                                 | {"n": row["gain_n"]}))
        lines.append(line)
    about = (
        f"{look.begin(name)}{f' ({unit})' if unit else ''} of the complete runs at step {given.last}. The area is the "
        f"mean height of the course. {number(given.level)} lies half of the largest rise of any arm above the base "
        "policies; the steps to it are medians in which runs that never got there, or stopped, count as not having "
        "arrived (∞: fewer than half did)."
    )
    if given.reference:
        about += f" P(above {given.reference}) is the chance that a run of this arm ends above one of that arm."
        reasons = dict.fromkeys(reason for reason in given.table.better_reason if reason)
        about += f" Where it has no interval, {'; '.join(reasons)}." if reasons else ""
    return [Heading("Arms side by side"), text(about), Table(head, lines)]


def passes(gains: pd.DataFrame, changes: pd.DataFrame) -> list[Block]:
    """pass@k before and after, and the problems that were gained and lost."""
    if not len(gains):
        return []
    head = ["arm", "base", "k", "before", "after", "gain [95 % interval]", "n"]
    lines = [
        [r.arm, r.base, r.k, number(r.before), number(r.after), interval({"difference": r.gain, **r._asdict()}), r.n]
        for r in gains.itertuples()
    ]
    kinds = ["gained", "lost", "solved", "unsolved", "undecided"]
    tally = changes.groupby(["arm", "base", "runs"], observed=True, sort=False).change.value_counts()
    tally = tally.unstack(fill_value=0).reindex(columns=kinds, fill_value=0).reset_index().astype(object)
    untested = tally.runs.gt(1) & tally.runs.lt(FEWEST_SEEDS)
    tally.loc[untested, ["gained", "lost"]] = "–"
    moved = changes[changes.change.isin(["gained", "lost"])]
    each = [
        [r.arm, r.base, r.problem, r.change, f"{r.correct_before} of {r.samples_before}", f"{r.correct} of {r.samples}"]
        + [p_value(r.p)]
        for r in moved.itertuples()
    ]
    columns = ["arm", "base", "problem", "change", "right before", "right after", "p"]
    how = (
        "Problems, answers of all runs together: gained and lost where the share of right answers changed at a false "
        "discovery rate of 5 %; solved, more often right than not before and after; unsolved, never right. "
    )
    if tally.runs.ge(FEWEST_SEEDS).any():
        how += (
            "Neither the draw of the answers nor that of the runs may explain a change: p is the largest of Fisher's "
            "over all answers, Fisher's with each run counted as one answer, and the paired t test over the runs. "
        )
    if untested.any():
        how += f"Fewer than {FEWEST_SEEDS} runs are not tested (–): too few to tell the arm from the luck of its runs. "
    if tally.runs.eq(1).any():
        how += "With one run p is Fisher's over its answers: what is gained and lost is so for that one policy. "
    return [
        Heading("pass@k, and the problems gained and lost"),
        text(
            "The chance that one of k answers is right, unbiased, over the same held-out problems for all runs. A "
            "run's gain is over its own evaluation of the base policy, so the interval holds the base's error too."
        ),
        Table(head, lines),
        text(how.strip()),
        Table(["arm", "base", "n", *kinds], tally.values.tolist()),
        *([Fold(f"{len(each)} problems gained or lost", [Table(columns, each, main=2)])] if each else []),
    ]


def _between(low: float, high: float) -> str:
    return "–" if low != low else f"[{number(low)}, {number(high)}]"


def same_arm(table: pd.DataFrame) -> list[Block]:
    if not len(table):
        return []
    head = ["metric", "steps", "arm", "n", "halves apart: half of the splits above", "one in twenty above"]
    lines = [
        [r.metric, r.window, r.arm, r.n, number(r.apart), number(r.far), f"{100 * r.significant:.1f} %"]
        for r in table.itertuples()
    ]
    share = table.significant.mean()
    return [
        Heading("The same arm against itself"),
        text(
            "Each arm's seeds split into two halves at random, many times: what differs there is chance. On average "
            f"{100 * share:.1f} % of the splits have p < .05, where 5 % are to be expected; the distances say what "
            "size of difference between unpaired halves means nothing."
        ),
        Fold(f"{len(lines)} rows", [Table([*head, "p < .05"], lines, main=0)]),
    ]
