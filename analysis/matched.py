"""Values at matched accuracy (or matched anything): runs compared where they are equally far, not equally old."""

from collections.abc import Mapping

import pandas as pd

SMOOTH = 5  # steps: one rollout's accuracy is a mean over 128 answers to 16 prompts, and prompts differ in difficulty


def within(rows: pd.DataFrame, metric: str, at: Mapping[str, tuple[float, float]]) -> pd.DataFrame:
    """The rows of `metric` at the steps at which a run was inside every band of `at`, whenever that was.

    at: another metric -> (low, high), both included, in its unit; it is smoothed by a mean over 5 steps around each
    (a trailing mean would lag more behind the faster arm). An arm that learns faster contributes fewer steps and
    earlier ones, so a difference that is only a difference in progress disappears; one that the progress itself
    brings about would too. A run that never was inside, or jumped over the band, has no row. rows: tidy, columns run,
    metric, step, value.
    """
    chosen = rows[rows.metric.eq(metric)]
    for other, (low, high) in at.items():
        course = rows[rows.metric.eq(other)].sort_values(["run", "step"])
        by_run = course.groupby("run", observed=True).value
        smooth = by_run.rolling(SMOOTH, min_periods=1, center=True).mean().droplevel(0)
        inside = course.loc[smooth.between(low, high).reindex(course.index), ["run", "step"]]
        chosen = chosen.merge(inside, on=["run", "step"])
    return chosen


def per_run(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per run: its mean value, and the number of steps in it as `used`; other columns as they are."""
    grouped = rows.groupby("run", observed=True)
    means = grouped.value.agg(["mean", "size"]).rename(columns={"mean": "value", "size": "used"})
    first = grouped.first().drop(columns=["value", "step"])
    return first.join(means).reset_index()
