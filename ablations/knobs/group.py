"""Statistics of groups of answers, told by group id and never by position.

Everything is float64. A reward of NaN means "not scored": the answer is outside every statistic here. Functions that
return one number per row give each row the statistic of its own group; a batch statistic is a group statistic in which
all rows share one id (`one_group`).

Two questions that look alike are kept apart: how far rewards spread (`std`, `spread`) and whether a group has anything
to learn from (`agree`, `zero_advantage_groups`). The second compares the rewards themselves, because a standard
deviation can be exactly zero nowhere (rounding) or everywhere (a batch-wide one), and then counts the wrong groups.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def scored(rewards: Tensor) -> Tensor:
    """True where the answer has a reward. rewards (N,) -> (N,) bool."""
    return ~torch.isnan(rewards)


def one_group(rewards: Tensor) -> Tensor:
    """The same id for every row, so that the functions below speak about the whole batch. (N,) -> (N,) long."""
    return torch.zeros(rewards.shape[0], dtype=torch.long, device=rewards.device)


def _places(group: Tensor) -> tuple[Tensor, int]:
    """Row -> place of its group in the sorted list of ids (N,), and the number of groups P."""
    ids, place = torch.unique(group, return_inverse=True)
    return place, ids.numel()


def _sum_by_place(values: Tensor, place: Tensor, groups: int) -> Tensor:
    """Sums per group, (P,) float64. NaN counts as nothing."""
    values = torch.where(torch.isnan(values), 0.0, values.double())
    return torch.zeros(groups, dtype=torch.float64, device=values.device).index_add_(0, place, values)


def total(values: Tensor, group: Tensor) -> Tensor:
    """Sum over the scored rows of a row's group. values, group (N,) -> (N,); 0 where none is scored."""
    place, groups = _places(group)
    return _sum_by_place(values, place, groups)[place]


def count(rewards: Tensor, group: Tensor) -> Tensor:
    """Number of scored rows in a row's group. (N,) -> (N,) float64."""
    return total(scored(rewards).double(), group)


def mean(rewards: Tensor, group: Tensor) -> Tensor:
    """Mean over the scored rows of a row's group. (N,) -> (N,); 0 where none is scored."""
    return total(rewards, group) / count(rewards, group).clamp(min=1)


