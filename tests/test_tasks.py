"""Tasks: problems that are what they say, splits by problem, strict graders, and careless ones."""

import functools
import random
import re
from fractions import Fraction

import pytest
from composing import composed
from hydra.utils import instantiate
from verify_inputs import hostile

from ablations.tasks import countdown, sorting
from ablations.tasks.demonstrator import Slips
from ablations.tasks.problem import Outcome
from ablations.tasks.prompt import Conversation, Prompt

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
