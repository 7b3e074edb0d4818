"""Statistics for few seeds: t intervals, paired differences, and tests that hold at n = 5.

Arms of an ablation share their seeds, so they are compared by the difference within a pair. Intervals use the t
distribution: with 3 seeds a nominal 95 % interval covers 96 % that way, 81 % with the normal quantile and 74 % with the
percentile bootstrap.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats


class Interval(NamedTuple):
    """A mean with the ends of its interval, in the unit of the values. reason: why there is no interval, or empty."""

    mean: float
    low: float
    high: float
    n: int
    reason: str = ""


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean and mean -+ t(n - 1) s / sqrt(n), s with n - 1.

    One value has no interval, and neither has a set that holds a NaN: both say so in `reason` with NaN ends, because a
    line with an empty band is what misleads. Values that all agree give an interval of width zero.
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0, "no value")
    mean = float(values.mean())
    if not np.isfinite(values).all():
        return Interval(
            mean, math.nan, math.nan, n, f"{int((~np.isfinite(values)).sum())} of {n} values are not finite"
        )
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1, "one value has no interval")
    half = quantile((1 + level) / 2, n - 1) * spread(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


@functools.cache
def quantile(p: float, df: int) -> float:
    """Of Student's t; kept, because a band asks for the same one at every step."""
    return float(stats.t.ppf(p, df))


def spread(values: Sequence[float]) -> float:
    """Standard deviation with n - 1; exactly 0 where all values agree, NaN for fewer than two."""
    values = np.asarray(values, dtype=float)
    if len(values) < 2:
        return math.nan
    return 0.0 if values.max() == values.min() else float(values.std(ddof=1))


def t_test(values: Sequence[float]) -> float:
    """Two-sided p of the one-sample t test that the mean is 0; on paired differences this is the paired t test.

    NaN for fewer than two values. If all values agree the t statistic is 0/0 or infinite: p is 1 where they are 0, else
    0.
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan
    if (sd := spread(values)) == 0:
        return 1.0 if values[0] == 0 else 0.0
    return float(2 * stats.t.sf(abs(values.mean()) * math.sqrt(len(values)) / sd, len(values) - 1))


def holm(p: Sequence[float]) -> np.ndarray:
    """Holm's step-down adjustment: the family-wise error stays below alpha if adjusted p < alpha is called significant.

    p: (m,) -> (m,). The i-th smallest (from 0) becomes the running maximum of (m - i) p, at most 1. A NaN is a test
    that was not made: it stays NaN and does not count in m.
    """
    p = np.asarray(p, dtype=float)
    adjusted = np.full(len(p), math.nan)
    made = np.flatnonzero(~np.isnan(p))
    order = made[np.argsort(p[made], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1) if len(order) else []
    return adjusted


def sign_flip(
    values: Sequence[float], rng: np.random.Generator, *, exact_up_to: int = 16, draws: int = 20_000
) -> float:
    """Two-sided permutation p that the values are symmetric about 0: the share of sign patterns with |mean| at least as
    large.

    All 2^n patterns up to n = exact_up_to (then the smallest possible p is 2 / 2^n: .0625 for 5 pairs), else `draws`
    random ones with the observed pattern counted in, (1 + hits) / (1 + draws). NaN for no value or a value that is not
    finite.
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        return math.nan
    if not (largest := np.abs(values).max()):
        return 1.0
    values = values / largest  # so that no sum overflows and no tolerance underflows
    # the same sum in another order must count as a tie; it may be zero, so the tolerance is that of its terms
    bar = abs(values.sum()) - 1e-12 * np.abs(values).sum()
    if n <= exact_up_to:
        # the first sign may be fixed: the two-sided statistic does not change when all signs turn
        signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=n - 1)])
        return float((np.abs(signs @ values) >= bar).mean())
    hits = sum(
        int((np.abs(rng.choice((-1.0, 1.0), size=(size, n)) @ values) >= bar).sum()) for size in _portions(draws, 2_000)
    )
    return (1 + hits) / (1 + draws)


