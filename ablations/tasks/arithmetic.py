"""Two numbers and one of + - *, with signs and several digits: `-12*7=` is answered `-84`."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ablations.tasks import splits
from ablations.tasks.demonstrator import END, PAD, UNKNOWN, checked
from ablations.tasks.problem import Grade, Outcome, Problem
from ablations.tasks.prompt import Prompt
from ablations.tasks.verify.check import any_number, grade_of, judge
from ablations.tasks.verify.extract import unwrapped

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
HIGHEST = 6


@dataclass(frozen=True)
class Arithmetic:
    """levels: how many digits the numbers may have, equally often, each from 1 to 6. operations: some of + - *,
    equally often. signs: whether numbers may be negative. One problem in `one_in` is held out; answers have at most
    `max_new_tokens` tokens. same: how an answer is compared with the gold one.

    The careless checker (`lenient`) passes any text in which the right number occurs.
    """

    levels: Sequence[int]
    operations: Sequence[str]
    signs: bool
    one_in: int
    max_new_tokens: int
    prompt: Prompt
    same: Callable[[str, str], Outcome]

    end, pad, unknown = END, PAD, UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", splits.checked_levels("arithmetic", self.levels, HIGHEST, self.one_in))
        object.__setattr__(self, "same", unwrapped(self.same))
        object.__setattr__(self, "operations", tuple(self.operations))
        if not self.operations or not set(self.operations) <= set(OPERATIONS):
            raise ValueError(
                f"task.operations is {list(self.operations)}; allowed are {', '.join(OPERATIONS)}, at least one."
            )

    @property
    def alphabet(self) -> str:
        """The characters of prompts and demonstrations, for a model that is trained from nothing."""
        signs = set("0123456789+-*=#") | self.prompt.signs("What is (1) ?") | set(", ")
        return "".join(sorted(signs - {END, PAD, UNKNOWN})) + END + PAD + UNKNOWN

    def draw(self, n: int, generator: random.Random, split: str) -> list[Problem]:
        """n problems of the split "train" or "heldout", with replacement; levels and operations equally likely."""
        rules = dict(task="arithmetic", levels=self.levels, one_in=self.one_in)
        return splits.draw(self._any, n, generator, split, **rules)

    def _any(self, level: int, generator: random.Random) -> Problem:
        sign = generator.choice(self.operations)
        size = 10**level
        a, b = (generator.randrange(1 - size if self.signs else 0, size) for _ in range(2))
        return self.pose(a, sign, b, level)

    def pose(self, a: int, sign: str, b: int, level: int = 1) -> Problem:
        """The problem a sign b."""
        spoken = f"({b})" if b < 0 else f"{b}"
        key = f"{a}{sign}{spoken}"
        prompt = self.prompt.pose(f"What is {a} {sign} {spoken}?", f"{a}{sign}{b}=")
        return Problem(key, prompt, str(OPERATIONS[sign](a, b)), level)

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        """Extract, then compare as numbers. Takes any text and never raises."""
        verdict = judge(text, ended, problem.answer, self.prompt.extract, self.same)
        form = bool(ended) and self.prompt.extract.form(text)
        return grade_of(verdict, form, lenient=any_number(text, problem.answer))

    def gold(self, problem: Problem) -> str:
        """The right response in the asked-for form, without the end token."""
        return self.prompt.extract.write(problem.answer)

    def demonstration(self, problem: Problem, rng: random.Random, style) -> str:
        """A response in the given style; None is the right one. A slip is off by 1, 2 or 10, or has the other sign."""
        if style is None:
            return self.gold(problem)
        style, right = checked(style, "arithmetic"), int(problem.answer)
        near = sorted({right + gap for gap in (-10, -2, -1, 1, 2, 10)} | ({-right} - {right}))
        if rng.random() < style.offers:
            offered = [*rng.sample(near, 2), right]
            rng.shuffle(offered)
            return ", ".join(map(str, offered))
        wrong = rng.random() < style.share_wrong(problem.level)
        return self.prompt.extract.write(str(rng.choice(near)) if wrong else problem.answer)
