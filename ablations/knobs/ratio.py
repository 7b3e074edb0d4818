"""The importance ratio rho between the policy being trained and the one that sampled, per token or per answer.

All options bound the logarithm before it is exponentiated: float32 overflows at exp(88.7), and clamping the result
instead would leave 0 * inf = NaN in the gradient. `clamp` is [low, high] on log rho (`token_clamp` on the log-ratio
of one token before it enters a mean or a sum); null leaves an end, or the whole interval, open; the gradient is 0
outside. Padding has ratio 1 and no gradient, whatever its log-probabilities are.

With one update per rollout every ratio is 1 in value. The gradients still differ: `sequence_sum` has n_i times that
of the others, and both sequence options spread it over all tokens of an answer, which shows wherever advantages,
weights or token masks differ within one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Interval = Sequence[float | None] | None


def bounded(values: Tensor, clamp: Interval) -> Tensor:
    """`values` clipped to [low, high], gradient 0 outside. Raises ValueError unless low < high where both are given."""
    low, high = clamp if clamp is not None else (None, None)
    if low is not None and high is not None and not low < high:
        raise ValueError(
            f"A clamp is [low, high] with low < high; got [{low}, {high}]. Swap them, or use null for an open end."
        )
    return values if low is None and high is None else values.clamp(low, high)


def token(logp: Tensor, logp_old: Tensor, mask: Tensor, *, clamp: Interval) -> Tensor:
    """rho_it = pi(o_it) / pi_old(o_it), the ratio of PPO and GRPO (arXiv:1707.06347, arXiv:2402.03300).

    An unbiased weight only for the token itself, not for the prefix before it: exact at pi = pi_old, and off by the
    size of the step after.

    logp, logp_old: (N, T) in nats; mask: (N, T) bool -> (N, T), positive. verl and OpenRLHF clamp to +-20, TRL and
    ROLL not at all.
    """
    return torch.exp(bounded(_log_ratio(logp, logp_old, mask), clamp))


def sequence_mean(logp: Tensor, logp_old: Tensor, mask: Tensor, *, token_clamp: Interval, clamp: Interval) -> Tensor:
    """rho_i = exp(mean_t(log pi - log pi_old)) on every token of answer i, with the gradient through the mean.

    The length-normalised ratio of GSPO (Zheng et al. 2025, arXiv:2507.18071); TRL importance_sampling_level=sequence,
    OpenRLHF gspo. It moves far less than a token's ratio, so its clip range is 3e-4 where a token's is 0.2. With the
    aggregate `sequence_sum` it is LUSPO (arXiv:2602.05261), which needs no option of its own: the sum gives each
    answer back the factor n_i.

    logp, logp_old: (N, T) in nats; mask: (N, T) bool -> (N, T), constant along a row where mask is True.
    """
    log_ratio = bounded(_log_ratio(logp, logp_old, mask), token_clamp)
    return _on_every_token(torch.exp(bounded(_row_mean(log_ratio, mask), clamp)), mask)


def sequence_sum(logp: Tensor, logp_old: Tensor, mask: Tensor, *, token_clamp: Interval, clamp: Interval) -> Tensor:
    """rho_i = exp(sum_t(log pi - log pi_old)), the likelihood ratio of whole answers, on every token of answer i.

    The ratio of RLOO with several updates (arXiv:2402.14740, TRL's RLOOTrainer) and of VESPO (arXiv:2602.10693). The
    only one that is an unbiased weight for any pi; its logarithm grows with the length, so a PPO clip binds almost
    always once the policy has moved.

    logp, logp_old: (N, T) in nats; mask: (N, T) bool -> (N, T), constant along a row where mask is True.
    """
    log_ratio = bounded(_log_ratio(logp, logp_old, mask), token_clamp)
    return _on_every_token(torch.exp(bounded(log_ratio.sum(1, keepdim=True), clamp)), mask)


def sequence_mean_straight_through(
    logp: Tensor, logp_old: Tensor, mask: Tensor, *, token_clamp: Interval, clamp: Interval
) -> Tensor:
    """rho_it = sg[exp(mean_t(log pi - log pi_old))] * pi(o_it) / sg[pi(o_it)].

    The value of `sequence_mean` with the gradient of one token: GSPO-token (arXiv:2507.18071); verl loss_mode=gspo.
    Equal to `sequence_mean` in value, and in gradient under every aggregation that weights the tokens of an answer
    alike; it differs where the advantages of a row differ between its tokens.

    logp, logp_old: (N, T) in nats; mask: (N, T) bool -> (N, T). `clamp` is on log rho_it, `token_clamp` on the terms
    of the mean.
    """
    log_ratio = _log_ratio(logp, logp_old, mask)
    mean = _row_mean(bounded(log_ratio, token_clamp), mask).detach()
    return _on_every_token(torch.exp(bounded(mean + log_ratio - log_ratio.detach(), clamp)), mask)


def _log_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, logp - logp_old, 0.0)


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """(N, T), 0 where masked -> (N, 1). A fully masked row has mean 0."""
    return values.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def _on_every_token(ratio: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, ratio, 1.0)
