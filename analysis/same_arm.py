"""The A/A check: one arm against itself, its seeds split into two halves at random.

Whatever the halves differ by is chance. A pipeline that calls it an effect more often than its level says is broken,
and the size of these differences is what any effect of this metric has to be seen against.
"""

import math
import warnings

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from analysis import matched
from analysis.load import Stored
from analysis.question import Question

SPLITS = 1_000


def check(stored: Stored, question: Question, *, seed: int = 0, splits: int = SPLITS) -> pd.DataFrame:
    """One row per metric and window of the claims and arm with at least 4 complete runs: columns metric, window, arm,
    n, significant (share of the splits with Welch p < .05, expected at most about .05), apart (half of the splits lie
    further apart than this), far (one in twenty does), in the metric's unit.

    Bases are mixed within each half alike: a split draws seeds, and both halves get whole seeds. Splits of few runs
    repeat each other, so the share scatters around its expectation: with 8 seeds there are 35.
    """
    rng = np.random.default_rng(seed)
    complete = stored.runs.run[stored.runs.state.eq("complete")].astype(object)
    rows = stored.rows[stored.rows.run.isin(complete) & np.isfinite(stored.rows.value)]
    asked = dict.fromkeys((claim.metric, claim.window, tuple(sorted(claim.at.items()))) for claim in question.claims)
    table = []
    for metric, window, at in asked:
        inside = rows[rows.step.between(*window)]
        inside = matched.within(inside, metric, dict(at)) if at else inside[inside.metric.eq(metric)]
        values = inside.groupby(["arm", "base", "seed"], observed=True).value.mean()
        # centred within a base, so that halves with other bases do not differ by the bases
        values = values - values.groupby(level=["arm", "base"], observed=True).transform("mean")
        for arm, own in values.groupby(level="arm", observed=True):
            by_seed = own.groupby(level="seed", observed=True).mean().to_numpy()
            if len(by_seed) >= 4:
                significant, apart, far = halves(by_seed, rng, splits)
                table.append((metric, f"{window[0]} to {window[1]}", arm, len(by_seed), significant, apart, far))
    return pd.DataFrame(table, columns=["metric", "window", "arm", "n", "significant", "apart", "far"])


def halves(values: np.ndarray, rng: np.random.Generator, splits: int = SPLITS) -> tuple[float, float, float]:
    """Random splits of n values into halves -> share with Welch p < .05, median and 95 % quantile of the absolute
    difference of the halves' means. NaN where a value is not finite."""
    values = np.asarray(values, dtype=float)
    if not np.isfinite(values).all():
        return math.nan, math.nan, math.nan
    order = rng.permuted(np.tile(values, (splits, 1)), axis=1)
    one, other = order[:, : len(values) // 2], order[:, len(values) // 2 :]
    distance = np.abs(one.mean(1) - other.mean(1))
    if values.max() == values.min():
        return 0.0, 0.0, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of halves in which nearly equal runs met
        p = scipy_stats.ttest_ind(one, other, axis=1, equal_var=False).pvalue
    return float((p < 0.05).mean()), float(np.median(distance)), float(np.quantile(distance, 0.95))