def extremes(rewards: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest scored reward of a row's group, each (N,); (inf, -inf) where none is scored."""
    place, groups = _places(group)
    rewards, known = rewards.double(), scored(rewards)
    low = torch.full((groups,), torch.inf, dtype=torch.float64, device=rewards.device)
    low = low.scatter_reduce(0, place, torch.where(known, rewards, torch.inf), "amin")
    high = torch.full((groups,), -torch.inf, dtype=torch.float64, device=rewards.device)
    high = high.scatter_reduce(0, place, torch.where(known, rewards, -torch.inf), "amax")
    return low[place], high[place]


def agree(rewards: Tensor, group: Tensor) -> Tensor:
    """True where the scored rewards of a row's group are all the same number (also when one or none is scored). (N,)
    -> (N,) bool.

    Compares the largest with the least: the mean of three rewards of .1 is not .1 in floating point, and a spread that
    is rounding error would be blown up by the division that follows.
    """
    low, high = extremes(rewards, group)
    return low >= high


def std(rewards: Tensor, group: Tensor, ddof: int) -> Tensor:
    """sqrt(sum (r - mean)^2 / (n - ddof)) over the scored rows of a row's group; exactly 0 where they agree. ->
    (N,)."""
    squares = total((rewards.double() - mean(rewards, group)) ** 2, group)
    free = (count(rewards, group) - ddof).clamp(min=1)  # below 1 only where one or none is scored, and those agree
    return torch.where(agree(rewards, group), 0.0, (squares / free).sqrt())


class ZeroAdvantage(NamedTuple):
    """One entry per group (P,), by sorted id. The other two split `zero`, apart from groups without a scored row."""

    ids: Tensor
    zero: Tensor
    all_right: Tensor
    all_wrong: Tensor


def zero_advantage_groups(rewards: Tensor, group: Tensor) -> ZeroAdvantage:
    """Which groups teach nothing under a group baseline, because their scored rewards agree.

    all_right: they agree on a reward above 0; all_wrong: on 0 or less. With shaped or transformed rewards that split
    is by the sign of the reward; pass 0/1 correctness instead to split by correctness. A group without any scored row
    is `zero` and neither of both.

    Never derived from a standard deviation: under a batch-wide one, all-right and all-wrong groups side by side look
    alive (huggingface/trl#3991). rewards, group (N,) -> flags (P,).
    """
    ids, place = torch.unique(group, return_inverse=True)

    def of_group(per_row: Tensor) -> Tensor:
        return torch.zeros(ids.numel(), dtype=per_row.dtype, device=per_row.device).scatter(0, place, per_row)

    low, high = (of_group(bound) for bound in extremes(rewards, group))
    zero = low >= high
    known = torch.isfinite(low)
    return ZeroAdvantage(ids, zero, zero & known & (low > 0), zero & known & (low <= 0))


class Spread(NamedTuple):
    """Standard deviations of rewards (n - 1), in reward units. None where no two answers can be compared."""

    pooled: float | None
    within: float | None


def spread(rewards: Tensor, group: Tensor) -> Spread:
    """Two numbers that published trainers log under one name: the std over all scored rows, and the mean over groups
    of the std inside.

    For [1,1,1,1] and [0,0,0,0] they are .5345 and 0: prompts differ, answers to one prompt do not, and nothing can be
    learnt (huggingface/trl#3857). Groups with fewer than two scored rows have no std and are left out. rewards, group
    (N,) -> two floats.
    """
    known = scored(rewards)
    pooled = std(rewards, one_group(rewards), 1)[0].item() if known.sum() >= 2 else None
    size = count(rewards, group)
    paired = known & (size >= 2)
    if not paired.any():
        return Spread(pooled, None)
    # each row carries its group's std; 1/size turns the sum over rows into a sum over groups
    share = 1 / size[paired]
    return Spread(pooled, ((std(rewards, group, 1)[paired] * share).sum() / share.sum()).item())


def zero_advantage_probability(rate: float, size: int) -> float:
    """p^G + (1-p)^G: the chance that `size` = G independent answers, each right with probability `rate` = p, all agree.

    At p = .18 it leaves .295, .547, .796 and .958 of the groups informative for G = 2, 4, 8 and 16.
    """
    return rate**size + (1 - rate) ** size


def predicted_zero_advantage(correct: Tensor, group: Tensor) -> float | None:
    """Share of groups expected to agree, from how success rates vary between prompts; None if nothing is scored.

    With the success rate of a prompt drawn from Beta(a, b), G answers agree with probability [B(a+G, b) + B(a, b+G)] /
    B(a, b) (uniform rates: 2/(G+1)). The formula p^G + (1-p)^G at the mean rate is too low whenever prompts differ.
    Beta(a, b) is fitted by moments that are unbiased per prompt, with c right of G answers: m1 = mean of c/G, m2 =
    mean of c(c-1)/(G(G-1)), where c^2/G^2 would count the noise of G answers as difference between prompts. With v =
    m2 - m1^2 and d = m1 - m2 the fit is a + b = d/v, a = m1 (a + b), and the ratio of Beta functions is the product
    over j < G of (m1 d + j v) / (d + j v), plus the same for 1 - m1.

    That product also holds where no Beta exists: v = 0 gives m1^G + (1-m1)^G, and a negative v (groups more alike than
    chance, which sampling noise can produce) is read as 0; d = 0 (every prompt always right or always wrong) gives 1,
    as do m1 = 0 and m1 = 1.

    Groups of different size each use their own G; those of one scored row add to m1 only, and agree with certainty.
    correct: (N,) bool, or 0/1 with NaN where not scored; group (N,) -> a share in [0, 1].
    """
    correct = correct.double()
    place, groups = _places(group)
    right = _sum_by_place(correct, place, groups)
    size = _sum_by_place(scored(correct).double(), place, groups)
    right, size = right[size > 0], size[size > 0]
    if not size.numel():
        return None
    several = size > 1
    first = (right / size).mean().item()
    pairs = (right * (right - 1) / (size * (size - 1)))[several]
    second = pairs.mean().item() if pairs.numel() else first**2
    variance, rest = max(second - first**2, 0.0), max(first - second, 0.0)
    if rest == 0.0:
        return 1.0

    def agreement(answers: int) -> float:
        both = 0.0
        for rate in (first, 1 - first):
            chance = 1.0
            for j in range(answers):
                chance *= (rate * rest + j * variance) / (rest + j * variance)
            both += chance
        return both

    sizes, how_many = size.long().unique(return_counts=True)
    shares = [agreement(n) * k for n, k in zip(sizes.tolist(), how_many.tolist(), strict=True)]
    return sum(shares) / int(how_many.sum())
