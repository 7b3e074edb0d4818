"""Group size: how many groups teach nothing because their answers agree.

G answers to a prompt of success rate p agree with probability p^G + (1-p)^G (oracle A2.1). It is convex in p, so that
at the mean rate of different prompts the formula gives less than the mean of what it gives for each.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablations.knobs import group as by_group
from ablations.measure import as_floats as numbers
from ablations.predictions import unbiased
from ablations.predictions.answers import Graded, graded
from ablations.predictions.points import Point
from ablations.predictions.weights import groups_of


def agreeing(rewards: Tensor, size: int) -> Tensor:
    """Share of each problem's disjoint groups of `size` that the metric groups/zero_advantage counts. (P, M) ->
    (P,)."""
    answers, group = groups_of(rewards, size)
    return by_group.zero_advantage_groups(answers.flatten(), group).zero.double().view(len(rewards), -1).mean(1)


def agreement(rewards: Tensor, size: int) -> Tensor:
    """Unbiased estimates of p^G + (1-p)^G, one per problem. (P, M) -> (P,)."""
    agree = numbers([1.0, *[0.0] * (size - 1), 1.0])
    return unbiased.expected(agree, rewards)


def shares(sampled: Graded, sizes: Sequence[int], panel: str) -> Iterator[Point]:
    """The share of groups that agree, over all problems and by level: predicted from the first half of every problem's
    answers, measured on groups of the second.

    The standard error is that of the difference, by its scatter over problems; but at least what theory gives for
    counting this many groups, because where none of them agrees the scatter says nothing.
    """
    first, second = sampled.halves
    everywhere = torch.ones_like(sampled.level, dtype=torch.bool)
    lines = {f"level {level:g}": sampled.level == level for level in sampled.level.unique().tolist()}
    for size in sizes:
        predicted, measured = agreement(first, size), agreeing(second, size)
        for line, here in {"all levels": everywhere, **lines}.items():
            share, count = predicted[here].mean().item(), int(here.sum()) * (second.shape[1] // size)
            error = unbiased.standard_error((measured - predicted)[here])
            error = max(error, math.sqrt(share * (1 - share) / count))
            yield Point(panel, line, size, share, measured[here].mean().item(), error, 4 * error)


def zero_advantage(
    results: Path, *, sizes: Sequence[int], base_seeds: Sequence[int], **rollout: Any
) -> Iterator[Point]:
    """`shares` on one large rollout of each of several base policies; rollout: the settings of `answers.graded`."""
    for base_seed in base_seeds:
        sampled = graded(results, base_seed=base_seed, **rollout)
        yield from shares(sampled, sizes, f"base policy {base_seed}")
