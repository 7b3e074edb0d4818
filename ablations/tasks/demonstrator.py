"""A demonstrator for tasks without a scratchpad: right, or wrong in the way that the task says."""

from collections.abc import Sequence
from dataclasses import dataclass

END, PAD, UNKNOWN = "$", "_", "~"  # of tasks that a model with an alphabet can learn


@dataclass(frozen=True)
class Slips:
    """wrong: the share of wrong demonstrations, one number per level; a level beyond the list has the last one.

    offers: the share that names several answers instead of one, which only a careless checker pays for.
    """

    wrong: Sequence[float]
    offers: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "wrong", tuple(self.wrong))
        for name, share in [*((f"wrong[{i}]", p) for i, p in enumerate(self.wrong)), ("offers", self.offers)]:
            if not 0 <= share <= 1:
                raise ValueError(f"style: {name} is {share}; it is a share. Give a number from 0 to 1.")
        if not self.wrong:
            raise ValueError("style.wrong is empty; give one share of wrong demonstrations per level, at least one.")

    def share_wrong(self, level: int) -> float:
        """At this level, 1 being the first."""
        return self.wrong[min(level, len(self.wrong)) - 1]


def checked(style, task: str) -> Slips:
    """The style, if it is one for these tasks. Raises ValueError for another task's."""
    if not isinstance(style, Slips):
        raise ValueError(
            f"the task {task} has no demonstrations in the style {type(style).__name__}, which belongs to another "
            "task; choose base=slips, or base=none for a model that is trained already."
        )
    return style
