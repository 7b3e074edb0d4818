"""Training and held-out problems, told apart by the problem alone: no seed can move one from one side to the other."""

import hashlib
import random
from collections.abc import Callable, Sequence

from ablations.tasks.problem import Problem

TRIES = 10_000  # draws for one problem of a level and split


def is_held_out(task: str, key: str, one_in: int) -> bool:
    """One key in `one_in`, by a hash: the same on every machine and for every seed."""
    digest = hashlib.sha256(f"{task}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0


def draw(
    pose: Callable[[int, random.Random], Problem],
    n: int,
    generator: random.Random,
    split: str,
    *,
    task: str,
    levels: Sequence[int],
    one_in: int,
) -> list[Problem]:
    """n problems of the split "train" or "heldout", with replacement; pose(level, generator) makes one.

    Levels are equally likely in both splits. Raises ValueError for another split, RuntimeError for a level whose few
    problems all lie in the other one.
    """
    if split not in ("train", "heldout"):
        raise ValueError(f"split is {split!r}; allowed are 'train' and 'heldout'. Pass one of the two.")
    problems = []
    for _ in range(n):
        level = generator.choice(levels)
        for _ in range(TRIES):
            problem = pose(level, generator)
            if is_held_out(task, problem.key, one_in) == (split == "heldout"):
                problems.append(problem)
                break
        else:
            raise RuntimeError(
                f"{TRIES} draws of {task} at level {level} found no {split} problem: the level has too few. Leave it "
                "out of task.levels, or change task.one_in."
            )
    return problems


def checked_levels(name: str, levels: Sequence[int], highest: int, one_in: int) -> tuple[int, ...]:
    """The levels as a tuple. Raises ValueError for one outside 1 to `highest`, for none, and for one_in below 2."""
    if not levels or not set(levels) <= set(range(1, highest + 1)):
        raise ValueError(
            f"task.levels of {name} is {list(levels)}; allowed are levels 1 to {highest}, at least one of them."
        )
    check_one_in(one_in)
    return tuple(levels)


def check_one_in(one_in: int) -> None:
    """Raises ValueError for a share that would hold out all problems, or none."""
    if one_in < 2:
        raise ValueError(f"task.one_in is {one_in}; one problem in that many is held out, so it is at least 2. Set 7.")
