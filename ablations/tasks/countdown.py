"""Make a number out of others: with 3, 5 and 2, `(3+5)*2` makes 16. Several answers are right.

The answer is an expression. It is taken apart by the parser below and never run as a program.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ablations.tasks import splits
from ablations.tasks.demonstrator import END, PAD, UNKNOWN, checked
from ablations.tasks.problem import Grade, Outcome, Problem
from ablations.tasks.prompt import Prompt
from ablations.tasks.verify.check import grade_of, judge

HIGHEST = 5
LONGEST = 200  # characters; no expression with six numbers needs more
_QUESTION = "Using each of the numbers {} exactly once, with + - * / and brackets, write an expression that equals {}."
_TOKEN = re.compile(r"\s*(?:(\d{1,9})|([-+*/()]))", re.ASCII)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class Countdown:
    """levels: level k gives k + 1 numbers, equally often, each from 1 to 5. Numbers are from 1 to `below` - 1, targets
    from 1 to `target_below` - 1. One problem in `one_in` is held out; answers have at most `max_new_tokens` tokens.

    Right is an expression in + - * / and brackets that uses every number exactly once and has the target as its exact
    value; `= 16` may follow. The careless checker (`lenient`) looks at the value alone: writing the target down passes.
    """

    levels: Sequence[int]
    below: int
    target_below: int
    one_in: int
    max_new_tokens: int
    prompt: Prompt

    end, pad, unknown = END, PAD, UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", splits.checked_levels("countdown", self.levels, HIGHEST, self.one_in))
        if self.below < 3 or self.target_below < 3:
            raise ValueError(
                f"task.below is {self.below} and task.target_below {self.target_below}; both bound numbers from "
                "above, so give at least 3."
            )

    @property
    def alphabet(self) -> str:
        """The characters of prompts and demonstrations, for a model that is trained from nothing."""
        signs = set("0123456789+-*/()=>, #") | self.prompt.signs(_QUESTION)
        return "".join(sorted(signs - {END, PAD, UNKNOWN})) + END + PAD + UNKNOWN

    def draw(self, n: int, generator: random.Random, split: str) -> list[Problem]:
        """n solvable problems of the split "train" or "heldout", with replacement; levels equally likely."""
        rules = dict(task="countdown", levels=self.levels, one_in=self.one_in)
        return splits.draw(self._any, n, generator, split, **rules)

    def _any(self, level: int, generator: random.Random) -> Problem:
        while True:
            numbers = [generator.randrange(1, self.below) for _ in range(level + 1)]
            value, expression = _combined(numbers, generator)
            if value.denominator == 1 and 0 < value < self.target_below:
                return self.pose(numbers, int(value), expression)

    def pose(self, numbers: Sequence[int], target: int, expression: str) -> Problem:
        """The problem with these numbers; `expression` is one of its right answers."""
        listed = ",".join(map(str, numbers))
        question = _QUESTION.format(", ".join(map(str, numbers)), target)
        key = f"{','.join(map(str, sorted(numbers)))}>{target}"  # the same numbers in another order: the same problem
        return Problem(key, self.prompt.pose(question, f"{listed}>{target}="), expression, len(numbers) - 1)

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        """Extract, take apart, compare with the target. Takes any text and never raises."""
        numbers, target = _given(problem)
        verdict = judge(text, ended, problem.answer, self.prompt.extract, _checker(numbers, target))
        form = bool(ended) and self.prompt.extract.form(text)
        read = value_of(verdict.answer or text.strip(), target)
        return grade_of(verdict, form, lenient=read is not None and read[0] == target)

    def gold(self, problem: Problem) -> str:
        """A right response in the asked-for form, without the end token."""
        return self.prompt.extract.write(problem.answer)

    def demonstration(self, problem: Problem, rng: random.Random, style) -> str:
        """A response in the given style; None is a right one. A slip combines the numbers to another value; an offer
        writes the target down."""
        if style is None:
            return self.gold(problem)
        style, (numbers, target) = checked(style, "countdown"), _given(problem)
        if rng.random() < style.offers:
            return self.prompt.extract.write(str(target))
        if rng.random() < style.share_wrong(problem.level):
            for _ in range(20):  # two ones make nothing but 1 and 2: a wrong value may not exist
                value, expression = _combined(rng.sample(numbers, len(numbers)), rng)
                if value != target:
                    return self.prompt.extract.write(expression)
        return self.gold(problem)


def value_of(text: str, target: int | None = None) -> tuple[Fraction, list[int]] | None:
    """The exact value of an expression and the numbers in it; None for what is none, or divides by zero.

    Operator precedence as usual, no sign in front of a number. `expression = target` is read as the expression.
    """
    if len(text) > LONGEST:
        return None
    text = text.strip().strip("$").strip().rstrip(".").translate(_SIGNS)
    text, equals, claimed = text.partition("=")
    if equals and (not claimed.strip().isascii() or claimed.strip() != str(target)):
        return None
    tokens = _tokens(text)
    return None if tokens is None else _value(tokens)


def _tokens(text: str) -> list[str] | None:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            return None
        tokens.append(match[1] or match[2])
        at = match.end()
    return tokens


def _value(tokens: Sequence[str]) -> tuple[Fraction, list[int]] | None:
    """Dijkstra's two stacks: values wait for operators, operators for those that bind less."""
    values: list[Fraction] = []
    waiting: list[str] = []
    numbers: list[int] = []
    operand = True  # whether a number or an opening bracket must come next
    for at, token in enumerate([*tokens, ")"]):
        if operand != (token.isdigit() or token == "("):
            return None
        if token.isdigit():
            values.append(Fraction(int(token)))
            numbers.append(int(token))
            operand = False
        elif token == "(":
            waiting.append(token)
        else:
            rank = _RANK.get(token, 0)
            while waiting and waiting[-1] != "(" and _RANK[waiting[-1]] >= rank:
                if not _apply(waiting.pop(), values):
                    return None
            if rank:
                waiting.append(token)
                operand = True
            elif at == len(tokens):  # the bracket added above: nothing may be open any more
                return None if waiting else (values[0], numbers)
            elif waiting:
                waiting.pop()
            else:
                return None
    return None


def _apply(sign: str, values: list[Fraction]) -> bool:
    right, left = values.pop(), values.pop()
    if sign == "/" and not right:
        return False
    values.append(_OPERATIONS[sign](left, right))
    return True


_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def _checker(numbers: Sequence[int], target: int) -> Callable[[str, str], Outcome]:
    def same(answer: str, _: str) -> Outcome:
        read = value_of(answer, target)
        right = read is not None and read[0] == target and sorted(read[1]) == sorted(numbers)
        return Outcome.RIGHT if right else Outcome.WRONG

    return same


def _given(problem: Problem) -> tuple[list[int], int]:
    listed, _, target = problem.key.partition(">")
    return [int(word) for word in listed.split(",")], int(target)


def _combined(numbers: Sequence[int], generator: random.Random) -> tuple[Fraction, str]:
    """The numbers joined by random operations, brackets around every inner one; a division by zero adds instead."""
    parts = [(Fraction(n), str(n)) for n in numbers]
    while len(parts) > 1:
        i = generator.randrange(len(parts) - 1)
        (a, left), (b, right) = parts[i : i + 2]
        sign = generator.choice("+-*/" if b else "+-*")
        joined = f"{left}{sign}{right}" if len(parts) == 2 else f"({left}{sign}{right})"
        parts[i : i + 2] = [(_OPERATIONS[sign](a, b), joined)]
    return parts[0]
