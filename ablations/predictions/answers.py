"""Many graded answers to each of many problems, from one base policy: what success rates are measured on."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ablations import evaluate
from ablations.measure import as_floats as numbers
from ablations.policy.load import started
from ablations.state import seed_of

PROBLEMS_AT_ONCE = 10  # larger batches of answers leave a processor's cache


class Graded(NamedTuple):
    """level (P,) float64 by problem; rewards (P, M) float64, 1 where an answer is right, else 0; M is even."""

    level: Tensor
    rewards: Tensor

    @property
    def halves(self) -> tuple[Tensor, Tensor]:
        """(P, M/2) twice: the one to predict from, the other to measure on, so that no answer is compared with
        itself."""
        first, second = self.rewards.chunk(2, dim=1)
        return first, second


def graded(
    results: Path,
    *,
    task: Any,
    model: Callable,
    base: Callable,
    base_seed: int,
    seed: int,
    problems: int,
    answers: int,
) -> Graded:
    """`answers` sampled answers, temperature 1, to each of `problems` different training problems of every level.

    The policy is the base policy of the runs, from results/bases, or trained if it is not there yet; `seed` chooses the
    problems and the draws. Raises ValueError for an odd number of answers, which has no halves.
    """
    if answers % 2:
        raise ValueError(f"answers is {answers}; they are split into halves. Give an even number.")
    folder = base(model=model, task=task, results=results, progress=False, seed=base_seed)
    asked = [problem for level in task.levels for problem in _different(task, level, problems, seed)]
    sampled = evaluate.answers(
        started(folder, adapter=lambda policy: policy, recompute=False),
        task,
        asked,
        samples=answers,
        greedy=False,
        batch=PROBLEMS_AT_ONCE,
        max_new_tokens=task.max_new_tokens,
        temperature=1.0,
        seed=seed_of("predictions", seed),
    )
    right = numbers([float(answer.grade.correct) for answer in sampled])
    return Graded(numbers([problem.level for problem in asked]), right.view(len(asked), answers))


def _different(task, level: int, problems: int, seed: int) -> list:
    """Problems of one level, none twice: the standard error over problems takes them for independent."""
    generator = random.Random(f"predictions {seed} level {level}")
    only, found = dataclasses.replace(task, levels=[level]), {}
    for _ in range(100):
        found |= {problem.key: problem for problem in only.draw(problems, generator, "train")}
        if len(found) >= problems:
            return list(found.values())[:problems]
    raise ValueError(f"level {level} has only {len(found)} different problems, not {problems}. Ask for fewer.")
