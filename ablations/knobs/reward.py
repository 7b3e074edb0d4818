"""Graded answers -> numbers: parts of a reward, transforms of their sum, and placebos that a gain must beat.

A part gives one number per answer, (N,) float64, NaN where the answer could not be scored; the reward is the weighted
sum of the parts. `grades` is a list of records with `correct` (True, False, None = could not be told), `format`,
`chain` and `any_answer` (True or False). An answer cut off by the length limit (`truncated`) earns nothing for being
correct, whatever stands in it. Grades are read on the CPU, and parts made of them stay there.

Placebos know the grades and spoil them on purpose. Each draws once per answer from the generator it is given, so that
the draws of one answer do not depend on how others were graded, and leaves unscored answers unscored, so that the same
answers take part as in the real arm.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def correctness(grades: Sequence, truncated: Tensor) -> Tensor:
    """1 for a correct answer, 0 for a wrong or truncated one, NaN for one that could not be told. -> (N,)."""
    return _scores([grade.correct for grade in grades], grades, truncated)


def chain(grades: Sequence, truncated: Tensor) -> Tensor:
    """1 if every written step and the answer are right, 0 if not or truncated, NaN if it could not be told. -> (N,).

    Raises ValueError for grades of a task that checks no steps.
    """
    _check_there("chain", "checks no steps", [grade.chain for grade in grades])
    return _scores([grade.chain for grade in grades], grades, truncated)


def lenient(grades: Sequence) -> Tensor:
    """1 if the task's careless checker passes the answer, ended or not, to study reward hacking.

    Each task says in what way that checker is wrong; chain sums pass any of several offered answers. NaN where the
    strict verdict could not be told, so that both checkers score the same answers. -> (N,). Raises ValueError for
    grades of a task without one.
    """
    _check_there("lenient", "has no careless checker", [grade.any_answer for grade in grades])
    return _scores([grade.any_answer for grade in grades], grades, None)


def formatted(grades: Sequence) -> Tensor:
    """1 if the answer has the asked-for form, right or wrong, else 0 (as in DeepSeek-R1, arXiv:2501.12948). -> (N,)."""
    return torch.tensor([float(grade.format) for grade in grades], dtype=torch.float64)


def soft_overlong(lengths: Tensor, *, max_length: int, buffer: int, factor: float) -> Tensor:
    """factor * (0 up to length max_length - buffer, then falling linearly to -1 at max_length, and -1 beyond).

    Soft overlong punishment (DAPO, arXiv:2503.14476, eq. 13). Part of the reward, so it is normalised with it: inside
    an all-correct group group_std gives it full weight however small the factor. lengths (N,), max_length, buffer:
    tokens -> (N,), in [-factor, 0].
    """
    if not 0 < buffer <= max_length:
        raise ValueError(
            f"soft_overlong has buffer {buffer} and max_length {max_length} tokens; it needs 0 < buffer <= max_length. "
            "Set the buffer to the last part of the length that should cost something."
        )
    return -factor * ((lengths.double() - (max_length - buffer)) / buffer).clamp(0, 1)


def truncation(truncated: Tensor, *, penalty: float) -> Tensor:
    """`penalty` for an answer without an end token, else 0.

    Tulu 3 (arXiv:2411.15124) gives such an answer -10 in place of its reward; beside `correctness`, which pays it 0,
    that is a sum. truncated (N,) bool -> (N,), in reward units.
    """
    return torch.where(truncated, float(penalty), 0.0).double()


# --- placebos --------------------------------------------------------------------------------------------------------


def random(grades: Sequence, truncated: Tensor, generator: torch.Generator, *, probability: float) -> Tensor:
    """1 with the given probability, else 0, whatever the answer says (Shao et al. 2025, arXiv:2506.10947). -> (N,)."""
    _check_shares(probability=probability)
    true = correctness(grades, truncated)
    paid = _uniform(true, generator) < probability
    return torch.where(torch.isnan(true), torch.nan, paid.double())


def shuffled_gold(grades: Sequence, truncated: Tensor, generator: torch.Generator) -> Tensor:
    """The correctness rewards of the batch, handed out to other answers: permuted over all scored rows, across prompts.

    Keeps the share of paid answers in the batch exactly. Breaks the tie to the answer and to the prompt, so easy and
    hard prompts are paid alike, and fewer groups agree. -> (N,).
    """
    true = correctness(grades, truncated)
    return _shuffled(true, torch.zeros(len(true), dtype=torch.long), generator)


def shuffled_within_group(grades: Sequence, truncated: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
    """The correctness rewards of each group, permuted over its scored rows.

    Keeps every group's number of paid answers, hence the zero-advantage share and the size of the advantages: only the
    tie between reward and answer is cut. The strictest placebo of a group-relative method. -> (N,).
    """
    return _shuffled(correctness(grades, truncated), group.cpu(), generator)


def inverted(grades: Sequence, truncated: Tensor) -> Tensor:
    """1 - correctness: pays every answer that is not correct, truncated ones too. -> (N,)."""
    return 1 - correctness(grades, truncated)


def flips(
    grades: Sequence, truncated: Tensor, generator: torch.Generator, *, false_positive: float, false_negative: float
) -> Tensor:
    """Correctness seen by an unreliable checker: wrong answers pass and right ones fail, each with its own probability.

    The expected reward is (1 - false_positive - false_negative) correctness + false_positive, so the expected
    direction is right until the rates add up to 1. -> (N,).
    """
    _check_shares(false_positive=false_positive, false_negative=false_negative)
    true = correctness(grades, truncated)
    draw = _uniform(true, generator)
    seen = torch.where(true == 1, (draw >= false_negative).double(), (draw < false_positive).double())
    return torch.where(torch.isnan(true), torch.nan, seen)


# --- transforms of the total reward, before anything is subtracted ---------------------------------------------------


def none(rewards: Tensor) -> Tensor:
    """r. (N,) -> (N,)."""
    return rewards.double()


def psr(rewards: Tensor) -> Tensor:
    """r: positive samples only (PSR, Zhu et al. 2025, arXiv:2506.01347), for 0/1 rewards and baseline=none.

    The same numbers as `none`: what makes PSR of them is that no baseline turns the 0 of a wrong answer into a penalty.
    (N,) -> (N,).
    """
    return rewards.double()


def nsr(rewards: Tensor) -> Tensor:
    """r - 1: negative samples only (NSR, arXiv:2506.01347), for 0/1 rewards and baseline=none. (N,) -> (N,).

    Right answers get 0, wrong ones -1.
    """
    return rewards.double() - 1


def w_reinforce(rewards: Tensor, *, lam: float) -> Tensor:
    """lam r - (1 - r): both, right answers weighted by lam (W-REINFORCE, arXiv:2506.01347), for 0/1 rewards and
    baseline=none.

    In expectation PSR, NSR and this have one direction, with weights 1, 1 and 1 + lam; they differ in noise.
    (N,) -> (N,).
    """
    return lam * rewards.double() - (1 - rewards.double())


def affine(rewards: Tensor, *, scale: float, shift: float) -> Tensor:
    """scale * r + shift. (N,) -> (N,).

    Without effect under group_mean with group_std and eps 0 (scale > 0); a learning rate under group_mean alone.
    """
    return scale * rewards.double() + shift


# --- helpers ---------------------------------------------------------------------------------------------------------


def _scores(passed: Sequence[bool | None], grades: Sequence, truncated: Tensor | None) -> Tensor:
    """1 and 0 from verdicts, 0 where truncated, NaN where `correct` is None."""
    scores = torch.tensor([float(bool(verdict)) for verdict in passed], dtype=torch.float64)
    if truncated is not None:
        scores = torch.where(truncated.cpu(), 0.0, scores)
    untold = torch.tensor([grade.correct is None for grade in grades], dtype=torch.bool)
    return torch.where(untold, torch.nan, scores)


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """One number in [0, 1) per row, from the generator."""
    return torch.rand(like.shape[0], dtype=torch.float64, generator=generator, device=generator.device).to(like.device)


def _shuffled(rewards: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
    """Rewards permuted among the scored rows of each group."""
    out = rewards.clone()
    rank = _uniform(rewards, generator).argsort()
    for one in group.unique():
        rows = ((group == one) & ~torch.isnan(rewards)).nonzero()[:, 0]
        chosen = rank[torch.isin(rank, rows)]
        out[rows] = rewards[chosen]
    return out


def _check_there(part: str, lacks: str, verdicts: Sequence[bool | None]) -> None:
    if None in verdicts:
        raise ValueError(f"reward={part} needs a verdict that this task does not give: it {lacks}. Choose another.")


def _check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"{name} is {share}; it is a probability between 0 and 1. Set it so.")
