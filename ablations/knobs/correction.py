"""The weight of tokens drawn by an engine that is not quite the policy: other precision, other kernels, older weights.

It multiplies the policy term only, never the KL, and has no gradient. It differs from the ratio room: that compares
the policy now with the policy before the update, this compares the policy before the update with whatever sampled.
"""

import torch
from torch import Tensor


def none(logp_old: Tensor) -> Tensor:
    """1 everywhere: the sampler is the policy. logp_old: (N, T) -> (N, T)."""
    return torch.ones_like(logp_old)


def truncated_token_ratio(logp_old: Tensor, logp_sampler: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """min(pi_old(o_it) / mu(o_it), cap) with mu the sampler: truncated importance sampling.

    oat tis_c and open-instruct's rho correction, both capped at 2. Inert (1 everywhere) when the log-probabilities
    before the update are the sampler's own, that is with recompute_logp=false.

    logp_old, logp_sampler: (N, T) in nats; mask: (N, T) bool -> (N, T) in (0, cap], 1 where masked. Raises ValueError
    unless cap > 0.
    """
    if not cap > 0:
        raise ValueError(
            f"correction.cap is {cap}; a cap on a ratio of probabilities must be above 0. The published value is 2."
        )
    with torch.no_grad():  # without a gradient an overflowing exp is harmless: the cap takes it
        gap = torch.where(mask, logp_old - logp_sampler, 0.0)
        return torch.where(mask, torch.exp(gap).clamp(max=cap), 1.0)
