"""Which tokens count: in the policy term, in the KL term, in the entropy bonus, and in the denominators.

Rules are applied one after the other, in the order of `tokens=[a,b]`; each takes the four masks and returns them with
tokens taken away. They see the whole update batch, before it is cut into micro-batches. Taking tokens from a
numerator but not from `denominator` shrinks the step; taking them from both leaves the mean over what remains.
Whether a row without tokens still counts as a row is the aggregation's setting `rows`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Masks(NamedTuple):
    """Four (N, T) bool masks. `denominator` is what the aggregation counts."""

    policy: Tensor
    kl: Tensor
    entropy: Tensor
    denominator: Tensor


def not_truncated(masks: Masks, truncated: Tensor, *, touches: Sequence[str]) -> Masks:
    """Take the tokens of answers that hit the length limit out of the masks named in `touches`.

    DAPO's overlong filtering (arXiv:2503.14476, sec. 3.4): a cut answer is not a wrong answer. Their reward stays in
    the group's statistics. Not useful against length growth: an answer that is never scored for its length has no
    reason to become shorter, and Skywork-OR1 (arXiv:2505.22312) found no gain from it.

    truncated: (N,) bool. Peers: TRL and ROLL touch all four (ROLL with rows: non_empty), oat leaves the denominator.
    Raises ValueError for a name in `touches` that is not a mask.
    """
    if unknown := sorted(set(touches) - set(Masks._fields)):
        raise ValueError(
            f"tokens.not_truncated.touches has {unknown}; allowed are {', '.join(Masks._fields)}. Correct the list."
        )
    return masks._replace(**{name: getattr(masks, name) & ~truncated[:, None] for name in touches})


def high_entropy(masks: Masks, entropies: Tensor, *, keep_share: float) -> Masks:
    """Train the policy term on the share of tokens with the highest entropy: entropy >= the (1 - keep_share) quantile.

    Wang et al. 2025 (arXiv:2506.01939), who keep 0.2; TRL top_entropy_quantile. The quantile is over the tokens of
    the whole update batch that the policy term still has, linearly interpolated; ties at the threshold all stay. The
    KL term and the denominators keep every token, so the step shrinks with the share.

    entropies: (N, T) in nats. Raises ValueError unless 0 < keep_share <= 1.
    """
    if not 0 < keep_share <= 1:
        raise ValueError(
            f"tokens.high_entropy.keep_share is {keep_share}; it is a share of tokens above 0 and at most 1."
        )
    candidates = entropies[masks.policy]
    if not len(candidates):
        return masks
    return masks._replace(policy=masks.policy & (entropies >= _quantile(candidates, 1 - keep_share)))


def off_policy_sequence(masks: Masks, advantages: Tensor, logp_old: Tensor, logp: Tensor, *, threshold: float) -> Masks:
    """Drop from the policy term tokens with A < 0 in rows where mean_t(log pi_old - log pi) > threshold.

    Bad answers that the policy has already moved away from: the off-policy sequence masking of DeepSeek-V3.2
    (arXiv:2512.02556); TRL off_policy_mask_threshold. KL term and denominators stay. The mean is over the tokens that
    the denominator counts. Cannot act at the first update of a rollout, where the mean is 0.

    advantages, logp_old, logp: (N, T), the last two in nats, logp of the policy at the start of this update.
    """
    counted = masks.denominator
    gap = torch.where(counted, logp_old - logp.detach(), 0.0).double()
    mean = gap.sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1)
    return masks._replace(policy=masks.policy & ~((advantages < 0) & (mean > threshold)))


def _quantile(values: Tensor, q: float) -> Tensor:
    """Linear-interpolation quantile, as torch.quantile but without its limit of 2^24 values. values: (n,), n >= 1."""
    position = q * (len(values) - 1)
    if abs(position - round(position)) < 1e-9:  # a rounding error must not push the threshold past a token's own value
        position = round(position)
    ordered, below = values.sort().values, int(position)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
