"""What every place that holds runs is read into, before anything is typed or put in order."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Absent(LookupError):
    """What was asked for is not in the store; the message says what is."""


class Points(NamedTuple):
    """The points of one run. metrics: names in alphabetical order; counts: points of each; steps, values: one metric
    after the other, by step, one point per step."""

    metrics: list[str]
    counts: np.ndarray
    steps: np.ndarray
    values: np.ndarray


class Raw(NamedTuple):
    """runs: one dict per run: id, run (its name), start (ms since 1970, or 0), state, params and tags (texts).
    points: id -> Points."""

    runs: list[dict]
    points: Callable[[str], Points]


def settled(metric: np.ndarray, steps: np.ndarray, values: np.ndarray, names: list[str]) -> Points:
    """Points from columns in the order of logging: of two at one step of a metric, the later one stays.

    metric: place of each point's name in `names`. Resuming a run logs the steps since its checkpoint a second time.
    """
    alphabet = sorted(range(len(names)), key=lambda place: names[place])
    rank = np.empty(len(names), dtype=np.int64)
    rank[alphabet] = np.arange(len(names))
    metric = rank[metric]
    order = np.lexsort((np.arange(len(metric)), steps, metric))
    metric, steps, values = metric[order], steps[order], values[order]
    last = np.append((np.diff(metric) != 0) | (np.diff(steps) != 0), True) if len(metric) else np.empty(0, bool)
    counts = np.bincount(metric[last], minlength=len(names))
    return Points([names[place] for place in alphabet], counts, steps[last], values[last])