def _portions(total: int, most: int) -> list[int]:
    return [most] * (total // most) + [total % most] * (total % most > 0)


def equivalent(values: Sequence[float], margin: float, alpha: float = 0.05) -> tuple[float, bool]:
    """Two one-sided t tests that -margin < mean < margin: (the larger p, whether both reject).

    Both reject at alpha exactly when the 1 - 2 alpha interval (90 % for .05) lies inside the margin (Schuirmann 1987).
    (NaN, False) for fewer than two values or a value that is not finite.
    """
    values = np.asarray(values, dtype=float)
    if len(values) < 2 or not np.isfinite(values).all():
        return math.nan, False
    mean, sd = float(values.mean()), spread(values)
    if sd == 0:
        p = 0.0 if abs(mean) < margin else 1.0
    else:
        scale = sd / math.sqrt(len(values))
        p = float(
            max(
                stats.t.sf((mean + margin) / scale, len(values) - 1),
                stats.t.cdf((mean - margin) / scale, len(values) - 1),
            )
        )
    return p, p < alpha


def power(effect: float, n: int, alpha: float = 0.05) -> float:
    """Chance that the two-sided one-sample t test rejects, when mean / sd is `effect`: two tails of the noncentral
    t."""
    bar, shift = stats.t.ppf(1 - alpha / 2, n - 1), abs(effect) * math.sqrt(n)
    found = stats.nct.sf(bar, n - 1, shift) + stats.nct.cdf(-bar, n - 1, shift)
    return (
        1.0 if math.isnan(found) else float(found)
    )  # scipy gives NaN where the shift is so large that nothing is left to compute


def seeds_needed(mean: float, sd: float, *, wanted: float = 0.8, alpha: float = 0.05, most: int = 1_000_000) -> float:
    """The smallest number of pairs with which a t test finds a difference of `mean` with probability `wanted`.

    At least 2; infinite if the mean is 0 or more than `most` pairs would be needed; NaN if mean or sd is not known.
    Taken at the observed difference this is a plan for the next study, not evidence about this one.
    """
    if not (math.isfinite(mean) and math.isfinite(sd)):
        return math.nan
    if mean == 0:
        return math.inf
    if sd == 0:
        return 2
    effect = abs(mean) / sd
    # the normal approximation asks for a few pairs too few, so the answer lies just above it
    about = math.ceil(((stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(wanted)) / effect) ** 2)
    if about > most:
        return math.inf
    low, step = max(1, about - 2), 4
    if low > 1 and power(effect, low, alpha) >= wanted:
        low = 1
    high = low + step
    while power(effect, high, alpha) < wanted:
        low, step = high, 2 * step
        high = low + step
        if high > most:
            return math.inf
    while high - low > 1:  # power grows with n, so halving finds the first n
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, middle, alpha) >= wanted else (middle, high)
    return high


def paired(values: pd.DataFrame, compare: dict[str, tuple], keys: Sequence[str]) -> pd.DataFrame:
    """Values of two arms side by side: one row per pair, columns <keys>, x, y, difference = x - y.

    values: one row per run with the columns of compare, `keys` and `value`. compare: knob -> (value of x, value of y).
    keys: every swept thing except the compared knobs, so that the runs of a pair differ in nothing else. A run without
    its partner makes no pair. Raises ValueError if an arm has two runs with the same keys: then something else was
    swept that is not among the keys.
    """
    sides = []
    for place in (0, 1):
        chosen = np.logical_and.reduce([values[knob].eq(pair[place]) for knob, pair in compare.items()])
        side = values.loc[chosen, [*keys, "value"]]
        if (twice := side.duplicated(list(keys))).any():
            example = side.loc[twice, list(keys)].iloc[0].to_dict()
            raise ValueError(
                f"Two runs of one arm share {example}; pairs need one run per arm and {', '.join(keys)}. "
                "Add the key in which these runs differ to the swept keys."
            )
        sides.append(side.rename(columns={"value": "xy"[place]}))
    pairs = sides[0].merge(sides[1], on=list(keys), how="inner")
    return pairs.assign(difference=pairs.x - pairs.y)


def t_band(curves: pd.DataFrame, alive: np.ndarray | None = None, level: float = 0.95) -> pd.DataFrame:
    """Mean and t interval at each step over the runs -> columns mean, low, high, n, one row per step.

    curves: (steps, runs), NaN where a run has no value. alive: (steps, runs), whether a run still goes on at a step;
    not given: where it has a value. The mean stops for good at the first step at which a run is gone (common support):
    a mean over the runs that are left looks like progress when the worst run dies. While all go on, a step may lack
    some runs, because the metric is undefined there; the mean is then over those that have it, and is left out if they
    are fewer than half. n counts the values. A single value has a mean and no band (NaN).
    """
    numbers = curves.to_numpy(dtype=float)
    there = np.isfinite(numbers)
    alive = there if alive is None else alive
    n = there.sum(axis=1)
    whole = np.logical_and.accumulate(alive.all(axis=1)) & (n >= max(1, numbers.shape[1] / 2))
    mean, low, high = (np.full(len(numbers), math.nan) for _ in range(3))
    for step in np.flatnonzero(whole):
        mean[step], low[step], high[step], *_ = t_interval(numbers[step, there[step]], level)
    return pd.DataFrame({"mean": mean, "low": low, "high": high, "n": n}, index=curves.index)
