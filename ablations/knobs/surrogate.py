"""The token loss l_it whose gradient trains the policy, before any weight: the loss is sum(W * l).

Shapes: ratio, advantages, logp, logp_old and the result are (N, T), mask (N, T) bool, rewards (N,). Log-probabilities
are in nats. The result is 0, with gradient 0, wherever the mask is False.

Two families. Those built on rho differentiate the ratio: -A rho and its clipped forms. Those built on log pi treat
the ratio as a constant weight, so that a token outside the band keeps a bounded gradient where PPO's clip takes it
away. While the policy is the one that sampled (rho = 1, the first update of a rollout) all of them have the gradient
-A (`gmpo` if a row's tokens share advantage and weight), so their settings can only matter from the second update on.
The exceptions are bounds that leave 1 out, as TRL's default for CISPO does, and Clip-Cov.

Where the token loss is the advantage times something, an answer without advantages needs no forward pass. Functions of
which that holds say so with `in_proportion`; one that does not say so is computed on every answer.

Nothing here bounds the ratio against overflow: the ratio room does, and `gmpo`, which builds its own, takes the same
setting. The options that choose tokens across the whole batch (KL-Cov, Clip-Cov) are in `surrogate_covariance.py`.
LUSPO needs no option: it is `ratio=sequence_mean`, `ppo_clip` and `aggregate=sequence_sum`. Kimi k1.5
(arXiv:2501.12599) is `unclipped_logp` with `kl=k2` and `placement=loss_to_old`.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ablations.knobs.ratio import Interval, bounded


def in_proportion(surrogate: Callable) -> Callable:
    """Mark a function or class whose token loss, and its gradient, are 0 wherever the advantage is 0, whatever the
    ratio."""
    surrogate.in_proportion = True
    return surrogate


@in_proportion
def ppo_clip(
    ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None,
    delta: float | None,
) -> Tensor:
    """l = -min(min(rho, delta) A, clip(rho, 1 - eps_low, 1 + eps_high) A); where A < 0 also l = min(l, dual_clip |A|).

    PPO (arXiv:1707.06347) and GRPO (arXiv:2402.03300); eps_high > eps_low is DAPO's clip-higher (arXiv:2503.14476). A
    token has a gradient iff A > 0 and rho < 1 + eps_high, or A < 0 and rho > 1 - eps_low: the clip stops a move that
    has gone far enough, never one that goes back. For A < 0 that leaves rho, and the gradient, unbounded above, which
    the last two settings mend: dual_clip (Ye et al. 2020, arXiv:1912.09729) for A < 0 only, delta (INTELLECT-2,
    arXiv:2505.07291) for either sign; with delta = dual_clip >= 1 + eps_high they agree. null turns each off.

    With one update per rollout rho is 1 and no setting here can change anything.
    Peers: TRL, verl, oat, ROLL eps 0.2; verl also dual_clip 3, ROLL 1 + 2 eps when switched on; TRL delta off.
    Raises ValueError for a negative eps, dual_clip <= 1 (it would bind at rho = 1), or delta <= 0.
    """
    if eps_low < 0 or eps_high < 0:
        raise ValueError(
            f"surrogate.eps_low is {eps_low} and eps_high is {eps_high}; both are distances from 1 and at least 0. "
            "Published values are 0.2 and 0.2 or 0.28."
        )
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(
            f"surrogate.dual_clip is {dual_clip}; it bounds the ratio of tokens with A < 0 and is above 1, usually 3. "
            "Use null for off."
        )
    if delta is not None and not delta > 0:
        raise ValueError(
            f"surrogate.delta is {delta}; it bounds the ratio from above and is above 0, usually above 1 + eps_high. "
            "Use null for off."
        )
    gain = (ratio if delta is None else ratio.clamp(max=delta)) * advantages
    clipped = ratio.clamp(1 - eps_low, 1 + eps_high) * advantages
    loss = -torch.minimum(gain, clipped)
    if dual_clip is not None:
        loss = torch.minimum(loss, dual_clip * advantages.abs())  # no case for A >= 0: the loss is not positive there
    return torch.where(mask, loss, 0.0)


@in_proportion
def unclipped_ratio(ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """l = -A rho: the importance-weighted policy gradient without any trust region.

    The control for every clip: what PPO maximises before clipping. Its variance grows quickly with the age of the
    samples.
    """
    return torch.where(mask, -advantages * ratio, 0.0)


@in_proportion
def unclipped_logp(advantages: Tensor, logp: Tensor, mask: Tensor) -> Tensor:
    """l = -A log pi: REINFORCE (Williams 1992), which does not know that the samples may be old.

    verl gpg, ROLL pg_variant=vanilla, nano-aha-moment, GRPO-Zero. Equal in gradient to `unclipped_ratio` at the first
    update and biased after it. The value of the loss means nothing, only its gradient.
    """
    return _weighted_logp(1.0, advantages, logp, mask)


@in_proportion
def cispo(
    ratio: Tensor,
    advantages: Tensor,
    logp: Tensor,
    mask: Tensor,
    *,
    lower: float | None,
    upper: float | None,
    sign_mask: Mapping[str, float] | None,
) -> Tensor:
    """l = -sg[clip(rho, lower, upper)] A log pi. Clips the weight and not the update: every token keeps a gradient.

    MiniMax-M1 (arXiv:2506.13585). The bounds are absolute, not distances from 1 as in `ppo_clip`; null is open. Peers
    read the same two names differently: TRL clips at epsilon_high itself (5 in the paper's setting), verl at 1 -+
    eps, open-instruct at 1 + 0.272 above only, ROLL at [0.9, 1.1]. An upper bound below 1 scales every token down,
    also on policy. sign_mask {positive_above, negative_below} (ROLL's unified mask) puts the PPO rule back: l = 0
    where A > 0 and rho > positive_above, or A < 0 and rho < negative_below; null = off.
    """
    weight = bounded(ratio.detach(), (lower, upper))
    if sign_mask is not None:
        gone_up = (advantages > 0) & (ratio > sign_mask["positive_above"])
        gone_down = (advantages < 0) & (ratio < sign_mask["negative_below"])
        mask = mask & ~(gone_up | gone_down)
    return _weighted_logp(weight, advantages, logp, mask)


@in_proportion
def tis(ratio: Tensor, advantages: Tensor, logp: Tensor, mask: Tensor, *, lower: float, upper: float) -> Tensor:
    """l = -sg[clip(rho, lower, upper)] A log pi with upper = 1: truncated importance sampling.

    ROLL pg_variant=tis; the baseline of TOPR (arXiv:2503.14286). It only ever takes weight away: `cispo` without a
    sign mask and with bounds that end at 1.
    """
    return cispo(ratio, advantages, logp, mask, lower=lower, upper=upper, sign_mask=None)


@in_proportion
def topr(
    ratio: Tensor, advantages: Tensor, logp: Tensor, mask: Tensor, rewards: Tensor, *, lower: float, upper: float
) -> Tensor:
    """Rows with reward > 0: l = -A log pi. Other rows: l = -sg[clip(rho, lower, upper)] A log pi.

    Tapered off-policy REINFORCE (Le Roux et al. 2025, arXiv:2503.14286); ROLL pg_variant=topr. Good answers are
    imitated however old they are; a bad answer that has become unlikely is left alone. The sign is the row's
    reward's, not the advantage's, so a scale or shift of the reward changes which rows are which.
    """
    weight = torch.where(rewards[:, None] > 0, 1.0, bounded(ratio.detach(), (lower, upper)))
    return _weighted_logp(weight, advantages, logp, mask)


@in_proportion
def sapo(ratio: Tensor, advantages: Tensor, mask: Tensor, *, tau_pos: float, tau_neg: float) -> Tensor:
    """l = -(4 / tau) sigmoid(tau (rho - 1)) A, tau = tau_pos where A > 0, tau_neg elsewhere: a soft gate for the clip.

    SAPO (arXiv:2511.20347); TRL loss_type=sapo, verl loss_mode=sapo. The gradient is -A rho at rho = 1 and fades on
    both sides of it, faster for a larger tau. Raises ValueError unless both are above 0.
    """
    if not (tau_pos > 0 and tau_neg > 0):
        raise ValueError(
            f"surrogate.tau_pos is {tau_pos} and tau_neg is {tau_neg}; both are above 0, in the paper 1.0 and 1.05."
        )
    tau = _either(advantages > 0, tau_pos, tau_neg, ratio.dtype)
    return torch.where(mask, -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages, 0.0)


@in_proportion
def gmpo(
    advantages: Tensor,
    logp: Tensor,
    logp_old: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    token_clamp: Interval,
) -> Tensor:
    """l = -A exp(mean_t x), x = min(log rho, eps_high) where A > 0, max(log rho, -eps_low) elsewhere.

    GMPO (Zhao et al. 2025, arXiv:2507.20673): the geometric mean of clipped token ratios, the same on every token of
    a row, with the clip in log space, band [exp(-eps_low), exp(eps_high)]. verl loss_mode=geo_mean (0.2), TRL's
    GMPOTrainer (0.4, the paper's). Asks for no ratio; token_clamp bounds log rho before the clip, because for A < 0
    the clip leaves it open above. Use `aggregate=sequence_mean`, or the row counts n_i times. Raises ValueError for a
    negative eps.
    """
    if eps_low < 0 or eps_high < 0:
        raise ValueError(
            f"surrogate.eps_low is {eps_low} and eps_high is {eps_high}; both are distances from 0 in log space and at "
            "least 0. The paper's are 0.4."
        )
    log_ratio = bounded(torch.where(mask, logp - logp_old, 0.0), token_clamp)
    clipped = torch.where(advantages > 0, log_ratio.clamp(max=eps_high), log_ratio.clamp(min=-eps_low))
    mean = torch.where(mask, clipped, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return torch.where(mask, -advantages * torch.exp(mean), 0.0)


gmpo.band = lambda settings: (math.exp(-settings["eps_low"]), math.exp(settings["eps_high"]))  # eps is in log space


@in_proportion
def vespo(
    ratio: Tensor,
    advantages: Tensor,
    logp: Tensor,
    mask: Tensor,
    *,
    k_pos: float,
    lambda_pos: float,
    k_neg: float,
    lambda_neg: float,
) -> Tensor:
    """l = -sg[phi(rho)] A log pi, phi(rho) = e^lambda rho^k e^(-lambda rho), pos for A >= 0.

    VESPO (arXiv:2602.10693), TRL loss_type=vespo, with the ratio `sequence_sum`. phi(1) = 1, phi peaks at k / lambda
    and vanishes on both sides, so stale answers fade out instead of being clipped. phi is computed as one
    exponential, which no ratio can overflow while k, lambda > 0.
    """
    with torch.no_grad():
        positive = advantages >= 0
        k = _either(positive, k_pos, k_neg, ratio.dtype)
        rate = _either(positive, lambda_pos, lambda_neg, ratio.dtype)
        phi = torch.exp(rate + k * ratio.log() - rate * ratio)
    return _weighted_logp(phi, advantages, logp, mask)


@in_proportion
def probability_mask_by_sign(
    ratio: Tensor, advantages: Tensor, logp: Tensor, logp_old: Tensor, mask: Tensor, *, above: float, below: float
) -> Tensor:
    """l = -A rho, but 0 where A > 0 and p - p_old > above, or A <= 0 and p - p_old < -below; p = exp(logp).

    The total-variation trust region of DPPO (Qi et al. 2026, arXiv:2602.04879); prime-rl's default (0.2, 0.2). A
    ratio band stops rare tokens at once and likely ones hardly ever; a probability band does the reverse.
    """
    moved = _probability_change(logp, logp_old, mask)
    outside = torch.where(advantages > 0, moved > above, moved < -below)
    return unclipped_ratio(ratio, advantages, mask & ~outside)


@in_proportion
def probability_mask_symmetric(
    ratio: Tensor, advantages: Tensor, logp: Tensor, logp_old: Tensor, mask: Tensor, *, above: float, below: float
) -> Tensor:
    """l = -A rho, but 0 where p - p_old > above or p - p_old < -below, whatever the sign of A; p = exp(logp).

    prime-rl ipo (0.1, 0.1). Unlike `probability_mask_by_sign` it also stops a token that is on its way back.
    """
    moved = _probability_change(logp, logp_old, mask)
    return unclipped_ratio(ratio, advantages, mask & ~((moved > above) | (moved < -below)))


def _weighted_logp(weight: Tensor | float, advantages: Tensor, logp: Tensor, mask: Tensor) -> Tensor:
    """-weight A log pi, weight constant. Both factors are cleared at padding: 0 * inf would be NaN in the gradient."""
    return -torch.where(mask, weight * advantages, 0.0) * torch.where(mask, logp, 0.0)


def _probability_change(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, logp.detach().exp() - logp_old.exp(), 0.0)


def _either(condition: Tensor, yes: float, no: float, dtype: torch.dtype) -> Tensor:
    """torch.where of two numbers in the given type: by itself it would round both to float32."""
    return torch.where(condition, torch.tensor(yes, dtype=dtype, device=condition.device), no)
