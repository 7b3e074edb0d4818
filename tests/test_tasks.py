"""Tasks: problems that are what they say, splits by problem, strict graders, and careless ones."""

import functools
import json
import random
import re
from fractions import Fraction

import pytest
from composing import composed
from hydra.utils import instantiate
from verify_inputs import hostile, numeric

from ablations.tasks import countdown, sorting
from ablations.tasks.demonstrator import Slips
from ablations.tasks.problem import Outcome
from ablations.tasks.prompt import Conversation, Prompt
from ablations.tasks.verify.check import UnreadableGold

TASKS = ("arithmetic", "countdown", "sorting")
PROMPTS = ("terse", "question", "chat", "r1_zero")
SLIPS = Slips([0.5], 0.2)


@functools.cache  # composing takes a quarter of a second
def composition(name, *overrides):
    return composed(f"task={name}", *overrides).task


def made(name, *overrides):
    return instantiate(composition(name, *overrides))


def problems(task, n=200, split="train", seed=0):
    return task.draw(n, random.Random(seed), split)


# --- what holds for every task ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_demonstration_is_right_and_in_form_under_every_template(name, prompt):
    task = made(name, f"task/prompt={prompt}")
    for problem in problems(task, 100):
        grade = task.grade(problem, task.gold(problem), True)
        assert grade.correct and grade.format and grade.any_answer and grade.outcome == Outcome.RIGHT
        assert not task.grade(problem, task.gold(problem), False).correct


@pytest.mark.parametrize("name", TASKS)
def test_no_problem_is_in_both_splits_and_the_seed_moves_none(name):
    task = made(name, "task.levels=[1]")
    train = {p.key for seed in range(3) for p in problems(task, 500, seed=seed)}
    heldout = {p.key for seed in range(3) for p in problems(task, 500, "heldout", seed)}
    assert train and heldout and not train & heldout
    assert problems(task, 20) == problems(task, 20)


@pytest.mark.parametrize("name", TASKS)
def test_levels_are_equally_likely_in_both_splits(name):
    task = made(name)
    for split in ("train", "heldout"):
        levels = [p.level for p in problems(task, 1200, split)]
        expected = 1200 / len(task.levels)
        assert all(abs(levels.count(k) - expected) < 5 * expected**0.5 for k in task.levels)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("prompt", ["terse", "r1_zero"])
def test_a_model_with_the_tasks_alphabet_can_read_every_prompt_and_write_every_demonstration(name, prompt):
    task, rng = made(name, f"task/prompt={prompt}"), random.Random(0)
    assert len(set(task.alphabet)) == len(task.alphabet) and {task.end, task.pad, task.unknown} <= set(task.alphabet)
    known = set(task.alphabet) - {task.end, task.pad, task.unknown}
    for problem in problems(task):
        assert set(problem.prompt + task.demonstration(problem, rng, SLIPS) + task.gold(problem)) <= known


@pytest.mark.parametrize("name", TASKS)
def test_a_demonstrator_slips_as_often_as_it_is_told_and_offers_what_only_the_careless_checker_pays(name):
    task, rng, asked = made(name), random.Random(0), problems(made(name), 1500)
    slips = [task.grade(p, task.demonstration(p, rng, Slips([0.5], 0.0)), True) for p in asked]
    assert abs(sum(g.correct for g in slips) / 1500 - 0.5) < 0.06
    offers = [task.grade(p, task.demonstration(p, rng, Slips([0.0], 1.0)), True) for p in asked]
    assert all(g.any_answer for g in offers) and sum(g.correct for g in offers) < 0.1 * len(offers)


@pytest.mark.parametrize("name", TASKS)
def test_no_text_breaks_a_grader(name):
    task, rng = made(name), random.Random(name)
    asked = problems(task, 20)
    for text in hostile(1000, rng):
        grade = task.grade(rng.choice(asked), text, rng.random() < 0.8)
        assert grade.correct in (True, False)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("task.levels=[]", "at least one"),
        ("task.levels=[0]", "levels 1 to"),
        ("task.levels=[99]", "levels 1 to"),
        ("task.one_in=1", "at least 2"),
    ],
)
@pytest.mark.parametrize("name", TASKS)
def test_impossible_settings_are_refused_in_a_sentence(name, override, told):
    with pytest.raises(Exception, match=told):
        made(name, override)


def test_another_tasks_style_and_another_split_are_refused_by_name():
    task = made("arithmetic")
    with pytest.raises(ValueError, match="base=slips"):
        task.demonstration(problems(task, 1)[0], random.Random(0), object())
    with pytest.raises(ValueError, match="'test'"):
        problems(task, 1, "test")
    with pytest.raises(ValueError, match=r"wrong\[0\] is 2"):
        Slips([2], 0)


