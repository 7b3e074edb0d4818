"""What the runs of an ablation say about its claims.

Both arms of a claim were run with the same seeds, so the evidence is one difference per pair: the metric averaged over
the window in one run minus the same in its partner. The run is the unit, not the step or the prompt.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis import cautions, identical, matched, stats
from analysis.load import Absent, Stored, value
from analysis.question import EQUAL_TO, GREATER, IDENTICAL, BadClaim, Claim, Question, claim, read_question

__all__ = ["BadClaim", "Claim", "Question", "Verdicts", "claim", "decide", "pairs", "read_question", "verdicts"]

ALPHA = 0.05
FEWEST_SEEDS = 5  # with fewer, a t interval is too wide to mean much and no sign-flip p can be below .125
FULL = "", "paper", "replication"  # budgets at which every claim must find its arms; others run a part of the crossing
REPRODUCED, EQUAL, REVERSED = "reproduced", "reproduced (equal)", "reversed"
NULL, UNDERPOWERED, NO_VERDICT = "null", "underpowered", "no verdict"
BOTH = "both"  # the base of a pair where the claim compares bases


class Verdicts(NamedTuple):
    """table: one row per claim. pairs: one row per claim and pair, columns claim, seed, base, x, y, difference,
    steps."""

    table: pd.DataFrame
    pairs: pd.DataFrame


def pairs(stored: Stored, claim: Claim) -> pd.DataFrame:
    """The claim's evidence: one row per (seed, base), columns seed, base, x, y, difference, steps, combinations.

    Runs are paired on every swept thing except the compared knobs, and only complete runs are (the others are counted
    by `left_out`). Within a pair both runs are averaged over the steps of the window at which BOTH have a finite
    value: a metric that is undefined at a step (the length of wrong answers when there is none) is then missing on
    both sides. A claim with `at` averages each run over its own steps inside the bands instead. `steps` is the mean
    number of steps used. Where knobs are swept that the claim neither compares nor fixes, their
    pairs are averaged (`combinations` counts them), because runs that share a seed are not independent evidence.
    """
    keys = _pair_keys(stored, claim)
    complete = stored.runs.loc[stored.runs.state.eq("complete"), "run"]
    rows = stored.rows[stored.rows.step.between(*claim.window) & stored.rows.run.isin(complete)]
    rows = rows[_matches(rows, claim.where) & np.isfinite(rows.value)]
    rows = matched.within(rows, claim.metric, claim.at) if claim.at else rows[rows.metric.eq(claim.metric)]
    by_pair = _at_own_steps(rows, claim, keys) if claim.at else _at_common_steps(rows, claim, keys)
    unit = [key for key in ("seed", "base") if key in keys]
    by_unit = (
        by_pair.groupby(unit, observed=True)
        .agg(
            x=("x", "mean"),
            y=("y", "mean"),
            difference=("difference", "mean"),
            steps=("steps", "mean"),
            combinations=("x", "size"),
        )
        .reset_index()
    )
    return by_unit if "base" in unit else by_unit.assign(base=BOTH)


def _pair_keys(stored: Stored, claim: Claim) -> list[str]:
    return [key for key in ("seed", "base", *stored.knobs) if key not in claim.compare]


def pairs_without_values(stored: Stored, claim: Claim, found: pd.DataFrame) -> int:
    """How many pairs of complete runs are not in `found`, because they have no step to be compared at."""
    runs = stored.runs[stored.runs.state.eq("complete") & _matches(stored.runs, claim.where)]
    possible = stats.paired(runs.assign(value=0.0), claim.compare, _pair_keys(stored, claim))
    units = possible[[key for key in ("seed", "base") if key in possible]].drop_duplicates()
    return len(units) - len(found)


def _at_common_steps(rows: pd.DataFrame, claim: Claim, keys: list[str]) -> pd.DataFrame:
    by_step = stats.paired(rows, claim.compare, [*keys, "step"])
    means = {"x": ("x", "mean"), "y": ("y", "mean"), "difference": ("difference", "mean"), "steps": ("step", "size")}
    return by_step.groupby(keys, observed=True).agg(**means).reset_index()


def _at_own_steps(rows: pd.DataFrame, claim: Claim, keys: list[str]) -> pd.DataFrame:
    runs = matched.per_run(rows)
    used = stats.paired(runs.assign(value=runs.used), claim.compare, keys)
    return stats.paired(runs, claim.compare, keys).assign(steps=(used.x + used.y) / 2)


def verdicts(
    stored: Stored, question: Question, *, seed: int = 0, evaluation: Mapping[str, Mapping[str, str]] | None = None
) -> Verdicts:
    """Every claim decided. seed: of the random sign flips, used only where there are too many pairs for all patterns.
    evaluation: hash -> settings of a run's evaluation that are not the same in all (`facts.Facts`); held-out metrics of
    arms that differ in them get no verdict.

    Raises Absent for a metric, knob or arm that is not there, with those that are; at a smaller budget than the full
    one a claim about arms that this budget does not run gets "no verdict" instead.
    """
    rng = np.random.default_rng(seed)
    table, evidence = [], []
    for number, each in enumerate(question.claims, start=1):
        absent = unknown(stored, question, each)
        if absent and question.budget in FULL:
            raise Absent(f"Claim {number} ({each.says}): {absent}")
        try:
            found = pairs(stored, each).assign(claim=number) if not absent else pd.DataFrame({"difference": []})
        except ValueError as error:  # two runs where a pair needs one
            raise BadClaim(f"Claim {number} ({each.says}): {error}") from None
        apart = identical.apart(stored, each) if each.expect == IDENTICAL and not absent else ""
        table.append(
            {
                "claim": number,
                **_described(each),
                **measured(found, each, rng),
                **_counted(stored, each, found, absent),
                "apart": apart,
                "unlike": "" if absent else _unlike(stored, each, evaluation or {}),
            }
        )
        evidence.append(found)
    table = pd.DataFrame(table)
    if len(table):
        table = judged(table)
        table["note"] = [
            _noted(row, [] if row["absent"] else [_short_of_window(stored, each), without_partner(stored, each)])
            for row, each in zip(table.to_dict("records"), question.claims, strict=True)
        ]
    return Verdicts(
        table,
        pd.concat([frame for frame in evidence if len(frame)], ignore_index=True)
        if any(map(len, evidence))
        else pd.DataFrame(columns=["claim", "seed", "base", "x", "y", "difference", "steps"]),
    )


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """What was measured of an ablation's claims (one row each), with p_holm over those that can have a verdict, and
    verdict."""
    enough = (table.seeds >= FEWEST_SEEDS) & table.get("unlike", pd.Series("", index=table.index)).eq("")
    table = table.assign(p_holm=stats.holm(table.p.where(enough & table.expect.ne(IDENTICAL))))
    rows = zip(enough, table.to_dict("records"), strict=True)
    return table.assign(verdict=[decide(row) if can or row["apart"] else NO_VERDICT for can, row in rows])


def decide(row: Mapping) -> str:
    """The verdict of one claim from expect, margin, difference, low, high (95 %), p_holm and p_equal (two one-sided
    tests).

    For greater and less: a Holm-adjusted p below .05 decides, reproduced or reversed by the sign; else null if the
    90 % interval lies inside the margin, else underpowered. For equal the roles change: the 90 % interval inside the
    margin reproduces the claim, and it is reversed only if the difference is significant and its 95 % interval lies
    outside the margin altogether: a mean beyond the margin does not yet say that the true difference is. A number that
    is expected takes the place of 0 in both. For identical there is no chance and no test: one differing bit reverses
    it, with however many seeds.
    """
    if row["expect"] == IDENTICAL:
        return REVERSED if row["apart"] else EQUAL
    significant, inside = row["p_holm"] < ALPHA, row["p_equal"] < ALPHA
    if row["expect"] == EQUAL_TO:
        target = row.get("target", 0.0)
        outside = row["low"] - target >= row["margin"] or row["high"] - target <= -row["margin"]
        return EQUAL if inside else REVERSED if significant and outside else UNDERPOWERED
    if significant:
        return REPRODUCED if (row["difference"] > 0) == (row["expect"] == GREATER) else REVERSED
    return NULL if inside else UNDERPOWERED


def unknown(stored: Stored, question: Question, claim: Claim) -> str:
    """What the claim names and the ablation does not have, with what it has; empty if all is there."""
    swept = [*stored.knobs, "seed", "base"]
    named = [*((key, v) for key, pair in claim.compare.items() for v in pair), *claim.where.items()]
    for key, wanted in named:
        if key not in swept:
            return f"nothing called {key} was swept; the swept keys are {', '.join(swept)}."
        there = list(stored.runs[key].cat.categories)
        planned = {value(cell[key]) for cell in question.cells or () if key in cell}
        if wanted not in there and wanted not in planned:
            return f"no run has {key}={wanted}; there are {', '.join(map(str, there))}."
    metrics = list(stored.rows.metric.cat.categories)
    missing = [metric for metric in (claim.metric, *claim.at) if metric not in metrics]
    return f"no run logged {missing[0]}; there are {', '.join(metrics)}." if missing else ""


def arm_names(claim: Claim) -> tuple[str, str]:
    """The two arms in words: the values alone if one knob is compared, else key=value. None is never alone: a reader of
    the table, pandas among them, takes it for a missing value."""
    x, y = ([(key, pair[side]) for key, pair in claim.compare.items()] for side in (0, 1))
    alone = len(claim.compare) == 1 and "None" not in (*x[0], *y[0])
    return tuple(str(side[0][1]) if alone else " ".join(f"{key}={v}" for key, v in side) for side in (x, y))


def main_knob(question: Question, stored: Stored) -> str:
    """The column that tells the lines of a figure apart: what the first claim compares if that is one knob, else the
    arm."""
    compared = list(question.claims[0].compare) if question.claims else []
    return compared[0] if len(compared) == 1 and compared[0] in stored.runs else "arm"


def left_out(stored: Stored, claim: Claim) -> str:
    """Runs of the claim's arms that are not complete and hence not in its pairs, as "constant: 1 diverged, 2
    failed"."""
    words = []
    for side, name in enumerate(arm_names(claim)):
        of_arm = stored.runs[
            _matches(stored.runs, {**claim.where, **{k: pair[side] for k, pair in claim.compare.items()}})
        ]
        counts = of_arm.state[of_arm.state.ne("complete")].value_counts()
        if len(counts):
            words.append(f"{name}: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    return "; ".join(words)


def without_partner(stored: Stored, claim: Claim) -> str:
    """How many complete runs of the claim's arms make no pair because their partner is not there, in words; empty if
    none. A partner that is there and not complete is one of `left_out`."""
    keys = _pair_keys(stored, claim)
    sides = [
        stored.runs[_matches(stored.runs, {**claim.where, **{k: pair[side] for k, pair in claim.compare.items()}})]
        for side in (0, 1)
    ]
    complete = [set(side.loc[side.state.eq("complete"), keys].astype(object).itertuples(index=False)) for side in sides]
    there = [set(side[keys].astype(object).itertuples(index=False)) for side in sides]
    alone = len(complete[0] - there[1]) + len(complete[1] - there[0])
    if not alone or not all(there):  # an arm without any run has no pairs to speak of
        return ""
    shared = ["seed", *(["base policy"] if "base" in keys else [])]
    shared += ["other knobs"] if any(key not in (*claim.where, "seed", "base") for key in keys) else []
    listed = " and ".join([", ".join(shared[:-1]), shared[-1]]) if len(shared) > 1 else shared[0]
    return f"{alone} complete run{'s have' if alone > 1 else ' has'} no partner with the same {listed}"


def of_arms(runs: pd.DataFrame, claim: Claim) -> pd.Series:
    """Which runs are of one of the two arms that the claim compares."""
    x, y = ({**claim.where, **{k: pair[side] for k, pair in claim.compare.items()}} for side in (0, 1))
    return _matches(runs, x) | _matches(runs, y)


def _matches(frame: pd.DataFrame, where: Mapping) -> pd.Series:
    chosen = pd.Series(True, index=frame.index)
    for key, wanted in where.items():
        chosen &= frame[key].eq(wanted).fillna(False).astype(bool)
    return chosen


def _unlike(stored: Stored, claim: Claim, evaluation: Mapping[str, Mapping[str, str]]) -> str:
    sides = [
        stored.runs.hash[_matches(stored.runs, {**claim.where, **{k: pair[side] for k, pair in claim.compare.items()}})]
        for side in (0, 1)
    ]
    return cautions.unlike(evaluation, *sides, claim.metric)


def _described(claim: Claim) -> dict:
    x, y = arm_names(claim)
    return {
        "says": claim.says,
        "metric": claim.metric,
        "first_step": claim.window[0],
        "last_step": claim.window[1],
        "knob": ", ".join(claim.compare),
        "x": x,
        "y": y,
        "where": " ".join(f"{k}={v}" for k, v in claim.where.items()),
        "at": " ".join(f"{metric} {low:g} to {high:g}" for metric, (low, high) in claim.at.items()),
        "expect": claim.expect,
        "target": claim.target,
        "margin": math.nan if claim.margin is None else claim.margin,
        "paper": claim.paper,
        "written_commit": claim.written[0],
        "written_date": claim.written[1],
    }


def measured(found: pd.DataFrame, claim: Claim, rng: np.random.Generator) -> dict:
    """The numbers of a claim from its pairs (columns seed, x, y, difference): means, intervals, p values, power."""
    difference = found.difference.to_numpy(dtype=float)
    mean, low, high, n, _ = stats.t_interval(difference, 1 - ALPHA)
    _, low90, high90, *_ = stats.t_interval(difference, 1 - 2 * ALPHA)
    sd = stats.spread(difference)
    beyond = difference - claim.target
    p_equal = math.nan if claim.margin is None else stats.equivalent(beyond, claim.margin, ALPHA)[0]
    return {
        "mean_x": found.x.mean() if n else math.nan,
        "mean_y": found.y.mean() if n else math.nan,
        "difference": mean,
        "low": low,
        "high": high,
        "low90": low90,
        "high90": high90,
        "sd": sd,
        "n": n,
        "seeds": found.seed.nunique() if n else 0,
        "p": stats.t_test(beyond),
        "p_equal": p_equal,
        "p_sign_flip": stats.sign_flip(beyond, rng),
        "seeds_needed": stats.seeds_needed(mean - claim.target, sd),
        "seeds_for_margin": math.nan if claim.margin is None else stats.seeds_needed(claim.margin, sd),
    }


def _counted(stored: Stored, claim: Claim, found: pd.DataFrame, absent: str) -> dict:
    steps = found.steps if len(found) else pd.Series([0])
    return {
        "fewest_steps": steps.min(),
        "most_steps": steps.max(),
        "absent": absent,
        "left_out": "" if absent else left_out(stored, claim),
        "without_values": 0 if absent else pairs_without_values(stored, claim, found),
        "unbalanced": len(found) > 0 and found.combinations.nunique() > 1,
        "identical": len(found) > 0 and bool((found.difference == 0).all()),
    }


def _short_of_window(stored: Stored, claim: Claim) -> str:
    """That no run of the two arms came to the end of the window; empty if one did, or if there is no value at all."""
    arms = stored.runs.run[of_arms(stored.runs, claim)].astype(object)
    last = stored.rows.step[stored.rows.metric.eq(claim.metric) & stored.rows.run.isin(arms)].max()
    reaches = not last < claim.window[1]
    return "" if reaches else f"the window goes to step {claim.window[1]}, but the last one measured is {last}"


def _noted(row: Mapping, beside: Sequence[str]) -> str:
    """What a reader must know beside the numbers. beside: of the window's end and of runs without a partner, or
    empty."""
    notes = []
    if row["absent"]:
        notes.append(f"not part of this crossing: {row['absent'].rstrip('.')}")
    elif row["unlike"]:
        notes.append(f"{row['unlike']}: not comparable")
    elif row["n"] == 0:
        notes.append("no pair of complete runs has this metric in the window")
    elif row["verdict"] == NO_VERDICT:
        notes.append(f"{row['seeds']} paired seeds; a verdict needs {FEWEST_SEEDS}")
    if row["n"] and row["without_values"]:
        notes.append(f"{row['without_values']} more pairs of complete runs have no step to be compared at")
    if row["apart"]:
        notes.append(row["apart"])
    elif row["identical"] and row["expect"] == IDENTICAL:
        notes.append("every metric but timings agrees bit by bit at every step of every pair")
    elif row["identical"]:
        notes.append("the difference is exactly 0 in every pair")
    if row["verdict"] in (REPRODUCED, REVERSED) and row["expect"] != EQUAL_TO and row["p_equal"] < ALPHA:
        notes.append(f"significant, but smaller than the margin of {row['margin']:g}")
    if row["verdict"] == UNDERPOWERED and row["p_holm"] < ALPHA:
        notes.append("the arms differ significantly, but not surely by more or by less than the margin")
    if row["left_out"]:
        notes.append(f"runs not counted: {row['left_out']}; the difference is over the pairs that completed")
    notes += filter(None, beside)
    if row["unbalanced"]:
        notes.append("some seeds lack some of the other knobs' values")
    return ". ".join(notes)
