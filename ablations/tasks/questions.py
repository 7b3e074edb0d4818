"""Questions and answers from files: the user's own (`jsonl`), or GSM8K."""

import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.tasks import splits
from ablations.tasks.problem import Grade, Outcome, Problem
from ablations.tasks.prompt import Prompt
from ablations.tasks.verify.check import UnreadableGold, any_number, gold_number, grade_of, judge
from ablations.tasks.verify.extract import unwrapped


class Row(dict):
    """One line of a file under this project's names; `where` names it for people, keys_there are its own."""

    where: str
    keys_there: list[str]


@dataclass(frozen=True)
class Questions:
    """rows and heldout_rows: mappings with the keys `question` and `answer`, and `level` where there is one (1 if not).
    Without heldout_rows one question in `one_in` is held out. Answers have at most `max_new_tokens` tokens.

    Every gold answer is read when the data load. One that the checker cannot read, and a question that stands there
    twice with different answers, raise UnreadableGold with their lines, or, with skip_unreadable, are left out and
    counted in `dropped`: later they would pay every answer, or none. Twice with equal answers, it is taken once.

    A run stops when the checker fails, or runs out of time, on more than the share failures_allowed of a rollout.

    The careless checker (`lenient`) passes any text in which the gold number, or the gold text, occurs.
    """

    rows: Sequence[Row]
    heldout_rows: Sequence[Row] | None
    one_in: int
    max_new_tokens: int
    skip_unreadable: bool
    failures_allowed: float
    prompt: Prompt
    same: Callable[[str, str], Outcome]
    problems: dict[str, list[Problem]] = field(init=False)
    dropped: int = field(init=False)

    def __post_init__(self) -> None:
        splits.check_one_in(self.one_in)
        object.__setattr__(self, "same", unwrapped(self.same))
        split: dict[str, list[Problem]] = {"train": [], "heldout": []}
        unusable: list[str] = []
        for side, rows in (("train", self.rows), ("heldout", self.heldout_rows or ())):
            posed: dict[str, list[tuple[Row, Problem]]] = {}
            for row in rows:
                try:
                    problem = self._posed(row)
                except UnreadableGold as error:
                    unusable.append(f"{row.where}: {str(error).rstrip('.')}")
                else:
                    posed.setdefault(problem.key, []).append((row, problem))
            for key, alike in posed.items():
                if several := self._several_answers(alike):
                    unusable += [several] * len(alike)
                    continue
                alone = self.heldout_rows is None and splits.is_held_out("questions", key, self.one_in)
                split["heldout" if alone else side].append(alike[0][1])
        if unusable and not self.skip_unreadable:
            raise UnreadableGold(
                f"{len(unusable)} gold answers cannot be used: {'; '.join(list(dict.fromkeys(unusable))[:3])}. Correct "
                "them, or set task.skip_unreadable=true to leave these questions out."
            )
        if unusable:
            print(f"{len(unusable)} questions left out: {unusable[0]}", file=sys.stderr, flush=True)
        if both := {p.key for p in split["train"]} & {p.key for p in split["heldout"]}:
            raise ValueError(
                f"{len(both)} questions are in the training and in the held-out file, for example {min(both)[:80]!r}; "
                "an accuracy on them would measure memory. Take them out of one of the two."
            )
        for side, problems in split.items():
            if not problems:
                raise ValueError(
                    f"there is no {side} question among {len(self.rows)}; give more, or a file for each side "
                    "(task.train, task.heldout)."
                )
        object.__setattr__(self, "problems", split)
        object.__setattr__(self, "dropped", len(unusable))

    def _several_answers(self, alike: Sequence[tuple[Row, Problem]]) -> str:
        """What is wrong with the same question at several places; empty if its answers are equal."""
        (row, problem), *others = alike
        for other, again in others:
            if again.answer != problem.answer and self.same(again.answer, problem.answer) != Outcome.RIGHT:
                answers = f"the answers {problem.answer!r} and {again.answer!r}"
                return f"{row.where} and {other.where} give one question {answers}: {problem.key[:80]!r}"
        return ""

    def _posed(self, row: Row) -> Problem:
        for name in ("question", "answer"):
            if name not in row:
                there = ", ".join(row.keys_there)
                raise ValueError(f"{row.where} has no {name!r} but {there}; name the right one in task.keys.{name}.")
            if not isinstance(row[name], str | int | float) or isinstance(row[name], bool):
                raise ValueError(f"{row.where} has no text or number as {name!r} but {row[name]!r:.80}; write one.")
        level = 1 if row.get("level") is None else row["level"]
        if not isinstance(level, int) or isinstance(level, bool):
            raise ValueError(
                f"{row.where} has the level {level!r:.80}; a level is a whole number. Write one, leave it out, or name "
                "another key in task.keys.level."
            )
        question, answer = str(row["question"]).strip(), str(row["answer"]).strip()
        if not question:
            raise ValueError(f"{row.where} has an empty question; fill it in or take the line out.")
        check = getattr(self.same, "check_gold", gold_number)
        check(answer)
        return Problem(question, self.prompt.pose(question, question), answer, level)

    def draw(self, n: int, generator: random.Random, split: str) -> list[Problem]:
        """n questions: of "train" with replacement, of "heldout" each equally often before one comes again."""
        if split not in self.problems:
            raise ValueError(f"split is {split!r}; allowed are 'train' and 'heldout'. Pass one of the two.")
        there = self.problems[split]
        if split == "train":
            return [generator.choice(there) for _ in range(n)]
        rounds, over = divmod(n, len(there))
        every = [problem for _ in range(rounds) for problem in generator.sample(there, len(there))]
        return every + generator.sample(there, over)

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        """Extract, then compare. Takes any text and never raises; what the checker could not tell stays unscored."""
        verdict = judge(text, ended, problem.answer, self.prompt.extract, self.same)
        form = bool(ended) and self.prompt.extract.form(text)
        numeric = not hasattr(self.same, "check_gold")
        lenient = any_number(text, problem.answer) if numeric else problem.answer in text
        return grade_of(verdict, form, lenient)


