"""What a task hands out and what it gives back: plain records shared by every task."""

from enum import StrEnum
from typing import NamedTuple


class Problem(NamedTuple):
    """One question. `key` identifies it across runs; `level` is its difficulty, 1 is easiest."""

    key: str
    prompt: str
    answer: str
    level: int


class Outcome(StrEnum):
    """What became of checking one answer. The last two say something about the checker: they are no rewards."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no answer"
    FAILED = "checker failed"
    TIMED_OUT = "timed out"


class Grade(NamedTuple):
    """What the checker found in one answer.

    correct     the strict verdict; None means that it could not be told (unscored), which is not the same as wrong
    format      the answer has the asked-for form, whether or not it is right
    answer      the extracted final answer, None if there is none
    chain       every written step and the answer are right; None for a task that checks no steps
    fillers     number of filler characters
    steps       (char_end, reward) per written step, in order: the step is text[previous end:char_end], and its
                reward 1.0 if it is right, else 0.0
    any_answer  the verdict of the task's careless checker, which is wrong in a way that the task documents; None for a
                task without one
    outcome     why `correct` is what it is
    """

    correct: bool | None
    format: bool
    answer: str | None
    chain: bool | None = None
    fillers: int = 0
    steps: tuple[tuple[int, float], ...] = ()
    any_answer: bool | None = None
    outcome: Outcome | None = None
