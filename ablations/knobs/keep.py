"""Which groups are worth training on, and what becomes of the places of the others."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ablations.knobs import group as by_group


class Keep(NamedTuple):
    """What the loop needs to know.

    rule: (rewards (N,), group (N,)) -> (N,) bool, the rows of the groups to train on.
    dropped_rows_count: whether rows that were dropped still count in the denominators of the loss. True dilutes the
        step as if they were there with gradient 0; False makes the step per kept answer larger the fewer are kept.
    refill_rounds: how often, at most, more prompts are sampled to fill the places of dropped groups; 0 never.
    retire_at: a prompt of which at least this share of a group is correct is not drawn again; None never retires.
    """

    rule: Callable[[Tensor, Tensor], Tensor]
    dropped_rows_count: bool
    refill_rounds: int
    retire_at: float | None


def everything(rewards: Tensor) -> Tensor:
    """Every row, groups that teach nothing included. (N,) -> (N,) bool."""
    return torch.ones(rewards.shape, dtype=torch.bool, device=rewards.device)


def informative(rewards: Tensor, group: Tensor) -> Tensor:
    """The rows of groups with more than one distinct scored reward.

    Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11; open-instruct filter_zero_std_samples), stated by
    the rewards and not by a std. Unscored rows of such a group stay; their advantage is 0. rewards, group (N,) -> (N,)
    bool.
    """
    return ~by_group.agree(rewards, group)


def between(rewards: Tensor, group: Tensor, *, low: float, high: float) -> Tensor:
    """The rows of groups whose mean scored reward is strictly between low and high.

    OpenRLHF dynamic_filtering, and online difficulty filtering. For 0/1 rewards low = 0, high = 1 is `informative`. A
    group without a scored row is left out. rewards, group (N,) -> (N,) bool; low, high in reward units.
    """
    if low >= high:
        raise ValueError(
            f"keep.rule has low {low} and high {high}; no mean reward lies strictly between. Set low below high."
        )
    average = by_group.mean(rewards, group)
    return (by_group.count(rewards, group) > 0) & (average > low) & (average < high)
