"""Normalise finished advantages over the whole rollout batch: advantages (N, T) -> (N, T), float64.

Comes after scale and credit, on top of what they did. Rows without a score (NaN in rewards) are outside the statistics
and stay 0, and so do masked positions. Where the advantages all agree there is no spread to divide by: an option that
divides then gives 0.

The variance enters the divisor in one of three published ways, which differ when the variance is small: pass one of
`added_to_std`, `added_to_variance`, `variance_floor` as eps_form.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ablations.knobs import group as by_group


def added_to_std(variance: Tensor, eps: float) -> Tensor:
    """sqrt(v) + eps: TRL."""
    return variance.sqrt() + eps


def added_to_variance(variance: Tensor, eps: float) -> Tensor:
    """sqrt(v + eps): verl, ROLL."""
    return (variance + eps).sqrt()


def variance_floor(variance: Tensor, eps: float) -> Tensor:
    """sqrt(max(v, eps)): OpenRLHF. Exact unit variance above the floor."""
    return variance.clamp(min=eps).sqrt()


def _whitened(
    values: Tensor, sample: Tensor, subtract_mean: bool, divide: bool, ddof: int, eps: float, eps_form: Callable
) -> Tensor:
    """(values - mean) / eps_form(variance), both statistics taken from `sample` (S,).

    Where the sample agrees its spread is no divisor, and what would be divided becomes 0; a mean is still subtracted.
    """
    sample = sample.double()
    agree = sample.numel() == 0 or bool(sample.min() == sample.max())
    if sample.numel() == 0 or (agree and divide):
        return torch.zeros_like(values, dtype=torch.float64)
    centre = sample[0] if agree else sample.mean()  # the mean of equal numbers may be off by a rounding
    out = values.double() - centre if subtract_mean else values.double()
    if divide:
        out = out / eps_form(((sample - centre) ** 2).sum() / (sample.numel() - ddof), eps)
    return out


def none(advantages: Tensor, mask: Tensor, rewards: Tensor) -> Tensor:
    """A_it as it is, 0 at masked positions and in unscored rows. (N, T) -> (N, T)."""
    return torch.where(mask & by_group.scored(rewards)[:, None], advantages.double(), 0.0)


def sequences(
    advantages: Tensor,
    advantage: Tensor,
    mask: Tensor,
    rewards: Tensor,
    *,
    subtract_mean: bool,
    divide: bool,
    ddof: int,
    eps: float,
    eps_form: Callable[[Tensor, float], Tensor],
) -> Tensor:
    """(A_it - mu) / eps_form(v), mu and v over the rows' advantages A_i: every answer counts once, however long it is.

    TRL's RLOO with normalize_advantages, and the last step of GDPO (arXiv:2601.05242). Answers without any token count
    too.

    advantages (N, T), advantage (N,), mask (N, T), rewards (N,) -> (N, T). subtract_mean, divide: which of the two
    steps to do; with divide false ddof, eps and eps_form have no effect. ddof: v = sum (A - mu)^2 / (rows - ddof).
    eps: in units of A, of its square for added_to_variance and variance_floor.
    """
    known = by_group.scored(rewards)
    out = _whitened(advantages, advantage[known], subtract_mean, divide, ddof, eps, eps_form)
    return torch.where(mask & known[:, None], out, 0.0)


def tokens(
    advantages: Tensor,
    mask: Tensor,
    rewards: Tensor,
    *,
    subtract_mean: bool,
    divide: bool,
    ddof: int,
    eps: float,
    eps_form: Callable[[Tensor, float], Tensor],
) -> Tensor:
    """(A_it - mu) / eps_form(v), mu and v over the unmasked tokens: long answers weigh more in both.

    REINFORCE++ (arXiv:2501.03262), verl reinforce_plus_plus(_baseline), OpenRLHF reinforce_baseline, ROLL
    whiten_advantages. A group that agrees and had advantage 0 gets -mu / eps_form(v), so it teaches again: not what a
    dead group means elsewhere.

    advantages (N, T), mask (N, T), rewards (N,) -> (N, T). Settings as in `sequences`, with v = sum (A - mu)^2 /
    (tokens - ddof).
    """
    counted = mask & by_group.scored(rewards)[:, None]
    out = _whitened(advantages, advantages[counted], subtract_mean, divide, ddof, eps, eps_form)
    return torch.where(counted, out, 0.0)
