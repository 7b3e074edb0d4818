"""How good a policy is on held-out problems: sampled and greedy accuracy, by level, and unbiased pass@k."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ablations.tasks.problem import Grade, Problem


class Answer(NamedTuple):
    """One graded answer; length in tokens, the end token included."""

    problem: Problem
    text: str
    grade: Grade
    length: int
    ended: bool


def heldout(
    policy,
    *,
    task,
    problems: int,
    batch: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    samples: int = 1,
    ks: Sequence[int] = (),
    asked: Sequence[Problem] | None = None,
) -> dict[str, float]:
    """Accuracy on `problems` held-out problems, each answered `samples` times at `temperature` and once greedily.

    -> accuracy/heldout, accuracy/heldout_lenient (by the task's careless checker), accuracy/heldout/level_<k>,
    accuracy/heldout_greedy, and accuracy/heldout/pass_at_<k> for k in ks;
    answers that could not be graded are left out. The problems depend on `seed` alone, so equal seeds ask every policy
    the same questions; the draws on `seed` and `batch`, the number of problems sampled at once. No other generator is
    moved. asked: those problems, if the caller has them already; drawing them costs a tenth of a small evaluation.
    Raises ValueError for a k above `samples`.
    """
    if ks and max(ks) > samples:
        raise ValueError(
            f"evaluate.ks is {list(ks)} with {samples} samples per problem; pass@k needs at least k. Set "
            f"evaluate.samples={max(ks)} or ask for a smaller k."
        )
    asked = questions(task, problems, seed) if asked is None else asked
    settings = dict(batch=batch, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    sampled = list(answers(policy, task, asked, samples=samples, greedy=False, **settings))
    metrics = {"accuracy/heldout": _share(sampled)}
    if lenient := [float(a.grade.any_answer) for a in sampled if None not in (a.grade.correct, a.grade.any_answer)]:
        metrics["accuracy/heldout_lenient"] = sum(lenient) / len(lenient)
    for level in sorted({problem.level for problem in asked}):
        metrics[f"accuracy/heldout/level_{level}"] = _share([a for a in sampled if a.problem.level == level])
    # A greedy answer is the same every time, so a problem drawn twice is answered once.
    distinct = list(dict.fromkeys(asked))
    greedy = answers(policy, task, distinct, samples=1, greedy=True, **settings)
    by_problem = {answer.problem: answer for answer in greedy}
    metrics["accuracy/heldout_greedy"] = _share([by_problem[problem] for problem in asked])
    right = [sum(bool(a.grade.correct) for a in sampled[i : i + samples]) for i in range(0, len(sampled), samples)]
    for k in ks:
        metrics[f"accuracy/heldout/pass_at_{k}"] = sum(pass_at_k(samples, c, k) for c in right) / len(right)
    return {name: value for name, value in metrics.items() if not math.isnan(value)}


def questions(task, problems: int, seed: int) -> list[Problem]:
    """The held-out problems that this seed asks."""
    return task.draw(problems, random.Random(f"problems {seed}"), "heldout")


def answers(
    policy,
    task,
    problems: Sequence[Problem],
    *,
    samples: int,
    greedy: bool,
    batch: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
) -> Iterator[Answer]:
    """`samples` adjacent graded answers to each problem, in the order of `problems`; the draws belong to `seed`."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, len(problems), batch):
        part = problems[start : start + batch]
        sample = policy.sample(
            [problem.prompt for problem in part],
            samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            generator=generator,
            greedy=greedy,
        )
        rows = zip(sample.texts, sample.mask.sum(1).tolist(), sample.ended.tolist(), strict=True)
        for i, (text, length, ended) in enumerate(rows):
            problem = part[i // samples]
            yield Answer(problem, text, task.grade(problem, text, ended), length, ended)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the unbiased estimate, from n answers of which c are right, of the chance that at
    least one
    of k is (Chen et al. 2021, arXiv:2107.03374, eq. 1). 1 - (1 - c / n)^k would be biased downwards."""
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def _share(graded: Sequence[Answer]) -> float:
    verdicts = [answer.grade.correct for answer in graded if answer.grade.correct is not None]
    return sum(verdicts) / len(verdicts) if verdicts else math.nan
