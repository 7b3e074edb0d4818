"""The arms of an ablation side by side: where they end, how fast they got there, how sure that is."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis import bootstrap, courses, stats
from analysis.claims import main_knob
from analysis.load import Stored
from analysis.question import Question

CHOICES = ("accuracy/heldout", "accuracy/train", "reward/mean")


class Arms(NamedTuple):
    """table: one row per arm and base. metric: what it is about; level: what `waiting` waits for, in its unit; last:
    the step at which arms are compared. reference: the value of the main knob that `better` is against, or empty.
    placebo: its arm in words, or empty."""

    table: pd.DataFrame
    metric: str
    level: float
    last: int
    reference: str
    placebo: str


def measured(stored: Stored, question: Question, *, seed: int = 0) -> Arms | None:
    """Every arm's complete runs at the last step, with the area under the course and the steps to the level that lies
    half of the largest rise of any arm above the base policies. None where no run logged an accuracy or a reward.

    Columns arm, base, n, without (complete runs that have no value there), mean, low, high (95 % t), iqm, iqm_low,
    iqm_high (bootstrap), area, area_without (runs whose course is not whole), median, reached, waited (all runs count,
    those that did not complete are censored), better, better_low, better_high, better_reason (probability of
    improvement over the reference, and why it has no interval), gain, gain_low, gain_high, gain_n (paired differences
    to the placebo).
    """
    metric = next((m for m in CHOICES if (stored.rows.metric == m).any()), None)
    if metric is None:
        return None
    rng = np.random.default_rng(seed)
    rows = stored.rows[stored.rows.metric.eq(metric)]
    complete = stored.runs[stored.runs.state.eq("complete")]
    done = rows[rows.run.isin(complete.run.astype(object))]
    if not len(done):
        return None
    last = int(done.step.max())
    ends = done[done.step.eq(last)].set_index(done.run[done.step.eq(last)].astype(object)).value
    start = rows[rows.step.eq(rows.step.min())].value.mean()
    by_arm = ends.groupby(stored.runs.set_index(stored.runs.run.astype(object)).arm.reindex(ends.index).astype(object))
    level = float(start + (by_arm.mean().max() - start) / 2)
    areas = courses.area(done, metric).set_index("run").value
    waits = courses.steps_to(rows, metric, level).set_index("run")
    values = stored.runs.assign(
        value=stored.runs.run.astype(object).map(ends), area=stored.runs.run.astype(object).map(areas)
    )
    knob = main_knob(question, stored)
    reference = str(question.claims[0].compare[knob][1]) if question.claims and knob != "arm" else ""
    table = []
    for (arm, base), own in values.groupby(["arm", "base"], observed=True):
        inside = own.value[own.state.eq("complete")].dropna()
        mean, low, high, n, _ = stats.t_interval(inside)
        iqm = bootstrap.interval(inside, rng, bootstrap.iqm)
        waited = waits.reindex(own.run.astype(object)).dropna()
        wait = courses.waiting(waited.step, waited.reached.astype(bool))
        whole = own.area[own.state.eq("complete")]
        table.append(
            {"arm": arm, "base": base, "n": n, "without": len(whole) - n, "mean": mean, "low": low, "high": high}
            | {"iqm": iqm.mean, "iqm_low": iqm.low, "iqm_high": iqm.high}
            | {"area": whole.dropna().mean() if whole.notna().any() else math.nan, "area_without": whole.isna().sum()}
            | {"median": wait.median, "reached": wait.reached, "waited": wait.n}
            | _named("better", _better(values, own, knob, question, rng) if reference else None)
            | _named("gain", over_placebo(values, own, question.placebo, stored))
        )
    placebo = " ".join(f"{key}={v}" for key, v in question.placebo.items())
    return Arms(pd.DataFrame(table), metric, level, last, reference, placebo)


def _named(name: str, found: stats.Interval | None) -> dict:
    mean, low, high, n, reason = found or stats.Interval(math.nan, math.nan, math.nan, 0)
    return {name: mean, f"{name}_low": low, f"{name}_high": high, f"{name}_n": n, f"{name}_reason": reason}


def _better(values: pd.DataFrame, own: pd.DataFrame, knob: str, question: Question, rng) -> stats.Interval | None:
    """Chance that a run of this arm ends above one of the arm that differs in the reference's value only."""
    wanted = question.claims[0].compare[knob][1]
    others = _partner(values, own, {knob: wanted})
    if others is None:
        return None
    x, y = (side.value[side.state.eq("complete")].dropna() for side in (own, others))
    return bootstrap.improvement_interval([x], [y], rng) if len(x) and len(y) else None


def over_placebo(values: pd.DataFrame, own: pd.DataFrame, placebo: dict, stored: Stored) -> stats.Interval | None:
    """Mean paired difference to the arm that differs in the placebo's knobs only, with its t interval."""
    others = _partner(values, own, placebo) if placebo else None
    if others is None:
        return None
    pairs = own[["seed", "value"]].merge(others[["seed", "value"]], on="seed", suffixes=("", "_placebo")).dropna()
    return stats.t_interval(pairs.value - pairs.value_placebo)


def _partner(values: pd.DataFrame, own: pd.DataFrame, changed: dict) -> pd.DataFrame | None:
    """The runs that have this arm's knobs and base but for `changed`; None for that arm itself, or if there are
    none."""
    knobs = [c for c in values.columns[values.columns.get_loc("arm") + 1 : values.columns.get_loc("seed")]]
    chosen = values.base.astype(object).eq(own.base.astype(object).iloc[0])
    for knob in knobs:
        chosen &= values[knob].astype(object).eq(changed.get(knob, own[knob].astype(object).iloc[0]))
    found = values[chosen]
    return None if not len(found) or found.run.astype(object).isin(own.run.astype(object)).any() else found
