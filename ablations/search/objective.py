"""What a search looks at: a metric, over a window of steps, in a direction -> one number per run.

The window is part of the declaration, because the same curve has several scores: .1, .9, .2 ends at .2, was once at .9
and has .55 over its last two. The last is what a reader of the final policy gets; the best is partly luck.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ablations.contradictions import Refused

MAXIMIZE, MINIMIZE = "maximize", "minimize"

# Beginnings of names -> the direction in which anybody would call a run better. Metrics that are not here (lengths,
# entropy, KL, gradient norms) are good or bad by the question that is asked, so their direction is the asker's.
KNOWN = {
    "accuracy/": MAXIMIZE,
    "pass": MAXIMIZE,
    "reward/mean": MAXIMIZE,
    "reward/part/": MAXIMIZE,
    "reward/unscored": MINIMIZE,
    "length/truncated_share": MINIMIZE,
    "groups/zero_advantage": MINIMIZE,
    "ratio/first_update_deviation": MINIMIZE,
    "seconds/": MINIMIZE,
}


class Objective(NamedTuple):
    """metric: a name in the journal. direction: maximize or minimize. window(values, direction=) -> score."""

    metric: str
    direction: str
    window: Callable[..., float]


def objective(metric: str, direction: str, window: Callable[..., float]) -> Objective:
    """Raises Refused for a direction that is none, or that contradicts what the metric is known to mean."""
    if direction not in (MAXIMIZE, MINIMIZE):
        raise Refused(f"search.objective.direction is {direction}; it can be {MAXIMIZE} or {MINIMIZE}.")
    known = {way for beginning, way in KNOWN.items() if metric.startswith(beginning)} - {direction}
    if known:
        raise Refused(
            f"search.objective would {direction} {metric}, but a better run has it {_better(*known)}; "
            f"set search.objective.direction={known.pop()}, or choose another metric."
        )
    return Objective(metric, direction, window)


def _better(direction: str) -> str:
    return {MAXIMIZE: "higher", MINIMIZE: "lower"}[direction]


def last(values: Sequence[float], *, direction: str) -> float:
    """The value at the last step that has the metric."""
    return values[-1]


def best(values: Sequence[float], *, direction: str) -> float:
    """The best value of any step: partly luck, the more so the more steps there are; for early stopping only."""
    return max(values) if direction == MAXIMIZE else min(values)


def mean_of_last(values: Sequence[float], *, direction: str, k: int) -> float:
    """The mean over the last k steps that have the metric (all, if there are fewer)."""
    kept = values[-k:]
    return sum(kept) / len(kept)


def score(rows: Sequence[Mapping[str, Any]], wanted: Objective) -> float:
    """One run's number. Step 0, the base policy before any update, belongs to no window.

    Raises LookupError if the run never logged the metric.
    """
    values = [float(row[wanted.metric]) for row in rows if row["step"] > 0 and wanted.metric in row]
    if not values:
        there = sorted({key for row in rows for key in row} - {"step"})
        close = [key for key in there if key.split("/")[0] == wanted.metric.split("/")[0]] or there
        raise LookupError(f"no {wanted.metric} after step 0; the run has {', '.join(close[:12]) or 'no rows'}")
    return wanted.window(values, direction=wanted.direction)


def better(one: float, other: float, direction: str) -> bool:
    return one > other if direction == MAXIMIZE else one < other


def fault(value: float) -> str:
    """Why a score cannot be used, or nothing. Optuna itself would take infinity for the best result of all."""
    return "" if math.isfinite(value) else f"the score is {value}"
