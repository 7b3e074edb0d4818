"""What one number can say of a whole course of training: the area under it, and the steps until it reached a level."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import integrate
from scipy import stats as scipy_stats


class Waiting(NamedTuple):
    """Steps until a level was reached, over runs. median: of the Kaplan-Meier estimate, infinite where fewer than half
    reached it; low, high: its 95 % interval, infinite ends included, low NaN where nothing is known of it. reached of n
    runs; the others are censored."""

    median: float
    low: float
    high: float
    reached: int
    n: int


def area(rows: pd.DataFrame, metric: str, window: tuple[int, int] | None = None) -> pd.DataFrame:
    """Area under a metric's course per run, over the steps it spans: trapezoids divided by the width, in the metric's
    unit, so that it reads as the mean height.

    rows: tidy, columns run, step, metric, value. window: first and last step, both included; without it the steps that
    any run has. -> run, value, points. A run that ends before the window does (failed, still running), begins after it,
    or has a value that is not finite inside has NaN: a shorter course is not comparable, and leaving it out would be a
    choice that nobody sees.
    """
    rows = rows[rows.metric.eq(metric)]
    first, last = window or (rows.step.min(), rows.step.max())
    inside = rows[rows.step.between(first, last)].sort_values("step")
    reach = (inside.step.min(), inside.step.max())
    found = []
    for run, own in inside.groupby("run", observed=True):
        steps, values = own.step.to_numpy(), own.value.to_numpy(dtype=float)
        whole = len(steps) > 1 and (steps[0], steps[-1]) == reach and np.isfinite(values).all()
        height = float(integrate.trapezoid(values, steps) / (steps[-1] - steps[0])) if whole else math.nan
        found.append((run, height, len(steps)))
    return pd.DataFrame(found, columns=["run", "value", "points"])


def steps_to(
    rows: pd.DataFrame, metric: str, level: float, *, smooth: int = 1, falling: bool = False
) -> pd.DataFrame:
    """The first step at which a run's metric is at `level` or beyond it -> run, step, reached.

    smooth: points of a centred mean before looking (odd), because a noisy course crosses a level early by luck.
    falling: at the level or below it. A run that never was there has its last step and reached False: it is censored,
    not slow by that number. A value that is not finite is not beyond any level.
    """
    rows = rows[rows.metric.eq(metric)].sort_values("step")
    found = []
    for run, own in rows.groupby("run", observed=True):
        values = own.value.rolling(smooth, min_periods=1, center=True).mean()
        there = own.step[(values <= level) if falling else (values >= level)]
        found.append((run, int(there.iloc[0] if len(there) else own.step.iloc[-1]), bool(len(there))))
    return pd.DataFrame(found, columns=["run", "step", "reached"])


def waiting(steps: Sequence[float], reached: Sequence[bool]) -> Waiting:
    """Median waiting time with censoring: Kaplan and Meier's survival curve, its interval from Greenwood's formula
    (log-log). Dropping the runs that never arrived, or counting them at their last step, would make the arm faster than
    it is.

    The formula has no value where the curve is at 0: if half and all arrive at one step (one run alone among them), low
    is NaN. Behind the last step nothing is known, so low is at most that one.
    """
    steps, reached = np.asarray(steps, dtype=float), np.asarray(reached, dtype=bool)
    if not len(steps):
        return Waiting(math.nan, math.nan, math.nan, 0, 0)
    if not reached.any():
        return Waiting(math.inf, float(steps.min()), math.inf, 0, len(steps))
    curve = scipy_stats.ecdf(scipy_stats.CensoredData(uncensored=steps[reached], right=steps[~reached])).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Greenwood's formula is undefined where all or none are left
        ends = curve.confidence_interval(0.95, method="log-log")

    def half(survival) -> float:
        # 1/2 is a product of shares such as 23/24, which rounding leaves a little above it
        below = curve.quantiles[np.nan_to_num(survival, nan=1.0) <= 0.5 + 1e-12]
        return float(below[0]) if len(below) else math.inf

    median, low = half(curve.probabilities), half(ends.low.probabilities)
    if math.isinf(low):
        low = math.nan if math.isfinite(median) else float(steps.max())
    return Waiting(median, low, half(ends.high.probabilities), int(reached.sum()), len(steps))


def faster(x: pd.DataFrame, y: pd.DataFrame) -> float:
    """Two-sided log-rank p that two arms wait equally long. x, y: of steps_to. NaN if nobody in either arrived."""
    if not (x.reached.any() or y.reached.any()):
        return math.nan
    censored = [
        scipy_stats.CensoredData(uncensored=arm.step[arm.reached], right=arm.step[~arm.reached]) for arm in (x, y)
    ]
    return float(scipy_stats.logrank(*censored).pvalue)
