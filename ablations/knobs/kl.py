"""How far the policy is from the reference, per token, and where that enters: nowhere, the loss, or the reward.

With d = log pi_ref - log pi of the sampled token: k1 = -d, k2 = d^2 / 2, k3 = e^d - d - 1 (Schulman 2020). Values and
gradients are different questions. As a number k1 and k3 are unbiased for KL(pi || ref) = RKL. As a term of the loss
the expected gradient is

    k1 in the loss           0: a penalty that pulls nowhere
    k2 in the loss           grad RKL
    k3 in the loss           grad KL(ref || pi), another divergence
    ratio * k3, attached     grad RKL, also when the samples are old
    k1 in the reward         grad RKL

(arXiv:2510.01555, arXiv:2512.21852). For answers of several tokens a loss term sees each token's KL with its prefix
held fixed; only k1 in the reward gives the gradient of the whole answer's.

Settings of every estimator: `log_ratio_clamp` x clips d to [-x, x] before anything is computed from it, `value_clamp`
y clips the estimate to [-y, y]; the gradient is 0 outside; null = off. The first one keeps exp finite: float32
overflows at exp(88.7), and a clamp after exp would leave 0 * inf = NaN in the gradient. Positions outside the mask
are computed like any other; whoever sums them uses where.

Shapes: logp (the policy's side), logp_ref (the reference's) and ratio are (N, T), log-probabilities in nats -> (N, T)
in nats.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def k1(logp: Tensor, logp_ref: Tensor, *, log_ratio_clamp: float | None, value_clamp: float | None) -> Tensor:
    """-d = log pi - log pi_ref. Unbiased; negative on single tokens, which is no fault.

    Without any effect in the loss, where its expected gradient is 0. In the reward it is the right one, and the
    default of verl, OpenRLHF and ROLL.
    """
    return _estimate(torch.neg, logp, logp_ref, log_ratio_clamp, value_clamp)


def k2(logp: Tensor, logp_ref: Tensor, *, log_ratio_clamp: float | None, value_clamp: float | None) -> Tensor:
    """d^2 / 2: a biased value with the gradient of KL(pi || ref).

    verl mse; Kimi k1.5 (arXiv:2501.12599) against the old policy.
    """
    return _estimate(_half_square, logp, logp_ref, log_ratio_clamp, value_clamp)


def k3(logp: Tensor, logp_ref: Tensor, *, log_ratio_clamp: float | None, value_clamp: float | None) -> Tensor:
    """e^d - d - 1 >= 0. GRPO's penalty (arXiv:2402.03300, eq. 4); an unbiased value with the gradient of KL(ref || pi).

    verl low_var_kl (log_ratio_clamp 20, value_clamp 10), oat (40, off), TRL and nano-aha-moment (off).
    """
    return _estimate(_k3, logp, logp_ref, log_ratio_clamp, value_clamp)


def absolute(logp: Tensor, logp_ref: Tensor, *, log_ratio_clamp: float | None, value_clamp: float | None) -> Tensor:
    """|d|. verl and ROLL abs. Overestimates the KL, and its gradient has size 1 however close the policies are."""
    return _estimate(torch.abs, logp, logp_ref, log_ratio_clamp, value_clamp)


def ratio_k1(
    logp: Tensor,
    logp_ref: Tensor,
    ratio: Tensor,
    *,
    attached: bool,
    log_ratio_clamp: float | None,
    value_clamp: float | None,
) -> Tensor:
    """rho * k1, clamps before rho. Attached, the gradient goes through rho as well and is that of KL(pi || ref).

    open-instruct kl_estimator=3. Detached, rho is a constant weight and the expected gradient is 0, as for k1.
    """
    return (ratio if attached else ratio.detach()) * k1(
        logp, logp_ref, log_ratio_clamp=log_ratio_clamp, value_clamp=value_clamp
    )


def ratio_k3(
    logp: Tensor,
    logp_ref: Tensor,
    ratio: Tensor,
    *,
    attached: bool,
    log_ratio_clamp: float | None,
    value_clamp: float | None,
) -> Tensor:
    """rho * k3, clamps before rho. Attached: the gradient of KL(pi || ref), also for old samples.

    Detached: that of KL(ref || pi).

    DeepSeek-V3.2 (arXiv:2512.02556) and TRL use_bias_correction_kl are attached. rho is the ratio room's, so a
    sequence ratio is broadcast over the tokens.
    """
    return (ratio if attached else ratio.detach()) * k3(
        logp, logp_ref, log_ratio_clamp=log_ratio_clamp, value_clamp=value_clamp
    )


def k3_value_k2_gradient(
    logp: Tensor, logp_ref: Tensor, *, log_ratio_clamp: float | None, value_clamp: float | None
) -> Tensor:
    """k3's value with k2's gradient, straight through: an unbiased curve and the gradient of KL(pi || ref).

    What verl documents as k3+ (which raises at the version read). Both clamps are k3's: where its value is clipped
    there is no gradient either.
    """
    clamps = {"log_ratio_clamp": log_ratio_clamp}
    value = k3(logp, logp_ref, **clamps, value_clamp=value_clamp).detach()
    gradient = k2(logp, logp_ref, **clamps, value_clamp=None)
    if value_clamp is not None:
        gradient = torch.where(value.abs() < value_clamp, gradient, gradient.detach())
    return value + (gradient - gradient.detach())


def _estimate(
    formula: Callable[[Tensor], Tensor],
    logp: Tensor,
    logp_ref: Tensor,
    log_ratio_clamp: float | None,
    value_clamp: float | None,
) -> Tensor:
    d = logp_ref - logp
    if log_ratio_clamp is not None:
        d = d.clamp(-log_ratio_clamp, log_ratio_clamp)
    if value_clamp is None:
        return formula(d)
    with torch.no_grad():
        value = formula(d).clamp(-value_clamp, value_clamp)
        inside = value.abs() < value_clamp
    # The formula sees 0 where its value is clipped away, so that an overflowing exp there cannot send NaN backwards.
    return torch.where(inside, formula(torch.where(inside, d, 0.0)), value)


def _half_square(d: Tensor) -> Tensor:
    return d.square() / 2


def _k3(d: Tensor) -> Tensor:
    return torch.expm1(d) - d  # expm1: near 0 the two terms cancel to d^2 / 2, which exp(d) - 1 would lose in float32


class _Places(NamedTuple):
    in_loss: int
    before_baseline: int
    to_go: int
    to_old: bool = False


class Placement(_Places):
    """Where beta * KL enters: exactly one of three numbers is 1, or none is.

    in_loss: + beta * aggregate of the token KLs, with gradient. before_baseline: the reward loses beta * sum_t KL
    before baseline and scale (verl use_kl_in_reward, TRL's RLOOTrainer); it is ranked and rescaled with the reward,
    so an all-right group becomes a ranking by KL. to_go: the advantage of token t loses beta * sum_(u >= t) KL_u
    after baseline and scale (OpenRLHF, ROLL). The last two are between the policy before the update and the
    reference, without gradient. to_old: the penalty in the loss is on the distance to the policy before the update,
    not to the reference (Kimi k1.5 arXiv:2501.12599, prime-rl), and no reference is needed.

    A sum in the reward and a mean in the loss differ in scale by the answer's length: the same beta is not the same
    pressure. Raises ValueError for two places at once: that would count the KL twice, the most reported fault of this
    room.
    """

    __slots__ = ()

    def __new__(cls, in_loss: int, before_baseline: int, to_go: int, to_old: bool = False):
        places = (in_loss, before_baseline, to_go)
        if any(place not in (0, 1) for place in places) or sum(places) > 1:
            raise ValueError(
                f"The KL placement has in_loss={in_loss}, before_baseline={before_baseline}, to_go={to_go}; at most "
                "one of them is 1 and the others are 0, or the KL counts twice. Choose placement=none, loss, "
                "reward_before_baseline or reward_to_go."
            )
        if to_old and not in_loss:
            raise ValueError(
                "placement.to_old is true without in_loss=1; in the reward the policy before the update would be "
                "compared with itself. Set placement=loss_to_old, or to_old=false."
            )
        return super().__new__(cls, *places, to_old)


def sequence_kl(kl_tokens: Tensor, mask: Tensor) -> Tensor:
    """sum_t KL_it over the unmasked tokens, without gradient; 0 for a fully masked row.

    kl_tokens: (N, T) in nats; mask: (N, T) bool -> (N,) float64.
    """
    return torch.where(mask, kl_tokens.detach().double(), 0.0).sum(1)


def kl_to_go(kl_tokens: Tensor, mask: Tensor) -> Tensor:
    """sum_(u >= t) KL_iu over the unmasked tokens, without gradient; 0 where masked.

    kl_tokens: (N, T) in nats; mask: (N, T) bool -> (N, T) float64.
    """
    kept = torch.where(mask, kl_tokens.detach().double(), 0.0)
    return torch.where(mask, kept.flip(1).cumsum(1).flip(1), 0.0)
