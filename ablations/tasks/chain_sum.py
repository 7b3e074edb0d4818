"""Chain sums mod 10 with a labelled scratchpad: easy enough for a model of 85,000 parameters, with room to learn.

Prompt `7a5b8c3=` asks for (7 + 5 + 8 + 3) mod 10; level k has k + 1 digits, and letters label the additions. The gold
response `a52b80c33#3` writes per step its letter, the copied operand and the running sum, then `#` and the answer; the
end token follows. Copying the operand first is what makes the task learnable at this size: looking an operand up and
adding it become two separate one-token problems. The fillers `.` and `~` may stand anywhere and mean nothing: they
give an answer a length of its own.
"""

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ablations.tasks.problem import Grade, Outcome, Problem

DIGITS = "0123456789"
LABELS = "abcde"
FILLERS = ".~"
END, PAD, UNKNOWN = "$", "_", "?"
ALPHABET = DIGITS + LABELS + "=#" + FILLERS + END + PAD + UNKNOWN

# A piece reaches from a label or a `#` to the next one; fillers before the first belong to it.
_PIECE = re.compile(r"[.~]*[a-e#][^a-e#]*|[^a-e#]+")
_WELL_FORMED = re.compile(r"(?:[a-e][0-9][0-9])*#[0-9]")
_NO_FILLERS = str.maketrans("", "", FILLERS)


@dataclass(frozen=True)
class Style:
    """How a demonstrator of limited skill writes; probabilities, one per level where a list is given.

    A demonstration is one of four kinds:
    - a hedge, share `hedge`: `hedge_answers` different digits, each after a `#`;
    - a direct answer, share `direct`, right with probability `direct_right[level]`;
    - a ramble, share `ramble` * (`ramble_base` + `ramble_slope` * level): steps as in a chain, then a geometric number
      of `~`, at least 1 and `ramble_mean` on average, then an answer that owes nothing to the steps and is right with
      probability `ramble_right`;
    - else a chain. Each running sum goes wrong with probability `step_error[level]`, and later sums build on the wrong
      one. After each step stand fillers `.`, a geometric number: one more with probability `filler` while the chain is
      right and `filler_wrong` once it is wrong.
    `filler_wrong` above `filler`, and `ramble_right` near chance, are what couples length to being wrong.

    Raises ValueError for a probability outside [0, 1], kinds that sum to more than 1, or lists of unequal length.
    """

    step_error: Sequence[float]
    direct: float
    direct_right: Sequence[float]
    filler: float
    filler_wrong: float
    ramble: float
    ramble_base: float
    ramble_slope: float
    ramble_mean: float
    ramble_right: float
    hedge: float
    hedge_answers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_error", tuple(self.step_error))
        object.__setattr__(self, "direct_right", tuple(self.direct_right))
        if len(self.step_error) != len(self.direct_right):
            raise ValueError(
                f"style.step_error has {len(self.step_error)} levels and style.direct_right {len(self.direct_right)}. "
                "Give both one number per level."
            )
        shares = {"direct": self.direct, "ramble_right": self.ramble_right, "hedge": self.hedge}
        shares |= {f"step_error[{i}]": p for i, p in enumerate(self.step_error)}
        shares |= {f"direct_right[{i}]": p for i, p in enumerate(self.direct_right)}
        shares |= {f"the ramble share at level {k}": self.ramble_share(k) for k in range(1, len(self.step_error) + 1)}
        for name, p in shares.items():
            if not 0 <= p <= 1:
                raise ValueError(f"style: {name} is {p}; it is a probability. Give a number from 0 to 1.")
        for name, q in {"filler": self.filler, "filler_wrong": self.filler_wrong}.items():
            if not 0 <= q < 1:
                raise ValueError(
                    f"style.{name} is {q}; it is the probability of one more filler. Give a number from 0 to below 1."
                )
        if self.ramble_mean < 1 or not 1 <= self.hedge_answers <= 10:
            raise ValueError(
                f"style.ramble_mean is {self.ramble_mean} and style.hedge_answers {self.hedge_answers}; a ramble has "
                "at least 1 filler and a hedge 1 to 10 different digits. Correct what is outside."
            )
        if (most := self.direct + self.hedge + self.ramble_share(len(self.step_error))) > 1:
            raise ValueError(
                f"style: direct + hedge + ramble shares come to {most:.3g} at level {len(self.step_error)}; they "
                "are shares of one whole. Lower one of them until the sum is at most 1."
            )

    def ramble_share(self, level: int) -> float:
        """The share of rambles at this level."""
        return self.ramble * (self.ramble_base + self.ramble_slope * level)


