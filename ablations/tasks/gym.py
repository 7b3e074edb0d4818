"""Any family of the reasoning-gym package that passes a check of itself.

Its own scores are no verdicts ("The answer is 3" scores .067 in one family, and one gives its own answers .97), so the
answer is extracted first, and right is a score of 1.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablations.tasks import splits
from ablations.tasks.problem import Grade, Outcome, Problem
from ablations.tasks.prompt import Prompt
from ablations.tasks.verify.check import grade_of, judge

GARBAGE = ("", "no idea", "{", "7" * 50, "\\boxed{", "1,2,3", "None")


@dataclass(frozen=True)
class ReasoningGym:
    """family: a name of reasoning-gym; settings: its own. questions: how many there are, from `seed`; one in `one_in`
    is held out, by its text, since small settings ask the same again. `check`: how many are tried when the task is
    built. Answers have at most `max_new_tokens` tokens. A run stops when the family's checker fails on more than the
    share failures_allowed of a rollout.

    Raises ValueError for one_in below 2 and for a family that does not exist, raises on garbage or gives it, or its own
    answer with ` or 3` behind it, a score of 1, has no answer as a text, or does not give its own answers a score of 1.

    The careless checker (`lenient`) passes what the family gives any credit without extraction.
    """

    family: str
    settings: Mapping[str, Any]
    questions: int
    seed: int
    one_in: int
    check: int
    max_new_tokens: int
    failures_allowed: float
    prompt: Prompt
    _data: Any = field(init=False, repr=False)
    _index: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        splits.check_one_in(self.one_in)
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise ValueError(
                f"task=reasoning_gym needs the package reasoning-gym ({error}): pip install 'ablations[reasoning]'."
            ) from None
        if self.family not in DATASETS:
            there = ", ".join(sorted(DATASETS))
            raise ValueError(f"there is no family {self.family!r} in reasoning-gym; task.family is one of {there}.")
        data = reasoning_gym.create_dataset(self.family, size=self.questions, seed=self.seed, **self.settings)
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_index", {})
        for index in range(min(self.check, self.questions)):
            if fault := self._fault(data[index]):
                raise ValueError(
                    f"the family {self.family} cannot be used: {fault}. Choose another, or write a task of your own "
                    "around it."
                )

    def _fault(self, entry: Mapping[str, Any]) -> str:
        """What is wrong with one question of the family; empty if nothing is."""
        answer = entry["answer"]
        if not isinstance(answer, str) or not answer.strip():
            return f"a question has the answer {answer!r}, which is no text"
        own = self._score(answer, entry)
        if not isinstance(own, float) or own < 1:
            return f"its own answer {answer[:60]!r} scores {own}"
        for text in (*GARBAGE, f"{answer} or 3"):
            score = self._score(text, entry)
            if text.strip() != answer.strip() and (not isinstance(score, float) or score >= 1):
                return f"the answer {text!r} scores {score} where {answer[:60]!r} is right"
        return ""

    def _score(self, answer: str, entry: Mapping[str, Any]) -> float | str:
        """The family's score, or the error that it raised, as text."""
        try:
            return float(self._data.score_answer(answer, entry))
        except Exception as error:  # of 106 foreign checkers; it becomes a refusal or an unscored answer, with its text
            return f"{type(error).__name__}: {error}"

    def draw(self, n: int, generator: random.Random, split: str) -> list[Problem]:
        """n questions of the split "train" or "heldout", with replacement."""
        rules = dict(task=f"reasoning_gym {self.family}", levels=(1,), one_in=self.one_in)
        return splits.draw(self._any, n, generator, split, **rules)

    def _any(self, level: int, generator: random.Random) -> Problem:
        index = generator.randrange(self.questions)
        entry = self._data[index]
        question = entry["question"].strip()
        self._index.setdefault(question, index)
        return Problem(question, self.prompt.pose(question, question), entry["answer"], level)

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        """Extract, then ask the family; right from a score of 1. An error in its checker leaves the answer unscored."""
        entry = self._data[self._index[problem.key]]

        def same(answer: str, _: str) -> Outcome | tuple[Outcome, str]:
            score = self._score(answer, entry)
            if isinstance(score, str):
                return Outcome.FAILED, score
            return Outcome.RIGHT if score >= 1 else Outcome.WRONG

        verdict = judge(text, ended, problem.answer, self.prompt.extract, same)
        form = bool(ended) and self.prompt.extract.form(text)
        credit = self._score(text, entry)
        return grade_of(verdict, form, lenient=isinstance(credit, float) and credit > 0)
