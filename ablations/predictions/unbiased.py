"""What C right of M answers say, without bias, about groups of G answers to the same prompt.

With p the success rate and c ~ Bin(G, p), any E[value(c)] is a polynomial of degree G in p. Its value at the estimate
C/M is biased, for the noise of M answers is taken for knowledge of p; the mean of value(c) over all groups that could
be drawn from the M answers is not, whatever p is (a U-statistic: Hoeffding 1948, doi:10.1214/aoms/1177730196).
"""

import functools
import math

import torch
from torch import Tensor

from ablations.measure import as_floats as numbers


@functools.cache
def chances(correct: int, answers: int, size: int) -> Tensor:
    """C(C, c) C(M-C, G-c) / C(M, G) for c = 0 .. G: how often `size` of `answers` answers, of which `correct` are
    right, hold c right ones. -> (G+1,)."""
    if size > answers:
        raise ValueError(
            f"groups of {size} were asked for and there are {answers} answers to each problem; a group needs that many."
        )
    every = math.comb(answers, size)
    ways = [math.comb(correct, c) * math.comb(answers - correct, size - c) for c in range(size + 1)]
    return numbers([way / every for way in ways])  # whole numbers of any size: rounded once, in the division


def expected(value: Tensor, rewards: Tensor) -> Tensor:
    """Unbiased estimates of E[value(c)], c ~ Bin(G, p), one per prompt. value (G+1,) by c; rewards (P, M) 0/1 ->
    (P,)."""
    answers, size = rewards.shape[1], len(value) - 1
    return torch.stack([chances(int(c), answers, size) @ value for c in rewards.sum(1).tolist()])


def variance(rewards: Tensor) -> Tensor:
    """Unbiased estimates of p (1-p): C (M-C) / (M (M-1)). rewards (P, M) 0/1 -> (P,)."""
    return expected(numbers([0.0, 0.5, 0.0]), rewards)


def standard_error(values: Tensor) -> float:
    """Of the mean of independent values (n,), from how they scatter."""
    return (values.std() / math.sqrt(len(values))).item()
