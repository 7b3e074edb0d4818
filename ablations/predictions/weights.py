"""Difficulty bias: how much a problem of success rate p counts in the gradient, by what advantages are divided by.

For advantages A_i = (r_i - mean) f(c), with c right answers of G, the expected gradient is w(p) grad p with
w(p) = E[sigma_c^2 f(c)] / (p (1-p)), sigma_c^2 = c (G-c) / G^2 (oracle A1.2).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablations import grpo
from ablations.knobs import scale
from ablations.measure import as_floats as numbers
from ablations.oracles import advantage, rules
from ablations.predictions import unbiased
from ablations.predictions.answers import Graded, graded
from ablations.predictions.points import Point

# f by the share s = c/G of right answers, 0 < s < 1, for G answers in a batch of standard deviation `spread`: what
# theory says that an option divides by. `ablations.knobs.scale` says it in tensors of rewards.
FACTORS: dict[Callable, Callable[..., Tensor]] = {
    scale.none: lambda s, size, spread: torch.ones_like(s),
    scale.group_std: lambda s, size, spread, *, ddof, eps: 1 / ((s * (1 - s) / (1 - ddof / size)).sqrt() + eps),
    scale.batch_std: lambda s, size, spread, *, ddof, eps: torch.full_like(s, 1 / (spread(ddof) + eps)),
    scale.max_rl: lambda s, size, spread: 1 / s,
}


def factor(divide: Callable, size: float, spread: Callable[[int], float] | None = None) -> Callable[[Tensor], Tensor]:
    """f of a scale option with its settings, as a function of the share of right answers. size: G, or infinity;
    spread(ddof): the standard deviation of the batch's rewards, for the option that divides by it. Raises ValueError
    for an option without a formula here."""
    option, settings = getattr(divide, "func", divide), getattr(divide, "keywords", {})
    if option not in FACTORS:
        there = ", ".join(sorted(function.__name__ for function in FACTORS))
        raise ValueError(
            f"the weight under {option.__module__}.{option.__qualname__} is not known; choose scales from {there}, or "
            "add the option's formula to ablations.predictions.weights.FACTORS."
        )
    return partial(FACTORS[option], size=size, spread=spread, **settings)


def strengths(f: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """sigma_c^2 f(c) for c = 0 .. G: what a group with c right answers pushes. 0 where they agree. -> (G+1,)."""
    share = torch.arange(1, size, dtype=torch.float64) / size
    return torch.nn.functional.pad(share * (1 - share) * f(share), (1, 1))


def groups_of(rewards: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Disjoint groups of `size` answers to one problem: (P, M) -> rewards (P, K * size) and group ids (P * K *
    size,)."""
    each = rewards.shape[1] // size
    return rewards[:, : each * size], torch.arange(len(rewards) * each).repeat_interleave(size)


def pushes(rewards: Tensor, group: Tensor, divide: Callable) -> Tensor:
    """Mean over each problem's answers of A_i r_i, with the advantages of the training code: sigma_c^2 f(c) on average
    over the problem's groups. rewards (P, M), group (P * M,) -> (P,)."""
    flat = rewards.flatten()
    tokens = torch.ones(len(flat), 1, dtype=torch.bool)
    batch = {"parts": flat[:, None], "part_weights": numbers([1.0]), "group": group, "mask": tokens}
    batch |= {"lengths": tokens.sum(1), "truncated": ~tokens[:, 0]}
    made = grpo.advantages(batch, rules.knobs(scale=divide), 0.0)["advantage"]
    return (made * flat).view_as(rewards).mean(1)


def std_by_rate(rewards: Tensor) -> Callable[[int], float]:
    """Standard deviation of 0/1 rewards of mean q: sqrt(q (1-q) N / (N - ddof))."""
    q, n = rewards.mean().item(), rewards.numel()
    return lambda ddof: (q * (1 - q) * n / (n - ddof)) ** 0.5


def by_level(sampled: Graded, sizes: Sequence[int], scales: Mapping[str, Callable]) -> Iterator[Point]:
    """The weight of every level, at its mean success rate.

    A level's weight is the mean over its problems of sigma_c^2 f(c), over that of p (1-p). Predicted from the first
    half of each problem's answers, by unbiased estimates of either; measured on the second, cut into groups whose
    advantages the training code computes. The success rates of a level's problems differ, so its weight is not w at
    their mean. Under the batch's standard deviation, both use that of the measured half. The standard error is that of
    the difference, over problems: the noise of both halves is in it, what problems have in common is not.
    """
    first, second = sampled.halves
    for size in sizes:
        answers, group = groups_of(second, size)
        for name, divide in scales.items():
            f = factor(divide, size, std_by_rate(answers))
            predicted = unbiased.expected(strengths(f, size), first), unbiased.variance(first)
            measured = pushes(answers, group, divide), unbiased.variance(answers)
            for level in sampled.level.unique():
                here = sampled.level == level
                (w, off), (w_measured, off_measured) = (_ratio(a[here], b[here]) for a, b in (predicted, measured))
                error = unbiased.standard_error(off_measured - off)
                rate = sampled.rewards[here].mean().item()
                yield Point(f"G = {size}", name, rate, w, w_measured, error, 4 * error)


def _ratio(above: Tensor, below: Tensor) -> tuple[float, Tensor]:
    """mean(above) / mean(below), and by how much each entry moves it times n, to first order. (n,), (n,) -> float,
    (n,)."""
    value = above.mean() / below.mean()
    return value.item(), (above - value * below) / below.mean()


def weights(results: Path, *, sizes: Sequence[int], scales: Mapping[str, Callable], **rollout: Any) -> Iterator[Point]:
    """`by_level` on one large rollout of one base policy; rollout: the settings of `answers.graded`."""
    yield from by_level(graded(results, **rollout), sizes, scales)


def formula(*, sizes: Sequence[int], scales: Mapping[str, Callable], rates: Sequence[float]) -> Iterator[Point]:
    """w(p) of a single problem, measured in the expected gradient of the training code: every group in its exact
    share."""
    for size in sizes:
        for name, divide in scales.items():
            f = factor(divide, size)
            for p in rates:
                predicted = advantage.weight(p, size, lambda c, f=f, size=size: f(c / size))
                measured = advantage.measured_weight(p, size, rules.knobs(scale=divide))
                yield Point(f"G = {size}", name, p, predicted, measured, 0.0, 1e-10 * predicted)