def test_a_split_that_is_empty_is_named_instead_of_sought_for_ever():
    with pytest.raises(RuntimeError, match="found no heldout problem"):
        problems(made("sorting", "task.below=2", "task.levels=[1]", "task.one_in=1000"), 1, "heldout")


# --- arithmetic -------------------------------------------------------------------------------------------------------


def test_sums_differences_and_products_are_right_by_another_way():
    for p in problems(made("arithmetic"), 600):
        a, sign, b = re.fullmatch(r"(-?\d+)([-+*])\(?(-?\d+)\)?", p.key).groups()
        assert Fraction(p.answer) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert max(len(a.strip("-")), len(b.strip("-"))) <= p.level


@pytest.mark.parametrize(
    ("text", "right", "lenient"),
    [
        ("-84", True, True), ("\u221284", True, True), ("-84.0", True, True), ("84", False, False),
        ("-84, 84", False, True), ("-12*7=-84", False, True), ("-12*7", False, False), ("", False, False),
        ("-84\n", True, True), ("- 84", False, False), ("-85 or -84", False, True),
    ],
)  # fmt: skip
def test_arithmetic_wants_one_number_and_the_careless_checker_any(text, right, lenient):
    task = made("arithmetic")
    grade = task.grade(task.pose(-12, "*", 7), text, True)
    assert (grade.correct, grade.any_answer) == (right, lenient)


# --- countdown --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "right", "lenient"),
    [
        ("(3+5)*2", True, True), ("2*(5+3)", True, True), ("(3+5)*2=16", True, True), ("(3+5)\u00d72", True, True),
        ("16", False, True), ("8*2", False, True), ("2*5+3*2", False, True), ("3+5*2", False, False),
        ("(3+5)*2=15", False, False), ("(3+5)*2*1", False, True), ("(3+5)2", False, False), ("3+5", False, False),
        ("2/(5-5)", False, False), ("((3+5)*2", False, False), ("(3+5)*2)", False, False), ("", False, False),
        ("__import__('os')", False, False), ("3**2+5+2", False, False), ("-3+5*2+9", False, False),
    ],
)  # fmt: skip
def test_countdown_accepts_every_expression_with_the_given_numbers_and_no_other(text, right, lenient):
    task = made("countdown")
    problem = task.pose([3, 5, 2], 16, "(3+5)*2")
    grade = task.grade(problem, text, True)
    assert (grade.correct, grade.any_answer) == (right, lenient)


def test_expressions_have_the_value_that_fractions_give():
    """A random tree is written with every bracket, so its value is known without precedence; then without brackets
    around products, where precedence must put them back."""
    rng = random.Random(0)
    for _ in range(500):
        numbers = [rng.randrange(1, 20) for _ in range(rng.randrange(2, 6))]
        value, expression = countdown._combined(numbers, rng)
        assert countdown.value_of(expression) == (value, numbers)
    assert countdown.value_of("2+3*4-6/4")[0] == Fraction(25, 2)
    assert countdown.value_of("20-5-3")[0] == 12 and countdown.value_of("16/4/2")[0] == 2


def test_every_drawn_problem_can_be_solved():
    task = made("countdown", "task.levels=[1,2,3,4,5]")
    for p in problems(task, 300):
        numbers, target = countdown._given(p)
        value, used = countdown.value_of(p.answer)
        assert value == target and sorted(used) == sorted(numbers) and 0 < target < task.target_below


def test_the_order_of_the_numbers_makes_no_other_problem():
    task = made("countdown")
    assert task.pose([3, 5, 2], 16, "").key == task.pose([2, 3, 5], 16, "").key


# --- sorting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "right", "lenient"),
    [
        ("4 15 31", True, True), ("4, 15, 31", True, True), ("[4, 15, 31]", True, True), ("4,15,31", True, True),
        ("15 4 31", False, False), ("4 15", False, True), ("1 2 3", False, True), ("4 15 31 31", False, True),
        ("4 15 31]", False, False), ("4; 15; 31", False, False), ("", False, False), ("4 15 031", True, True),
        ("sorted: 4 15 31", False, False), ("4 15 -31", False, False),
    ],
)  # fmt: skip
def test_sorting_wants_exactly_the_numbers_and_the_careless_checker_only_order(text, right, lenient):
    task = made("sorting")
    grade = task.grade(task.pose([31, 4, 15]), text, True)
    assert (grade.correct, grade.any_answer) == (right, lenient)


@pytest.mark.parametrize("name", TASKS)
def test_200_generated_answers_have_their_known_verdicts(name):
    """Right answers in other words, and answers that were changed in one place."""
    task, rng, counted = made(name), random.Random(name), 0
    for p in problems(task, 250):
        for text, right in variants(name, p, rng):
            assert task.grade(p, text, True).correct == right, (p, text)
            counted += 1
    assert counted >= 200


