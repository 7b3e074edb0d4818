"""Two ablations side by side, or one ablation in two stores: does the second say what the first said?"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from analysis import claims, html, look, page, plots, sections
from analysis.load import Absent, Stored, load
from analysis.page import Block, Fold, Heading, Picture, Strong, Table, text
from analysis.question import of_the_crossing
from analysis.words import ends, interval, number, p_value


class Side(NamedTuple):
    """One of the two: label for tables, its runs and its verdicts."""

    label: str
    question: claims.Question
    stored: Stored
    verdicts: claims.Verdicts


def side(results: Path, named: str) -> Side:
    """A side from a name, or from the path of an ablation's folder in another results folder."""
    folder = _folder(results, named)
    question = claims.read_question(folder.parent, folder.name)
    stored, _ = of_the_crossing(load(folder.parent, folder.name), question)
    label = folder.name if folder.parent == Path(results).resolve() else f"{folder.parent.name}/{folder.name}"
    return Side(label, question, stored, claims.verdicts(stored, question))


def _folder(results: Path, named: str) -> Path:
    return (Path(named) if "/" in named else Path(results) / named).resolve()


def report(results: Path, a: str, b: str) -> str:
    """Write results/compare/A-B.md, .html and figures -> the paths and one line per claim that both judge."""
    results = Path(results)
    if _folder(results, a) == _folder(results, b):
        raise Absent(f"{a} and {b} are the same ablation in the same folder; there is nothing to compare.")
    x, y = side(results, a), side(results, b)
    if x.label == y.label:
        x, y = x._replace(label=f"{x.label} (A)"), y._replace(label=f"{y.label} (B)")
    folder = results / "compare"
    folder.mkdir(parents=True, exist_ok=True)
    stem = "-".join("".join(c if c.isalnum() or c in "_." else "_" for c in each.label) for each in (x, y))
    table = claims_of_both(x, y)
    figures = _figures(x, y, folder, stem)
    blocks = blocks_of(x, y, table, figures)
    (folder / f"{stem}.md").write_text(page.markdown(blocks) + "\n", encoding="utf-8")
    (folder / f"{stem}.html").write_text(html.page(f"{x.label} and {y.label}", blocks, folder), encoding="utf-8")
    lines = [f"{row.says}: {row.verdict_x}, {row.verdict_y}; {row.agree}" for row in table.itertuples()]
    return "\n".join([*lines, str(folder / f"{stem}.md"), str(folder / f"{stem}.html")])


def claims_of_both(x: Side, y: Side) -> pd.DataFrame:
    """The claims that both state alike (metric, window, arms, where, expectation), each with both verdicts and the
    difference between the two effects.

    Columns says, metric, verdict_x, verdict_y, and for each side difference, low, high, n; then apart, apart_low,
    apart_high, p of the difference of the effects (Welch on the paired differences of each side) and agree: `agree`,
    `differ` where p < .05, else `not enough` where a side has fewer than two pairs.
    """
    keys = ["metric", "first_step", "last_step", "x", "y", "where", "at", "expect"]
    if not (len(x.verdicts.table) and len(y.verdicts.table)):
        return pd.DataFrame(columns=["says", "verdict_x", "verdict_y", "agree"])
    both = x.verdicts.table.merge(y.verdicts.table, on=keys, suffixes=("_x_", "_y_"))
    rows = []
    for row in both.to_dict("records"):
        pairs = [
            s.verdicts.pairs.difference[s.verdicts.pairs.claim.eq(row[f"claim_{mark}_"])].to_numpy(dtype=float)
            for s, mark in ((x, "x"), (y, "y"))
        ]
        apart, low, high, p = welch(*pairs)
        verdict = "not enough pairs" if math.isnan(p) else "the effects differ" if p < 0.05 else "the effects agree"
        rows.append(
            {"says": row["says_x_"], "metric": row["metric"], "apart": apart, "apart_low": low, "apart_high": high}
            | {f"verdict_{mark}": row[f"verdict_{mark}_"] for mark in "xy"}
            | {f"{key}_{mark}": row[f"{key}_{mark}_"] for key in ("difference", "low", "high", "n") for mark in "xy"}
            | {"p": p, "agree": verdict}
        )
    return pd.DataFrame(rows, columns=None if rows else ["says", "verdict_x", "verdict_y", "agree"])


