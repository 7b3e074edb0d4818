"""What is subtracted from a reward: rewards (N,) -> centred rewards (N,), float64.

In every option an answer without a score (NaN) is outside the statistics and gets 0. Where the baseline is a statistic
of the group, a group whose rewards agree, or of which one answer is left, gets exactly 0.
"""

import torch
from torch import Tensor

from ablations.knobs import group as by_group


def _difference(rewards: Tensor, baseline: Tensor | float, nothing: Tensor | bool = False) -> Tensor:
    """r - baseline; 0 for unscored rows and where `nothing` says that there is nothing to compare."""
    rewards = rewards.double()
    return torch.where(torch.isnan(rewards) | nothing, 0.0, rewards - baseline)


def none(rewards: Tensor) -> Tensor:
    """c_i = r_i: REINFORCE without a baseline; also PSR and NSR (arXiv:2506.01347), whose signs a transform gives.

    rewards (N,) -> (N,).
    """
    return _difference(rewards, 0.0)


def group_mean(rewards: Tensor, group: Tensor) -> Tensor:
    """c_i = r_i - mean of the row's group (Shao et al. 2024, arXiv:2402.03300, eq. 4 without its division).

    The answer is part of its own baseline, so the expected gradient is (G-1)/G of the true one: at fixed G a smaller
    step, across group sizes a different one. rewards, group (N,) -> (N,).
    """
    return _difference(rewards, by_group.mean(rewards, group), by_group.agree(rewards, group))


def leave_one_out(rewards: Tensor, group: Tensor) -> Tensor:
    """c_i = r_i - mean of the other answers of the group = G/(G-1) (r_i - group mean), G counting scored answers.

    RLOO (Ahmadian et al. 2024, arXiv:2402.14740): unbiased. At fixed G it differs from group_mean by a learning rate
    only. rewards, group (N,) -> (N,).
    """
    others = (by_group.count(rewards, group) - 1).clamp(min=1)
    return _difference(
        rewards, (by_group.total(rewards, group) - rewards.double()) / others, by_group.agree(rewards, group)
    )


def batch_mean(rewards: Tensor) -> Tensor:
    """c_i = r_i - mean over all rows of the rollout batch (REINFORCE++, arXiv:2501.03262; ROLL norm_mean_type=batch).

    Works with one answer per prompt. Easy prompts keep positive, hard prompts negative advantages, so an all-right
    group is not 0; only a batch whose rewards all agree is. (N,) -> (N,).
    """
    everyone = by_group.one_group(rewards)
    return _difference(rewards, by_group.mean(rewards, everyone), by_group.agree(rewards, everyone))


def opo(rewards: Tensor, group: Tensor, lengths: Tensor) -> Tensor:
    """c_i = r_i - sum_g(n r) / sum_g(n), n the length of the answer in tokens: the group mean weighted by length.

    OPO (Hao et al. 2025, arXiv:2505.23585): the variance-optimal baseline if the squared score grows like the length.
    The centred rewards of a group do not sum to 0; equal lengths give group_mean. rewards, group, lengths (N,) ->
    (N,).
    """
    weight = torch.where(by_group.scored(rewards), lengths.double(), 0.0)
    tokens = by_group.total(weight, group).clamp(min=1)  # a group without any token has no one to receive an advantage
    return _difference(
        rewards, by_group.total(weight * rewards.double(), group) / tokens, by_group.agree(rewards, group)
    )


def best_minus_second(rewards: Tensor, group: Tensor) -> Tensor:
    """c = largest minus second largest reward of the group for its best answer, 0 for the others and for a tie.

    With scale=group_std the whole pass@k estimator of verl (grpo_passk); alone, its expectation is 1/G of the gradient
    of the expected best of G answers. With 0/1 rewards only groups with exactly one right answer teach. rewards, group
    (N,) -> (N,).
    """
    _, best = by_group.extremes(rewards, group)
    is_best = rewards.double() == best  # never true for NaN
    _, second = by_group.extremes(torch.where(is_best, torch.nan, rewards.double()), group)
    alone = is_best & (by_group.total(is_best.double(), group) == 1) & ~by_group.agree(rewards, group)
    return torch.where(alone, best - second, 0.0)


class RunningMean:
    """c_i = r_i - b, with b an exponential mean of past batches: after the batch b := decay b + (1 - decay) mean(r).

    The classical REINFORCE baseline (Williams 1992). The batch at hand is centred with the value from before its own
    update, so no answer is part of its own baseline; the first batch is centred with `start`. One call is one update:
    call it once per rollout batch. It is one number for all prompts, so an all-right group is not 0, and it must not
    be used for several reward parts apart.

    decay: share of the old value kept, in [0, 1). start: the value before any batch, in reward units. rewards (N,) ->
    (N,).
    """

    def __init__(self, decay: float, start: float):
        if not 0 <= decay < 1:
            raise ValueError(
                f"baseline.decay is {decay}; a running mean needs 0 <= decay < 1. Set for example baseline.decay=0.9."
            )
        self.decay = decay
        self.value = float(start)

    def __call__(self, rewards: Tensor) -> Tensor:
        centred = _difference(rewards, self.value)
        known = rewards.double()[by_group.scored(rewards)]
        if known.numel():
            self.value = self.decay * self.value + (1 - self.decay) * known.mean().item()
        return centred

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


# These compare an answer with others of its group; with one answer per prompt they have nothing to say.
NEEDS_TWO_ANSWERS = (group_mean, leave_one_out, opo, best_minus_second)