def variants(name, p, rng):
    if name == "arithmetic":
        n = int(p.answer)
        yield from [(f" {n} ", True), (f"{n}.0", True), (f"**{n}**", True), (str(n).replace("-", "\u2212"), True)]
        yield from [(f"{n + 1}", False), (f"{n}1", False), (f"{n} {n}", False), (f"{n}+0", False)]
        if n:
            yield f"{-n}", False
    elif name == "countdown":
        numbers, target = countdown._given(p)
        yield from [(p.answer.replace("*", " * "), True), (f"({p.answer})", True), (f"{p.answer} = {target}", True)]
        yield from [(f"{p.answer}+0", False), (f"{p.answer}*1", False), (f"{target}", False), (f"{p.answer}+", False)]
        yield f"({p.answer}", False
    else:
        numbers = sorting.numbers_in(p.answer)
        yield from [(", ".join(map(str, numbers)), True), (f"[{', '.join(map(str, numbers))}]", True)]
        yield from [(" ".join(map(str, numbers[1:])), False), (f"{p.answer} {numbers[-1]}", False)]
        if numbers != numbers[::-1]:
            yield " ".join(map(str, numbers[::-1])), False
        changed = list(numbers)
        changed[rng.randrange(len(changed))] += 1
        yield " ".join(map(str, changed)), False


def test_200_generated_chains_have_their_known_verdicts():
    """Fillers change nothing; a last digit that differs, is missing or is not the last, and a hedge, are wrong."""
    task, rng, counted = instantiate(composition("chain_sum")), random.Random(0), 0
    for p in problems(task, 60):
        gold, other = task.gold(p), str((int(p.answer) + rng.randrange(1, 10)) % 10)
        filled = "".join(sign + rng.choice(["", ".", "~.", "~~~"]) for sign in gold)
        right = [gold, filled, f"#{p.answer}", f"#{other}#{p.answer}", f"{gold[:-1]}{p.answer}..."]
        wrong = [
            f"#{other}",
            f"{gold}{other}",
            f"{gold}#",
            f"{gold[:-1]}",
            f"{gold}#{other}",
            p.answer,
            f"#{p.answer}a",
            "",
        ]
        for text, verdict in [*((t, True) for t in right), *((t, False) for t in wrong)]:
            assert task.grade(p, text, True).correct == verdict, (p, text)
            counted += 1
        assert not task.grade(p, gold, False).correct
    assert counted >= 200


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


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_a_template_is_filled_once_and_braces_in_a_question_stay():
    prompt = made("arithmetic", "task/prompt=chat", "task.prompt.chat=false").prompt
    assert prompt.pose("What is {asks} or {question}?", "x") == (
        "What is {asks} or {question}? Put the final answer in \\boxed{}."
    )


def test_a_chat_prompt_is_a_conversation_with_the_system_turn_first():
    prompt = made("arithmetic", "task/prompt=chat", "task.prompt.system=Be brief.").prompt
    posed = prompt.pose("What is 2 + 3?", "2+3=")
    assert isinstance(posed, Conversation) and [role for role, _ in posed.turns] == ["system", "user"]
    assert posed.turns[1][1].startswith("What is 2 + 3? Put") and "Be brief." in posed


def test_examples_are_turns_before_the_question():
    posed = made("arithmetic", "task/prompt=few_shot").prompt.pose("What is 2 + 3?", "2+3=")
    roles, contents = zip(*posed.turns, strict=True)
    assert roles == ("user", "assistant") * 3 + ("user",) and contents[-1] == "What is 2 + 3?" and contents[1] == "23"


def test_templates_that_cannot_work_are_refused():
    whole = made("arithmetic").prompt.extract
    with pytest.raises(ValueError, match="names neither"):
        Prompt("What?", whole, False, None)
    with pytest.raises(ValueError, match="turns of a conversation"):
        Prompt("{question}", whole, False, "Be brief.")


def test_what_a_prompt_asks_for_follows_the_extraction_that_reads_it():
    task = made("arithmetic", "task/prompt=chat", "task/extract@task.prompt.extract=tags")
    posed = task.pose(2, "+", 3)
    assert "<answer>" in posed.prompt and task.grade(posed, "<answer>5</answer>", True).correct
    assert task.grade(posed, "\\boxed{5}", True).outcome == Outcome.NO_ANSWER


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
        ({"question": "Why?"}, "line 3 has no text or number for 'answer'"),
        ({"question": "Why?", "answer": None}, "line 3 has no text"),
        ({"question": "Why?", "answer": ""}, "line 3: the gold answer '' is no plain number"),
        ({"question": "Why?", "answer": "because"}, "line 3: the gold answer 'because'"),
        ({"question": " ", "answer": "1"}, "line 3 has an empty question"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(tmp_path, row, told):
    path = written(tmp_path / "bad.jsonl", [*questions(2), row])
    with pytest.raises(Exception, match=f"bad.jsonl {told}"):
        made("jsonl", f"task.train={path}")


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
