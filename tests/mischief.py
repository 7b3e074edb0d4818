"""A part of the reward that makes trouble in some cells of a crossing, by their seed, until it is cured."""

import os
import signal
from pathlib import Path

import torch
from torch import Tensor

RAISES, DIVERGES, KILLED = 3, 5, 7
ARGUMENTS = [
    "+reward.mischief.weight=1", "+reward.mischief.part._target_=mischief.part", "+reward.mischief.part._partial_=true",
    "+reward.mischief.part.seed=${seed}", "scale=none",
]


def part(lengths: Tensor, *, seed: int) -> Tensor:
    """0 for every answer (N,) -> (N,); unless the file $MISCHIEF_CURE is there, one seed raises, one gets rewards that
    no float32 gradient can hold, and one kills its own process."""
    nothing = torch.zeros(len(lengths), dtype=torch.float64)
    if Path(os.environ["MISCHIEF_CURE"]).exists():
        return nothing
    if seed == RAISES:
        raise RuntimeError("boom")
    if seed == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1e300 * torch.arange(len(lengths), dtype=torch.float64) if seed == DIVERGES else nothing


def infinite(lengths: Tensor) -> Tensor:
    """An answer without an end to its reward, in the first row (N,) -> (N,)."""
    return torch.cat([torch.full((1,), torch.inf, dtype=torch.float64), torch.zeros(len(lengths) - 1)])
