"""pass@k from counted answers, what was gained over the base policy, and which problems were gained and lost.

The base policy is measured too: its own error does not shrink with the number of trained seeds, and a gain that leaves
it out looks surer than it is.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special
from scipy import stats as scipy_stats

from analysis.claims import FEWEST_SEEDS
from analysis.stats import Interval, quantile, t_test

COUNTED = ["problem", "level", "samples", "correct"]


def pass_at_k(samples: np.ndarray | int, correct: np.ndarray | int, k: int) -> np.ndarray:
    """1 - C(n - c, k) / C(n, k) per problem: the unbiased estimate, from n answers of which c are right, of the chance
    that at least one of k is (Chen et al. 2021, arXiv:2107.03374, eq. 1). 1 - (1 - c / n)^k is biased downwards.

    samples, correct: (problems,) counts -> (problems,) shares. Raises ValueError where k is above the answers or c
    outside 0..n.
    """
    n, c = np.asarray(samples), np.asarray(correct)
    if k < 1 or (n < k).any():
        raise ValueError(f"pass@{k} needs {max(k, 1)} or more answers to every problem; the fewest are {n.min()}.")
    if ((c < 0) | (c > n)).any():
        raise ValueError("correct must lie between 0 and the number of answers.")
    # C(n - c, k) / C(n, k) through logarithms of factorials, which do not overflow; 0 where fewer than k are wrong
    logs = _log_choose(np.maximum(n - c, k), k) - _log_choose(n, k)
    return np.where(n - c < k, 1.0, 1.0 - np.exp(logs))


def _log_choose(n: np.ndarray, k: int) -> np.ndarray:
    return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


def standard_error(samples: Sequence[int], correct: Sequence[int], k: int) -> float:
    """Of the mean of pass@k over the problems: their spread over sqrt(problems).

    The spread between problems holds the chance of the draws of problems and of answers both, so this is the error for
    problems like these, not for these problems only. NaN for fewer than two problems.
    """
    values = pass_at_k(np.asarray(samples), np.asarray(correct), k)
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def gain(trained: Sequence[pd.DataFrame], base: pd.DataFrame, k: int, level: float = 0.95) -> Interval:
    """Mean over seeds of pass@k minus the base's, with a t interval that holds the base's own error.

    trained: one counted table per seed, base: the counted table of the base policy they all start from; columns
    problem, samples, correct. se^2 = (spread over seeds)^2 / seeds + (error of the base)^2, where the base's error is
    that of its answers to these problems (the problems are shared, and their difficulty cancels); degrees of freedom
    after Satterthwaite. n counts seeds.
    """
    means = np.array([_mean(_same_problems(table, base), k) for table in trained])
    difference = float(means.mean() - _mean(base, k)) if len(means) else math.nan
    if len(means) < 2:
        return Interval(difference, math.nan, math.nan, len(means), "one value has no interval")
    between, own = float(means.var(ddof=1)) / len(means), answers_error(base.samples, base.correct, k) ** 2
    if between + own == 0:
        return Interval(difference, difference, difference, len(means))
    # The base's error comes from hundreds of answers: its own degrees of freedom do not limit anything.
    freedom = (between + own) ** 2 / (between**2 / (len(means) - 1)) if between else math.inf
    bar = quantile((1 + level) / 2, freedom) if math.isfinite(freedom) else scipy_stats.norm.ppf((1 + level) / 2)
    half = bar * math.sqrt(between + own)
    return Interval(difference, difference - half, difference + half, len(means))


def answers_error(samples: Sequence[int], correct: Sequence[int], k: int) -> float:
    """Standard error of the mean of pass@k for these very problems, if each were answered n times anew.

    Per problem the jackknife over its answers: leaving out one of the c right or the n - c wrong ones. With n = k (one
    answer and k = 1 among them) nothing can be left out; there p (1 - p) of the pooled estimate stands in, which is not
    below the truth.
    """
    n, c = np.asarray(samples, dtype=float), np.asarray(correct, dtype=float)
    if (n <= k).any():
        p = float(pass_at_k(n, c, k).mean())
        return math.sqrt(p * (1 - p) / len(n))
    without_right = pass_at_k(n - 1, np.maximum(c - 1, 0), k)
    without_wrong = pass_at_k(n - 1, np.minimum(c, n - 1), k)
    centre = (c * without_right + (n - c) * without_wrong) / n
    squares = c * (without_right - centre) ** 2 + (n - c) * (without_wrong - centre) ** 2
    return float(np.sqrt(((n - 1) / n * squares).sum()) / len(n))


def gained_and_lost(
    before: Sequence[pd.DataFrame], after: Sequence[pd.DataFrame], *, shared: bool = False, alpha: float = 0.05
) -> pd.DataFrame:
    """Per problem: answers and right ones of all runs before and after, p, and what became of it.

    before, after: one counted table per run (problem, samples, correct; level is kept where given). shared: `before` is
    one and the same evaluation in all of them, and its answers are counted once.

    The unit is the run, as everywhere: neither the draw of the answers nor that of the runs may explain a change. p is
    the largest of three: Fisher's exact p over all answers, the paired t test over the runs' rates, and Fisher's with
    each run counted as one answer. The last is there because runs that solve a problem always or never agree by luck,
    and the t test takes that for certainty: with 8 runs at even odds it finds a change in more than half of the tables
    of 100 problems, where on average nothing changed. One run: p is Fisher's over its answers, and the statement is
    about that one policy. Two runs or more, but fewer than FEWEST_SEEDS with graded answers to the problem: p is NaN.

    change is `gained` or `lost` where the rates differ at a false discovery rate of alpha over the problems with a p
    (Benjamini and Hochberg), else `solved` (right more often than not in both), `unsolved` (never right in either) or
    `undecided`. Sorted by problem.
    """
    sides = ["samples_before", "correct_before", "samples", "correct"]
    pairs = pd.concat(
        [
            _same_problems(own, base).merge(base, on="problem", suffixes=("", "_before"))
            for base, own in zip(before, after, strict=True)
        ]
    )
    by_problem = pairs.groupby("problem", observed=True)
    table = by_problem[sides].sum()
    if shared:
        table[sides[:2]] = by_problem[sides[:2]].first()
    table["p"] = [
        _p(own, row, alone=len(after) == 1) for (_, own), row in zip(by_problem, table.itertuples(), strict=True)
    ]
    made, found = table.p.notna().to_numpy(), np.zeros(len(table), dtype=bool)
    if made.any():
        found[made] = scipy_stats.false_discovery_control(table.p[made]) < alpha
    rate, rate_before = table.correct / table.samples, table.correct_before / table.samples_before
    table["change"] = np.select(
        [
            found & (rate > rate_before),
            found & (rate < rate_before),
            (rate > 0.5) & (rate_before > 0.5),
            (table.correct + table.correct_before) == 0,
        ],
        ["gained", "lost", "solved", "unsolved"],
        "undecided",
    )
    if "level" in pairs:
        table["level"] = by_problem["level"].first()
    columns = ["problem", *(["level"] if "level" in pairs else []), *sides, "p", "change"]
    return table.reset_index()[columns]


def _p(runs: pd.DataFrame, total: NamedTuple, *, alone: bool) -> float:
    """Of one problem. runs: its counts before and after, one row per run. total: these added up. alone: the one run."""
    before = total.correct_before, total.samples_before - total.correct_before
    answers = _fisher(total.correct, total.samples - total.correct, *before)
    if alone:
        return answers
    if len(runs) < FEWEST_SEEDS:
        return math.nan
    rates, right = runs.correct / runs.samples, (runs.correct / runs.samples).sum()
    # a whole number of runs, rounded towards the rate before: a part of a run must not make a change
    up = right > len(runs) * total.correct_before / total.samples_before
    right = math.floor(right + 1e-9) if up else math.ceil(right - 1e-9)
    each_run_once = _fisher(right, len(runs) - right, *before)
    return max(answers, each_run_once, t_test(rates - runs.correct_before / runs.samples_before))


@functools.cache
def _fisher(a: int, b: int, c: int, d: int) -> float:
    return float(scipy_stats.fisher_exact([[a, b], [c, d]]).pvalue)


def _mean(table: pd.DataFrame, k: int) -> float:
    return float(pass_at_k(table.samples.to_numpy(), table.correct.to_numpy(), k).mean())


def _same_problems(table: pd.DataFrame, base: pd.DataFrame) -> pd.DataFrame:
    """`table`, if it asks the base's problems. Raises ValueError: a gain over other problems is no gain."""
    if set(table.problem) != set(base.problem) or table.problem.duplicated().any():
        only, other = set(table.problem) - set(base.problem), set(base.problem) - set(table.problem)
        raise ValueError(
            f"Both must have answered the same problems, each once in the table; {len(only)} are only in one and "
            f"{len(other)} only in the other. Evaluate both with the same task, number of problems and seed."
        )
    return table