def welch(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    """Difference of two means with its 95 % interval and p, unequal spreads allowed; NaN below two values a side, and
    where nothing varies unless the means agree."""
    apart = float(x.mean() - y.mean()) if len(x) and len(y) else math.nan
    if min(len(x), len(y)) < 2:
        return apart, math.nan, math.nan, math.nan
    if x.max() == x.min() and y.max() == y.min():
        return apart, apart, apart, 1.0 if apart == 0 else 0.0
    found = scipy_stats.ttest_ind(x, y, equal_var=False)
    ends_ = found.confidence_interval(0.95)
    return apart, float(ends_.low), float(ends_.high), float(found.pvalue)


def _figures(x: Side, y: Side, folder: Path, stem: str) -> list[tuple[str, str]]:
    """The first shared metrics by arm, a row of panels for each side."""
    shared = [m for m in x.stored.rows.metric.cat.categories if m in set(y.stored.rows.metric.cat.categories)]
    first = [c.metric for s in (x, y) for c in s.question.claims[:1]]
    wanted = [m for m in dict.fromkeys([*first, "accuracy/heldout", "reward/mean", "length/mean"]) if m in shared][:3]
    if not wanted:
        return []
    rows, runs = both_sides(x, y)
    arms = list(dict.fromkeys(runs.arm.astype(object)))
    figure = plots.small_multiples(rows, wanted, "arm", runs, by=["side"], styles=look.arm_styles(arms))
    look.save(figure, folder / "figures", stem)
    caption = (
        "The same metrics in both, by arm: mean over runs with its 95 % t band, single runs thin. The same arm has the "
        "same colour."
    )
    return [(caption, f"figures/{stem}.png")]


def both_sides(x: Side, y: Side) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and runs of both in one frame, with a column `side`; runs get their side's name in front, so that the same
    run in two stores stays two."""
    frames = []
    for kind in ("rows", "runs"):
        parts = []
        for s in (x, y):
            part = getattr(s.stored, kind)
            part = part.assign(**{c: part[c].astype(object) for c in part.select_dtypes("category")}, side=s.label)
            parts.append(part.assign(run=s.label + ": " + part.run.astype(str)))
        whole = pd.concat(parts, ignore_index=True)
        whole["side"] = pd.Categorical(whole.side, categories=[x.label, y.label], ordered=True)
        frames.append(whole)
    rows, runs = frames
    rows["metric"] = rows.metric.astype("category")
    return rows, runs


def blocks_of(x: Side, y: Side, table: pd.DataFrame, figures: list[tuple[str, str]]) -> list[Block]:
    names = [s.label for s in (x, y)]
    ran = "; ".join(f"{s.label}: {sections.completeness(s.question, s.stored)}" for s in (x, y))
    blocks: list[Block] = [Heading(f"{names[0]} and {names[1]}", 1), text(f"{ran}.")]
    if len(table):
        agree, judged = (table.agree == "the effects agree").sum(), table.p.notna().sum()
        blocks += [
            text(
                Strong(f"{agree} of {judged} claims that both can judge have effects that agree"),
                " within the noise of both (Welch p at or above .05, not corrected for the number of claims). That is "
                "no proof of equality where the interval of the difference is wide.",
                lead=True,
            ),
            _claims_table(names, table),
        ]
    else:
        blocks.append(text("The two state no claim alike, so there are no verdicts to compare."))
    blocks += [Picture(file, caption) for caption, file in figures]
    blocks += [Heading("What differs between the two"), *_differences(x, y)]
    for s in (x, y):
        rows = s.verdicts.table.to_dict("records")
        lines = [[r["claim"], r["says"], r["verdict"], interval(r), r["n"], p_value(r["p_holm"])] for r in rows]
        head = ["", "claim", "verdict", "difference [95 % interval]", "n", "p (Holm)"]
        blocks.append(Fold(f"All {len(rows)} claims of {s.label}", [Table(head, lines, main=1)]))
    return blocks


def _claims_table(names: list[str], table: pd.DataFrame) -> Table:
    head = ["claim", "metric", *names, f"{names[0]} − {names[1]}", "p", ""]
    lines = []
    for row in table.to_dict("records"):
        of_sides = [
            f"{row[f'verdict_{m}']}: "
            + interval({key: row[f"{key}_{m}"] for key in ("difference", "low", "high", "n")})
            + f", n = {row[f'n_{m}']}"
            for m in "xy"
        ]
        apart = f"{number(row['apart'], sign=True)} {ends(row['apart_low'], row['apart_high'])}".replace("– –", "–")
        lines.append([row["says"], row["metric"], *of_sides, apart, p_value(row["p"]), row["agree"]])
    return Table(head, lines)


def _differences(x: Side, y: Side) -> list[Block]:
    """Arms, seeds, bases and commits that one has and the other has not."""
    lines = []
    for what in ("arm", "seed", "base", "commit"):
        mine, theirs = (dict.fromkeys(map(str, s.stored.runs[what].astype(object))) for s in (x, y))
        only, other = [v for v in mine if v not in theirs], [v for v in theirs if v not in mine]
        if only or other:
            lines.append([what, ", ".join(only) or "–", ", ".join(other) or "–"])
    if not lines:
        return [text("Nothing in arms, seeds, bases and commits.")]
    return [Table(["", f"only in {x.label}", f"only in {y.label}"], lines)]

