"""From a response to one of five outcomes. Only three of them are verdicts, and only those become rewards."""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from ablations.tasks.problem import Grade, Outcome
from ablations.tasks.verify.extract import Extract
from ablations.tasks.verify.number import number


class Verdict(NamedTuple):
    """outcome; answer: what was read, None for no answer; reason: why a checker failed."""

    outcome: Outcome
    answer: str | None
    reason: str = ""


class UnreadableGold(ValueError):
    """A gold answer that the checker cannot read. Found when data loads: later it would pay every answer, or none."""


_ANYWHERE = re.compile(r"[-\u2212\u2013]?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?", re.ASCII)
_number = lru_cache(4096)(number)  # a gold answer is read once, however many answers are held against it


def same_number(answer: str, gold: str) -> Outcome:
    """RIGHT if both write the same number exactly, else WRONG. Raises UnreadableGold."""
    wanted = gold_number(gold)
    return Outcome.RIGHT if number(answer) == wanted else Outcome.WRONG


def gold_number(gold: str) -> Fraction:
    """The number of a gold answer. Raises UnreadableGold for a text that is none."""
    if (value := _number(gold)) is None:
        raise UnreadableGold(
            f"the gold answer {gold!r} is no plain number; write it as one (3, -2.5, 1/3, 1,800), or let "
            "task.same be the symbolic checker, task/same=symbolic."
        )
    return value


def judge(text: str, ended: bool, gold: str, extract: Extract, same: Callable[[str, str], Outcome]) -> Verdict:
    """Read the answer, then compare it. A response that was cut off has no answer: it did not come to its end."""
    answer = extract.read(text) if ended else None
    if answer is None:
        return Verdict(Outcome.NO_ANSWER, None)
    outcome = same(answer, gold)
    if isinstance(outcome, tuple):
        return Verdict(outcome[0], answer, outcome[1])
    return Verdict(outcome, answer)


def grade_of(verdict: Verdict, form: bool, lenient: bool) -> Grade:
    """A Grade of an answer without steps: unscored (None) where the checker failed or ran out of time."""
    told = verdict.outcome in (Outcome.RIGHT, Outcome.WRONG, Outcome.NO_ANSWER)
    correct = verdict.outcome is Outcome.RIGHT if told else None
    return Grade(correct, form, verdict.answer, outcome=verdict.outcome, any_answer=lenient)


def any_number(text: str, gold: str) -> bool:
    """The careless checker of numeric tasks: whether any number that stands in the text, ended or not, is the gold one.

    Wrong in a known way: naming many numbers passes, and so does repeating a number of the question.
    """
    wanted = gold_number(gold)
    return any(number(piece) == wanted for piece in set(_ANYWHERE.findall(text)))
