"""Bootstrap intervals for statistics that no t distribution describes: the interquartile mean over runs and settings,
the probability of improvement.

Every interval is drawn from the generator that it is given, and from nothing else. For the mean of paired differences
use `stats.t_interval`: it holds its level from two pairs on, the bootstrap only from about twenty.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats as scipy_stats

from analysis.stats import Interval, quantile

DRAWS = 5_000


def interval(
    values: Sequence[float],
    rng: np.random.Generator,
    statistic: Callable[..., np.ndarray] = np.mean,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
) -> Interval:
    """A statistic of n values with its expanded percentile bootstrap interval. statistic takes (values, axis=...).

    The plain percentile interval is too narrow: a resample varies by s sqrt((n - 1) / n), and its quantiles are the
    normal ones. The expanded one (Hesterberg 2015, arXiv:1411.5279) takes the quantiles at
    Phi(-+ t(n - 1) sqrt(n / (n - 1))) instead. Measured for the mean of normal values, nominal 95 %: 92 % at n = 5,
    94 % at n = 10, 95 % at n = 20; the plain one covers 82, 90 and 93 %.
    """
    return stratified([values], rng, statistic, level=level, draws=draws)


def stratified(
    strata: Sequence[Sequence[float]],
    rng: np.random.Generator,
    statistic: Callable[..., np.ndarray] = np.mean,
    *,
    level: float = 0.95,
    draws: int = DRAWS,
) -> Interval:
    """A statistic over the values of all strata, each stratum (base policy, task) resampled within itself
    (Agarwal et al. 2021, arXiv:2108.13264), with the expanded percentile interval.

    strata: one list of run values per stratum, in one unit. No interval, and the reason, where a stratum has one value
    (its resamples would all be the same) or where a value is not finite: it is named and not dropped.
    """
    samples = [np.asarray(values, dtype=float) for values in strata if len(values)]

    def joined(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
        return statistic(np.concatenate(parts, axis=axis), axis=axis)

    return _drawn(samples, joined, rng, level, draws)


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Interquartile mean: the mean without the lowest and the highest quarter of the values (n // 4 on each side).

    Robust against single runs that fail, less wasteful than the median (arXiv:2108.13264). It says nothing of
    the runs that it leaves out: show those beside it.
    """
    return scipy_stats.trim_mean(values, 0.25, axis=axis)


def improvement(x: Sequence[float], y: Sequence[float], axis: int = -1) -> np.ndarray:
    """Probability of improvement P(X > Y) + P(X = Y) / 2 for one run of either arm: the Mann-Whitney U over n m."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    u = scipy_stats.mannwhitneyu(x, y, axis=axis, method="asymptotic").statistic
    return u / (x.shape[axis] * y.shape[axis])


def improvement_interval(
    x: Sequence[Sequence[float]],
    y: Sequence[Sequence[float]],
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    draws: int = 2_000,
) -> Interval:
    """Mean over strata of the probability that a run of x beats a run of y of the same stratum, with its interval.

    x, y: one list of run values per stratum, in the same order. .5 means neither is ahead; how far ahead it does not
    say. No interval, and the reason, where every stratum has all its pairs in one order: so has every resample then,
    and 1.0 from two runs a side would look as sure as from two hundred.
    """
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} strata and y has {len(y)}; both need the same ones in the same order.")
    samples = [np.asarray(values, dtype=float) for pair in zip(x, y, strict=True) for values in pair]

    def chance(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return np.mean([_wins(a, b) for a, b in pairs], axis=0)

    found = _drawn(samples, chance, rng, level, draws)
    orders = [set(np.unique(np.sign(a[:, None] - b))) for a, b in zip(samples[::2], samples[1::2], strict=True)]
    if found.reason or any(len(order) > 1 for order in orders):
        return found
    seen = "no run of either arm is ahead" if orders == [{0}] * len(orders) else "every run of one arm is ahead"
    return found._replace(low=math.nan, high=math.nan, reason=f"{seen}: resampling says nothing of how sure that is")


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Share of pairs along the last axis in which x is ahead, ties half. (..., n), (..., m) -> (...)"""
    higher = x[..., :, None] - y[..., None, :]
    return ((higher > 0) + 0.5 * (higher == 0)).mean(axis=(-2, -1))


def _drawn(samples: list[np.ndarray], statistic: Callable, rng, level: float, draws: int) -> Interval:
    n = sum(map(len, samples))
    if not n:
        return Interval(math.nan, math.nan, math.nan, 0, "no value")
    found = float(statistic(*samples, axis=-1))
    if bad := int(sum((~np.isfinite(values)).sum() for values in samples)):
        return Interval(found, math.nan, math.nan, n, f"{bad} of {n} values are not finite")
    if min(map(len, samples)) < 2:
        return Interval(found, math.nan, math.nan, n, "one value has no interval")
    if all(values.max() == values.min() for values in samples):
        return Interval(found, found, found, n)
    fewest = min(map(len, samples))
    freedom = sum(len(values) - 1 for values in samples)
    expanded = quantile((1 + level) / 2, freedom) * math.sqrt(fewest / (fewest - 1))
    inner = 1 - 2 * scipy_stats.norm.sf(expanded)
    low, high = scipy_stats.bootstrap(
        samples,
        statistic,
        n_resamples=draws,
        batch=max(1, 2_000_000 // (n * n)),
        confidence_level=inner,
        method="percentile",
        vectorized=True,
        rng=rng,
    ).confidence_interval
    return Interval(found, float(low), float(high), n)