def jsonl(
    *, train: str, heldout: str | None, keys: dict[str, str], pick: Callable[[str], str] | None = None, **settings: Any
) -> Questions:
    """Questions of a file with one JSON object a line; keys: what `question`, `answer` and `level` are called in it.

    Raises ValueError for a file that is not there and for a line that is no object, by name and number.
    """
    if not train:
        raise ValueError("task.train is not set; give the path of a file with one JSON object a line.")
    rows = [list(_rows(path, keys, pick)) if path else None for path in (train, heldout)]
    return Questions(rows[0], rows[1], **settings)


def gsm8k(*, train: str | None, heldout: str | None, **settings: Any) -> Questions:
    """GSM8K (Cobbe et al. 2021, arXiv:2110.14168): grade-school word problems with a whole number as answer.

    train and heldout: local copies, as JSON lines with `question` and `answer`; without them the hub's data set
    `openai/gsm8k`, main, whose test split is held out. Its answers end in `#### 72`, of which 72 is the gold answer.
    """
    keys = {"question": "question", "answer": "answer"}
    if train or heldout:
        return jsonl(train=train, heldout=heldout, keys=keys, pick=after_mark, **settings)
    sides = [[_row(entry, f"openai/gsm8k {part} {i}", keys, after_mark) for i, entry in enumerate(_from_hub(part))]
             for part in ("train", "test")]  # fmt: skip
    return Questions(*sides, **settings)


def after_mark(answer: str) -> str:
    """What follows the last #### of a worked solution."""
    return answer.rpartition("####")[2].strip()


def _from_hub(part: str) -> Iterator[dict[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(f"GSM8K from the hub needs the package datasets ({error}): pip install datasets, "
                         "or name local files in task.train and task.heldout.") from None  # fmt: skip
    try:
        return load_dataset("openai/gsm8k", "main", split=part)
    except (OSError, ValueError, RuntimeError) as error:  # what datasets raises without a network, by its version
        offline = " HF_HUB_OFFLINE is set." if os.environ.get("HF_HUB_OFFLINE") == "1" else ""
        raise ValueError(
            f"GSM8K could not be fetched from the hub ({type(error).__name__}: {str(error)[:150]}).{offline} Without a "
            "network, give local copies: task.train=train.jsonl task.heldout=test.jsonl, one object with `question` "
            "and `answer` a line."
        ) from None


def _rows(path: str, keys: dict[str, str], pick: Callable[[str], str] | None) -> Iterator[Row]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"the question file {path} is not there; give the path of a file with one JSON object a line.")
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode("utf-8-sig")  # some editors begin a file with a mark of its encoding
                if not text.strip():
                    continue
                entry = json.loads(text)
                json.dumps(entry, ensure_ascii=False).encode()  # half a character, "\\ud800", is no text
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} line {number} is no JSON ({error.msg}); write one object a line.") from None
            except UnicodeError as error:
                raise ValueError(f"{path} line {number} is no UTF-8 ({error.reason}); save the file in it.") from None
            except (ValueError, RecursionError) as error:  # an integer of thousands of digits, thousands of brackets
                raise ValueError(f"{path} line {number} cannot be read ({error}); shorten it.") from None
            if not isinstance(entry, dict):
                raise ValueError(f"{path} line {number} is {type(entry).__name__}, not an object; write one a line.")
            yield _row(entry, f"{path} line {number}", keys, pick)


def _row(entry: dict[str, Any], where: str, keys: dict[str, str], pick: Callable[[str], str] | None) -> Row:
    row = Row({name: entry[key] for name, key in keys.items() if key in entry})
    if pick and isinstance(row.get("answer"), str):
        row["answer"] = pick(row["answer"])
    row.where, row.keys_there = where, sorted(entry)
    return row
