"""Tasks whose questions come from elsewhere: files of the user's, GSM8K, families of reasoning-gym."""

import json
import random

import pytest
from test_tasks import made, problems
from verify_inputs import numeric

from ablations.tasks.problem import Outcome
from ablations.tasks.verify.check import UnreadableGold

# --- files of questions -----------------------------------------------------------------------------------------------


def written(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def questions(n, start=0):
    return [{"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(start, start + n)]


def test_a_file_of_questions_is_split_by_question_or_by_file(tmp_path):
    one = written(tmp_path / "a.jsonl", [*questions(80), "", {"question": "Half?", "answer": "1/2", "level": 3}])
    task = made("jsonl", f"task.train={one}")
    keys = {split: {p.key for p in problems(task, 600, split)} for split in ("train", "heldout")}
    assert not keys["train"] & keys["heldout"] and len(keys["train"] | keys["heldout"]) == 81
    assert {p.level for ps in task.problems.values() for p in ps} == {1, 3}
    two = written(tmp_path / "b.jsonl", questions(5, start=100))
    task = made("jsonl", f"task.train={one}", f"task.heldout={two}")
    assert len({p.key for p in problems(task, 5, "heldout")}) == 5 and len(task.problems["train"]) == 81
    first = problems(task, 1, "heldout")[0]
    assert task.grade(first, f"It is \\boxed{{{first.answer}.0}}", True).correct


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{", "line 3 is no JSON"),
        ("[1]", "line 3 is list"),
        ({"question": "Why?", "reply": "1"}, "line 3 has no 'answer' but question, reply; name the right one"),
        ({"question": "Why?", "answer": None}, "line 3 has no text or number as 'answer' but None"),
        ({"question": "Why?", "answer": ["1"]}, r"line 3 has no text or number as 'answer' but \['1'\]"),
        ({"question": "Why?", "answer": "1", "level": "hard"}, "line 3 has the level 'hard'; a level is a whole"),
        ({"question": "Why?", "answer": "1", "level": 2.7}, "line 3 has the level 2.7"),
        ('{"question": "\\ud800", "answer": "1"}', "line 3 is no UTF-8"),
        ('{"question": "Why?", "answer": ' + "9" * 5000 + "}", "line 3 cannot be read"),
        ("[" * 100_000, "line 3 cannot be read"),
        ({"question": "Why?", "answer": ""}, "line 3: the gold answer '' is no plain number"),
        ({"question": "Why?", "answer": "because"}, "line 3: the gold answer 'because'"),
        ({"question": " ", "answer": "1"}, "line 3 has an empty question"),
        ({"question": "What is 0 + 1?", "answer": "2"}, "line 1 and .*bad.jsonl line 3 give one question the answers"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(tmp_path, row, told):
    path = written(tmp_path / "bad.jsonl", [*questions(2), row])
    with pytest.raises(Exception, match=f"bad.jsonl {told}") as refused:
        made("jsonl", f"task.train={path}")
    assert ".." not in str(refused.value).replace("...", "")


def test_a_file_in_another_encoding_is_refused_and_a_mark_of_utf_8_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in questions(30)).replace("What", "Qu\u00e9")
    path.write_text(text, encoding="utf-8-sig")
    assert sum(map(len, made("jsonl", f"task.train={path}").problems.values())) == 30
    for other in ("latin-1", "utf-16"):
        path.write_text(text, encoding=other)
        with pytest.raises(Exception, match="a.jsonl line 1 is no UTF-8"):
            made("jsonl", f"task.train={path}")


def test_a_question_that_stands_there_again_is_taken_once_and_with_two_answers_not_at_all(tmp_path):
    again = [{"question": " What is 0 + 1? ", "answer": "1.0"}, {"question": "What is 1 + 1?", "answer": 2}]
    path = written(tmp_path / "a.jsonl", [*questions(30), *again])
    task = made("jsonl", f"task.train={path}")
    assert sum(map(len, task.problems.values())) == 30 and task.dropped == 0
    path = written(path, [*questions(30), *again, {"question": "What is 1 + 1?", "answer": "3"}])
    task = made("jsonl", f"task.train={path}", "task.skip_unreadable=true")
    assert "What is 1 + 1?" not in {p.key for ps in task.problems.values() for p in ps} and task.dropped == 3


def test_a_level_of_null_is_none_given(tmp_path):
    path = written(tmp_path / "a.jsonl", [{**row, "level": None} for row in questions(30)])
    assert {p.level for ps in made("jsonl", f"task.train={path}").problems.values() for p in ps} == {1}


@pytest.mark.parametrize(
    ("override", "told"),
    [("task.one_in=0", "at least 2"), ("task.one_in=1", "at least 2"), ("task.train=null", "not set")],
)
def test_a_share_that_holds_out_all_or_none_and_a_file_that_is_not_named_are_refused(tmp_path, override, told):
    path = written(tmp_path / "a.jsonl", questions(30))
    with pytest.raises(Exception, match=told):
        made("jsonl", f"task.train={path}", override)


def test_gsm8k_with_a_held_out_file_alone_is_refused_and_not_fetched_from_the_hub(tmp_path):
    path = written(tmp_path / "a.jsonl", [{"question": "Why?", "answer": "#### 1"}])
    with pytest.raises(Exception, match=r"task\.train is not set"):
        made("gsm8k", f"task.heldout={path}")


def test_unreadable_gold_answers_can_be_left_out_and_are_counted(tmp_path, capsys):
    path = written(tmp_path / "a.jsonl", [*questions(30), {"question": "Why?", "answer": ""}])
    task = made("jsonl", f"task.train={path}", "task.skip_unreadable=true")
    assert task.dropped == 1 and "1 questions left out" in capsys.readouterr().err
    assert "Why?" not in {p.key for ps in task.problems.values() for p in ps}
    assert issubclass(UnreadableGold, ValueError)


def test_a_missing_file_an_empty_side_and_a_question_on_both_sides_are_refused(tmp_path):
    with pytest.raises(Exception, match="is not there"):
        made("jsonl", f"task.train={tmp_path}/none.jsonl")
    one = written(tmp_path / "one.jsonl", questions(1))
    with pytest.raises(Exception, match=r"there is no (train|heldout) question among 1"):
        made("jsonl", f"task.train={one}")
    many = written(tmp_path / "many.jsonl", questions(9))
    with pytest.raises(Exception, match="measure memory"):
        made("jsonl", f"task.train={many}", f"task.heldout={one}")


@pytest.mark.extra
def test_symbolic_gold_answers_are_read_when_the_data_load(tmp_path):
    pytest.importorskip("math_verify")
    rows = [{"question": f"Root of {i}?", "answer": f"\\sqrt{{{i}}}"} for i in (2, 3, 5, 6, 7, 8, 10, 11, 12, 13)]
    path = written(tmp_path / "a.jsonl", [*rows, {"question": "Why?", "answer": "\\text{}"}])
    with pytest.raises(Exception, match="line 11"):
        made("jsonl", f"task.train={path}", "task/same=symbolic")
    task = made("jsonl", f"task.train={path}", "task/same=symbolic", "task.skip_unreadable=true", "task.same.limit=20")
    eight = next(p for ps in task.problems.values() for p in ps if p.key == "Root of 8?")
    assert task.grade(eight, "\\boxed{2\\sqrt{2}}", True).correct
    assert not task.grade(eight, "\\boxed{2\\sqrt{3}}", True).correct


# --- GSM8K and reasoning-gym ------------------------------------------------------------------------------------------


def test_gsm8k_reads_local_copies_with_their_worked_solutions(tmp_path):
    rows = [{"question": f"Tom has {i} pens and buys 1,000. How many?", "answer": f"{i} + 1000\n#### {i + 1000:,}"}
            for i in range(40)]  # fmt: skip
    train, test = written(tmp_path / "train.jsonl", rows[:30]), written(tmp_path / "test.jsonl", rows[30:])
    task = made("gsm8k", f"task.train={train}", f"task.heldout={test}")
    p = next(p for p in task.problems["heldout"] if p.answer == "1,030")
    assert task.grade(p, "He has \\boxed{1030}", True).correct and task.grade(p, "\\boxed{$1,030.00}", True).correct
    assert not task.grade(p, "\\boxed{1031}", True).correct


def test_gsm8k_without_a_network_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(Exception, match=r"task\.train=train\.jsonl"):
        made("gsm8k")


@pytest.mark.extra
@pytest.mark.parametrize(
    "family", ["chain_sum", "basic_arithmetic", "number_sorting", "letter_counting", "leg_counting"]
)
def test_a_family_of_reasoning_gym_is_split_by_its_text_and_graded_strictly(family):
    pytest.importorskip("reasoning_gym")
    task = made("reasoning_gym", f"task.family={family}", "task.questions=300")
    train, heldout = ({p.key for p in problems(task, 300, split)} for split in ("train", "heldout"))
    assert train and heldout and not train & heldout
    for p in problems(task, 20):
        assert task.grade(p, f"\\boxed{{{p.answer}}}", True).correct
        assert not task.grade(p, f"\\boxed{{{p.answer} or 3}}", True).correct
        assert task.grade(p, p.answer, True).outcome == Outcome.NO_ANSWER


@pytest.mark.extra
def test_partial_credit_is_no_right_answer_but_passes_the_careless_checker():
    pytest.importorskip("reasoning_gym")
    task = made("reasoning_gym", "task.questions=50", "task/extract@task.prompt.extract=whole")
    p = problems(task, 1)[0]
    grade = task.grade(p, f"The answer is {p.answer}", True)
    assert grade.correct is False and grade.any_answer


@pytest.mark.extra
@pytest.mark.parametrize("family", ["prime_factorization", "propositional_logic", "spell_backward"])
def test_a_family_that_fails_its_self_check_is_refused_with_the_reason(family):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(Exception, match=f"the family {family} cannot be used"):
        made("reasoning_gym", f"task.family={family}", "task.check=200")


@pytest.mark.extra
def test_a_checker_that_raises_leaves_the_answer_unscored(monkeypatch):
    pytest.importorskip("reasoning_gym")
    task = made("reasoning_gym", "task.questions=50")
    p = problems(task, 1)[0]

    def broken(answer, entry):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(task._data, "score_answer", broken)
    grade = task.grade(p, f"\\boxed{{{p.answer}}}", True)
    assert grade.correct is None and grade.outcome == Outcome.FAILED


def test_an_unknown_family_is_refused_with_those_there_are():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(Exception, match="chain_sum"):
        made("reasoning_gym", "task.family=chainsum")


# --- 200 answers with known verdicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("extraction", ["boxed", "first_marked", "tags"])
def test_200_generated_answers_to_questions_of_a_file_have_their_known_verdicts(tmp_path, extraction):
    forms = [(a, g, right) for a, g, right in numeric(600, random.Random(extraction)) if readable(a, extraction)]
    assert len(forms) >= 200
    rows = [{"question": f"Number {i}?", "answer": gold} for i, (_, gold, _) in enumerate(forms)]
    path = written(tmp_path / "a.jsonl", rows)
    task = made("jsonl", f"task.train={path}", f"task/extract@task.prompt.extract={extraction}")
    posed = {p.key: p for ps in task.problems.values() for p in ps}
    for i, (answer, _, right) in enumerate(forms):
        text = "So it is\n" + task.prompt.extract.write(answer)
        assert task.grade(posed[f"Number {i}?"], text, True).correct == right, (answer, i)


def readable(answer, extraction):
    """Whether the answer can stand in the form: on one line, with closed braces and no box of its own."""
    return "\n" not in answer and answer.count("{") == answer.count("}") and "boxed" not in answer and answer.strip()


@pytest.mark.extra
def test_200_generated_answers_to_reasoning_gym_have_their_known_verdicts():
    pytest.importorskip("reasoning_gym")
    task = made("reasoning_gym", "task.questions=300")
    for p in problems(task, 50):
        n = int(p.answer)
        for text, right in [
            (f"{n}", True),
            (f" {n} ", True),
            (f"{n + 1}", False),
            (f"{n} or {n + 1}", False),
            ("", False),
        ]:
            assert task.grade(p, f"It is \\boxed{{{text}}}.", True).correct == right, (p, text)
