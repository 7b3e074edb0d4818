"""Several reward parts -> one advantage per answer (N,), through `normalise`, the run's baseline and scale in one.

A part of weight 0 is measured and logged, and has no other effect, whether it is scored or not. An answer that lacks
the score of any other part is unscored as a whole: half a reward would be compared with whole ones.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def weighted_sum(parts: Tensor, weights: Tensor) -> Tensor:
    """r_i = sum_k w_k r_ik; NaN where a part of non-zero weight is NaN. parts (N, K), weights (K,) -> (N,) float64.

    (TRL takes a missing part for 0 here, which pays an abstention like a wrong answer.)
    """
    if weights.shape != parts.shape[1:]:
        raise ValueError(
            f"There are {parts.shape[1]} reward parts and {weights.numel()} weights; every part needs one. "
            "Give each entry of reward a weight."
        )
    weights = weights.to(parts.device).double()
    return torch.where(weights == 0, 0.0, parts.double() * weights).sum(1)


def sum_then_normalise(rewards: Tensor, normalise: Callable[[Tensor], Tensor]) -> Tensor:
    """A = normalise(r) of the total reward r, which is the weighted sum of the parts after transform and penalties.

    GRPO, and TRL's multi_objective_aggregation="sum_then_normalize". Parts with a large spread inside the groups
    dominate. (N,) -> (N,).
    """
    return normalise(rewards)


def normalise_each_then_sum(parts: Tensor, weights: Tensor, normalise: Callable[[Tensor], Tensor]) -> Tensor:
    """A = sum_k w_k normalise(r_k): each part is centred and scaled apart, so that its weight is a share of the
    gradient.

    GDPO (Liu et al. 2026, arXiv:2601.05242), whose batch-wide last step is whiten=sequences. Needs a baseline without
    memory: a running mean would be moved once per part. parts (N, K), weights (K,) -> (N,); 0 for an answer that lacks
    the score of a weighted part.
    """
    unscored = torch.isnan(weighted_sum(parts, weights))
    parts = torch.where(unscored[:, None], torch.nan, parts.double())
    columns = [w * normalise(part) for part, w in zip(parts.T, weights.double().tolist(), strict=True) if w]
    return torch.stack(columns).sum(0) if columns else torch.zeros_like(unscored, dtype=torch.float64)