@dataclass(frozen=True)
class ChainSum:
    """The task. `levels`: what to draw, equally often, each from 1 to 5; one operand tuple in `one_in` is held out;
    answers have at most `max_new_tokens` tokens, the end token included.

    Whether a problem is held out depends on its operands alone, so no seed can move one from evaluation into training.
    """

    levels: Sequence[int]
    one_in: int
    max_new_tokens: int

    alphabet = ALPHABET
    end = END
    pad = PAD
    unknown = UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels or not set(self.levels) <= set(range(1, len(LABELS) + 1)):
            raise ValueError(
                f"task.levels is {list(self.levels)}; allowed are levels 1 to {len(LABELS)}, at least one of them. "
                "Set task.levels=[1,2,3,4,5] or fewer."
            )
        if self.one_in < 2:
            raise ValueError(
                f"task.one_in is {self.one_in}; one problem in that many is held out, so it is at least 2. "
                "Set task.one_in=7."
            )

    def draw(self, n: int, generator: random.Random, split: str) -> list[Problem]:
        """n problems of the split "train" or "heldout", with replacement: levels, then operands, equally likely."""
        if split not in ("train", "heldout"):
            raise ValueError(f"split is {split!r}; allowed are 'train' and 'heldout'. Pass one of the two.")
        problems = []
        while len(problems) < n:
            level = generator.choice(self.levels)
            # Only the operands are drawn again, so that both splits keep the levels equally likely.
            while True:
                operands = [generator.randrange(10) for _ in range(level + 1)]
                if self.is_held_out(operands) == (split == "heldout"):
                    break
            problems.append(pose(operands))
        return problems

    def is_held_out(self, operands: Sequence[int]) -> bool:
        """Decided by a hash of the operands, the same on every machine and for every seed."""
        digest = hashlib.sha256(("chain_sum:" + ",".join(map(str, operands))).encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.one_in == 0

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        """Check one answer; `text` is the response without its end token, `ended` says whether that token came.

        Correct: the answer ended, and after the last `#` stands one digit (fillers aside), the right one. A step is
        right when its letter is the next one, its operand the prompt's and its sum the true running sum; each `#`
        piece is a step as well, right when its digit is the answer. Takes any text and never raises.
        """
        operands = [int(c) for c in problem.prompt if c in DIGITS]
        sums = [sum(operands[: i + 1]) % 10 for i in range(len(operands))]
        gold = [f"{LABELS[i]}{operands[i + 1]}{sums[i + 1]}" for i in range(len(operands) - 1)]
        final = f"#{problem.answer}"

        steps, written = [], 0
        for match in _PIECE.finditer(text):
            bare = match.group().translate(_NO_FILLERS)
            if not bare:
                continue
            if bare[0] == "#":
                right = bare == final
            else:
                right = written < len(gold) and bare == gold[written]
                written += bare[0] in LABELS
            steps.append((match.end(), float(right)))

        plain = text.translate(_NO_FILLERS)
        _, mark, tail = plain.rpartition("#")
        answer = tail if mark and len(tail) == 1 and tail in DIGITS else None
        correct = bool(ended) and answer == problem.answer
        told = Outcome.WRONG if ended and answer else Outcome.NO_ANSWER
        return Grade(
            correct=correct,
            format=bool(ended) and _WELL_FORMED.fullmatch(plain) is not None,
            answer=answer,
            chain=bool(ended) and plain == "".join(gold) + final,
            fillers=len(text) - len(plain),
            steps=tuple(steps),
            any_answer=final in plain,
            outcome=Outcome.RIGHT if correct else told,
        )

    def gold(self, problem: Problem) -> str:
        """The flawless response, without fillers and without the end token."""
        steps, total = _steps(problem, random.Random(0), error=0.0, filler=0.0, filler_wrong=0.0)
        return f"{steps}#{total}"

    def demonstration(self, problem: Problem, rng: random.Random, style: Style | None) -> str:
        """A response in the given style, without the end token; style None is the flawless one."""
        if style is None:
            return self.gold(problem)
        if problem.level > len(style.step_error):
            raise ValueError(
                f"a problem has level {problem.level}; style.step_error and style.direct_right know levels 1 "
                f"to {len(style.step_error)}. Add the missing ones or lower task.levels."
            )
        kind = rng.random()
        if kind < (bound := style.hedge):
            return "".join(f"#{d}" for d in rng.sample(DIGITS, style.hedge_answers))
        if kind < (bound := bound + style.direct):
            return "#" + _answer(problem, style.direct_right[problem.level - 1], rng)
        error = style.step_error[problem.level - 1]
        steps, total = _steps(problem, rng, error=error, filler=style.filler, filler_wrong=style.filler_wrong)
        if kind < bound + style.ramble_share(problem.level):
            length = 1 + _geometric(1 - 1 / style.ramble_mean, rng)
            return steps + "~" * length + "#" + _answer(problem, style.ramble_right, rng)
        return f"{steps}#{total}"


def pose(operands: Sequence[int]) -> Problem:
    """The problem with these operands (2 to 6 digits)."""
    prompt = str(operands[0]) + "".join(f"{LABELS[i]}{digit}" for i, digit in enumerate(operands[1:])) + "="
    return Problem(key=prompt, prompt=prompt, answer=str(sum(operands) % 10), level=len(operands) - 1)


def _steps(
    problem: Problem, rng: random.Random, *, error: float, filler: float, filler_wrong: float
) -> tuple[str, int]:
    """The scratchpad, with its fillers, and the sum it arrives at."""
    operands = [int(c) for c in problem.prompt if c in DIGITS]
    written = true = operands[0]
    text = ""
    for label, operand in zip(LABELS, operands[1:], strict=False):
        true, written = (true + operand) % 10, (written + operand) % 10
        if rng.random() < error:
            written = (written + rng.randrange(1, 10)) % 10
        text += f"{label}{operand}{written}" + "." * _geometric(filler if written == true else filler_wrong, rng)
    return text, written


def _answer(problem: Problem, right: float, rng: random.Random) -> str:
    """The right digit with probability `right`, else one of the nine wrong ones."""
    if rng.random() < right:
        return problem.answer
    return str((int(problem.answer) + rng.randrange(1, 10)) % 10)


def _geometric(q: float, rng: random.Random) -> int:
    """How many times in a row a coin with probability q comes up; mean q / (1 - q)."""
    count = 0
    while rng.random() < q:
        count += 1
    return count
