"""An advantage per answer -> an advantage per token (N, T), float64, 0 at masked positions."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ablations.knobs import group as by_group


def outcome(advantage: Tensor, mask: Tensor) -> Tensor:
    """A_it = A_i: every token shares the answer's advantage (DeepSeekMath, arXiv:2402.03300, sec. 4.1.2).

    advantage (N,), mask (N, T) -> (N, T).
    """
    return torch.where(mask, advantage.double()[:, None], 0.0)


def process(
    mask: Tensor,
    group: Tensor,
    step_ends: Sequence[Sequence[int]],
    step_rewards: Sequence[Sequence[float]],
    *,
    ddof: int,
    eps: float,
) -> Tensor:
    """A_it = sum over the steps j that end at or after token t of (r_j - mean) / (std + eps), mean and std over all
    steps of the group.

    DeepSeekMath (arXiv:2402.03300, sec. 4.1.3). A token answers for its own step and for what follows from it; tokens
    after the last step get 0. The statistics weigh answers by their number of steps. This replaces the answer's
    advantage: reward, baseline and scale have no effect on it. (The sum favours answers with many steps that are
    better than average: the sum over a group's answers is 0 at their first tokens, and need not be 0 later.)

    mask (N, T), group (N,); step_ends[i]: positions 0..T-1 of the last token of each step of row i; step_rewards[i]:
    its rewards, as many, NaN = not scored (outside the statistics, worth 0). -> (N, T). A group whose step rewards
    agree, or with one step, gets 0.
    """
    if (rows := {len(mask), len(group), len(step_ends), len(step_rewards)}) != {len(mask)}:
        raise ValueError(
            f"mask, group, step_ends and step_rewards speak of {sorted(rows)} rows; they must have the same number."
        )
    width = mask.shape[1]
    for row, (ends, rewards) in enumerate(zip(step_ends, step_rewards, strict=True)):
        if len(ends) != len(rewards) or any(not 0 <= end < width for end in ends):
            raise ValueError(
                f"Row {row} has step_ends {list(ends)} and step_rewards {list(rewards)}; it needs one reward per step, "
                f"and ends that are token positions from 0 to {width - 1}. Correct the steps of the task's grades."
            )
    long = {"dtype": torch.long, "device": mask.device}
    owner = torch.tensor([row for row, ends in enumerate(step_ends) for _ in ends], **long)
    end = torch.tensor([end for ends in step_ends for end in ends], **long)
    reward = torch.tensor([r for rewards in step_rewards for r in rewards], dtype=torch.float64, device=mask.device)
    steps_of = group[owner]
    nothing = torch.isnan(reward) | by_group.agree(reward, steps_of)
    divisor = torch.where(nothing, 1.0, by_group.std(reward, steps_of, ddof) + eps)
    score = torch.where(nothing, 0.0, (reward - by_group.mean(reward, steps_of)) / divisor)
    at_end = torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    at_end.index_put_((owner, end), score, accumulate=True)  # accumulate: two steps may end on one token
    return torch.where(mask, at_end.flip(1).cumsum(1).flip(1), 0.0)
