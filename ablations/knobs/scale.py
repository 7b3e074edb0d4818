"""What a centred reward is divided by: centred, rewards, group (N,) -> advantages (N,), float64.

Rows without a score (NaN in rewards) are outside the statistics and get 0. A statistic over rewards that agree is
never a divisor: those rows get 0, whatever eps is.
"""

import torch
from torch import Tensor

from ablations.knobs import group as by_group


def _divide(centred: Tensor, rewards: Tensor, divisor: Tensor, nothing: Tensor) -> Tensor:
    """centred / divisor; 0 for unscored rows and where `nothing` says that the divisor means nothing."""
    zero = torch.isnan(rewards) | nothing
    return torch.where(zero, 0.0, centred.double() / torch.where(zero, 1.0, divisor))


def _check(ddof: int, eps: float) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"scale.ddof is {ddof}; it must be 0 (population) or 1 (sample). Set one of them.")
    if eps < 0:
        raise ValueError(
            f"scale.eps is {eps}; added to a standard deviation it must not be negative. Set it to 0 or more."
        )


def none(centred: Tensor, rewards: Tensor) -> Tensor:
    """A = c: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783), RLOO, prime-rl. (N,) -> (N,), in reward units."""
    return torch.where(torch.isnan(rewards), 0.0, centred.double())


def group_std(centred: Tensor, rewards: Tensor, group: Tensor, *, ddof: int, eps: float) -> Tensor:
    """A = c / (std of the group's rewards + eps).

    The normalisation of the first GRPO (Shao et al. 2024, arXiv:2402.03300, eq. 4). It weights nearly solved and
    nearly hopeless prompts up (Liu et al. 2025, arXiv:2503.20783), up to a weight of sqrt(G-1); at G = 2 and 3 with 0/1
    rewards it only rescales the step. Small shaped rewards are blown up to full size while their std is well above
    eps, and fade below it. Published code uses ddof 0 and 1 and eps from 1e-9 to 1e-4, so both are given, not
    defaulted. With baseline=group_mean and ddof 1, |A| <= (G-1)/sqrt(G).

    centred, rewards, group: (N,) -> (N,), in group standard deviations. A group whose rewards agree, or of one answer,
    gets 0.
    """
    _check(ddof, eps)
    return _divide(centred, rewards, by_group.std(rewards, group, ddof) + eps, by_group.agree(rewards, group))


def batch_std(centred: Tensor, rewards: Tensor, *, ddof: int, eps: float) -> Tensor:
    """A = c / (S + eps), S the std of the raw rewards over the rollout batch, differences between prompts included.

    Lite PPO (Liu et al. 2025, arXiv:2508.08221) and TRL scale_rewards="batch". One number for all groups: the weights
    between prompts stay those of scale=none, only the step changes from batch to batch. (N,) -> (N,); all 0 if the
    rewards of the batch agree.
    """
    _check(ddof, eps)
    everyone = by_group.one_group(rewards)
    return _divide(centred, rewards, by_group.std(rewards, everyone, ddof) + eps, by_group.agree(rewards, everyone))


def batch_std_of_centred(centred: Tensor, rewards: Tensor, *, ddof: int, eps: float) -> Tensor:
    """A = c / (S + eps), S the std over the batch of the centred rewards, so differences between prompts do not enter.

    ROLL group_reward_norm(div_std_global). Groups that agree are zeros in S, so the more of them, the larger A. (N,)
    -> (N,); all 0 if the centred rewards agree.
    """
    _check(ddof, eps)
    everyone = by_group.one_group(rewards)
    centred_of_scored = torch.where(torch.isnan(rewards), torch.nan, centred.double())
    divisor = by_group.std(centred_of_scored, everyone, ddof) + eps
    return _divide(centred, rewards, divisor, by_group.agree(centred_of_scored, everyone))


def gpg(centred: Tensor, rewards: Tensor) -> Tensor:
    """A = c * (rows / rows with a reward other than 0), over the whole batch.

    GPG (Chu et al. 2025, arXiv:2504.02546) as verl has it: it counts non-zero REWARDS where the paper counts groups
    with a non-zero advantage, so an all-right batch is not scaled up. Only for rewards that are 0 when wrong. (N,) ->
    (N,); 0 if no reward is other than 0.
    """
    everyone = by_group.one_group(rewards)
    paid = by_group.total((by_group.scored(rewards) & (rewards != 0)).double(), everyone)
    return _divide(centred, rewards, paid / by_group.count(rewards, everyone).clamp(min=1), paid == 0)


def max_rl(centred: Tensor, rewards: Tensor, group: Tensor) -> Tensor:
    """A = c / mean of the group's rewards; 0 where that mean is not above 0.

    MaxRL (arXiv:2602.02710; prime-rl orchestrator/algo/max_rl.py). With baseline=group_mean and 0/1 rewards a prompt
    of success rate p gets the expected weight (1 - (1-p)^(G-1)) / p, the log-likelihood gradient 1/p cut off at order
    G-1 (not G: that needs advantage -1 in the groups without a right answer, which this option sets to 0). centred,
    rewards, group (N,) -> (N,).
    """
    average = by_group.mean(rewards, group)
    return _divide(centred, rewards, average, average <= 0)


# These divide by a statistic of a prompt's own answers; with one answer per prompt there is none.
NEEDS_TWO_ANSWERS = (group_std,)
