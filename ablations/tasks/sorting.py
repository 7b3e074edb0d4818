"""A list of numbers to be sorted: `sort 31 4 15` is answered `4 15 31`."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ablations.tasks import splits
from ablations.tasks.demonstrator import END, PAD, UNKNOWN, checked
from ablations.tasks.problem import Grade, Outcome, Problem
from ablations.tasks.prompt import Prompt
from ablations.tasks.verify.check import grade_of, judge

HIGHEST = 10
_QUESTION = "Sort these numbers from the smallest to the largest: {}."
_LIST = re.compile(r"\[?\s*\d{1,6}(?:(?:\s*,\s*|\s+)\d{1,6})*\s*\]?", re.ASCII)


@dataclass(frozen=True)
class Sorting:
    """levels: level k has k + 1 numbers, equally often, each from 1 to 10. Numbers are from 0 to `below` - 1 and may
    occur twice. One list in `one_in` is held out; answers have at most `max_new_tokens` tokens.

    The careless checker (`lenient`) looks whether the answer is in order and not whether it has the numbers asked for.
    """

    levels: Sequence[int]
    below: int
    one_in: int
    max_new_tokens: int
    prompt: Prompt

    end, pad, unknown = END, PAD, UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", splits.checked_levels("sorting", self.levels, HIGHEST, self.one_in))
        if not 2 <= self.below <= 1_000_000:
            raise ValueError(f"task.below is {self.below}; numbers are smaller than that, so give 2 to 1,000,000.")

    @property
    def alphabet(self) -> str:
        """The characters of prompts and demonstrations, for a model that is trained from nothing."""
        signs = set("0123456789 =#,") | self.prompt.signs(_QUESTION)
        return "".join(sorted(signs - {END, PAD, UNKNOWN})) + END + PAD + UNKNOWN

    def draw(self, n: int, generator: random.Random, split: str) -> list[Problem]:
        """n problems of the split "train" or "heldout", with replacement; levels equally likely."""
        rules = dict(task="sorting", levels=self.levels, one_in=self.one_in)
        return splits.draw(self._any, n, generator, split, **rules)

    def _any(self, level: int, generator: random.Random) -> Problem:
        return self.pose([generator.randrange(self.below) for _ in range(level + 1)])

    def pose(self, numbers: Sequence[int]) -> Problem:
        """The problem with these numbers."""
        key = " ".join(map(str, numbers))
        question = _QUESTION.format(", ".join(map(str, numbers)))
        answer = " ".join(map(str, sorted(numbers)))
        return Problem(key, self.prompt.pose(question, key + "="), answer, len(numbers) - 1)

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        """Right: exactly the numbers asked for, in order, separated by spaces or commas, in brackets or not."""
        verdict = judge(text, ended, problem.answer, self.prompt.extract, _same)
        form = bool(ended) and self.prompt.extract.form(text)
        given = numbers_in(verdict.answer or text)
        return grade_of(verdict, form, lenient=bool(given) and given == sorted(given))

    def gold(self, problem: Problem) -> str:
        """The right response in the asked-for form, without the end token."""
        return self.prompt.extract.write(problem.answer)

    def demonstration(self, problem: Problem, rng: random.Random, style) -> str:
        """A response in the given style; None is the right one. A slip swaps two neighbours that differ, or, where all
        are equal, changes one; an offer is a list in order that is not the one asked for."""
        if style is None:
            return self.gold(problem)
        style, right = checked(style, "sorting"), numbers_in(problem.answer)
        if rng.random() < style.offers:
            return self.prompt.extract.write(str(min(right)))
        if rng.random() < style.share_wrong(problem.level):
            places = [i for i in range(len(right) - 1) if right[i] != right[i + 1]]
            if places:
                i = rng.choice(places)
                right[i], right[i + 1] = right[i + 1], right[i]
            else:
                right[0] = (right[0] + 1) % self.below
        return self.prompt.extract.write(" ".join(map(str, right)))


def numbers_in(answer: str) -> list[int] | None:
    """The numbers of a list that is written as one, or None. `4 15 31`, `4, 15, 31` and `[4, 15, 31]` are lists."""
    answer = answer.strip()
    if len(answer) > 1000 or answer.startswith("[") != answer.endswith("]") or not _LIST.fullmatch(answer):
        return None
    return [int(word) for word in answer.strip("[] ").replace(",", " ").split()]


def _same(answer: str, gold: str) -> Outcome:
    return Outcome.RIGHT if numbers_in(answer) == numbers_in(gold) else Outcome.WRONG
