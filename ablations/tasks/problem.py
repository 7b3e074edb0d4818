"""What a task hands out and what it gives back: two plain records shared by every task."""

from typing import NamedTuple


class Problem(NamedTuple):
    """One question. `key` identifies it across runs; `level` is its difficulty, 1 is easiest."""

    key: str
    prompt: str
    answer: str
    level: int


class Grade(NamedTuple):
    """What the checker found in one answer.

    correct     the strict verdict; None means that it could not be told (unscored), which is not the same as wrong
    format      the answer has the asked-for form, whether or not it is right
    answer      the extracted final answer, None if there is none
    chain       every written step and the answer are right
    fillers     number of filler characters
    steps       (char_end, reward) per written step, in order: the step is text[previous end:char_end], and its
                reward 1.0 if it is right, else 0.0
    any_answer  one of the answers offered is right, whether or not it ended: what a careless checker would pay for
    """

    correct: bool | None
    format: bool
    answer: str | None
    chain: bool
    fillers: int
    steps: tuple[tuple[int, float], ...] = ()
    any_answer: bool = False
