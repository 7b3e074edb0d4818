"""The task that goes with a table policy: numbered prompts, and a list of the answers that are right."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ablations.tasks.problem import Grade, Problem


@dataclass(frozen=True)
class Table:
    """prompts: how many, "0" to "P-1", drawn equally often. right: an answer is right if its text begins with one of
    these.

    The held-out problems are the same prompts: a table has nothing to generalise to.
    """

    prompts: int
    right: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "right", tuple(self.right))

    def draw(self, n: int, generator: random.Random, split: str) -> list[Problem]:
        """n prompts in random order: each equally often, and those over at random without replacement."""
        rounds, over = divmod(n, self.prompts)
        every = [index for _ in range(rounds) for index in generator.sample(range(self.prompts), self.prompts)]
        return [self.problem(index) for index in every + generator.sample(range(self.prompts), over)]

    def problem(self, index: int) -> Problem:
        """Prompt number `index`."""
        return Problem(key=str(index), prompt=str(index), answer=self.right[0], level=1)

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        """Right or wrong; every answer has the form that is asked for. Whether it ended is left to the reward."""
        correct = text.startswith(self.right)
        return Grade(correct=correct, format=True, answer=text, chain=correct, fillers=0, any_answer=correct)
