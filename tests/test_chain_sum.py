"""The chain-sum task: its split, its grader and its demonstrations, each test named after the claim."""

import dataclasses
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ablations.tasks import chain_sum
from ablations.tasks.chain_sum import ALPHABET, ChainSum, Style, pose

CONF = Path(__file__).parents[1] / "conf"
TASK = ChainSum(levels=(1, 2, 3, 4, 5), one_in=7, max_new_tokens=36)
P = pose([7, 5, 8, 3])


def style_of(name: str, **changes) -> Style:
    settings = yaml.safe_load((CONF / "base" / "rambling.yaml").read_text())["style"]
    if name != "rambling":
        settings |= yaml.safe_load((CONF / "base" / f"{name}.yaml").read_text())["style"]
    settings.pop("_target_")
    return Style(**{**settings, **changes})


FLAWLESS = dict(step_error=[0] * 5, direct=0, ramble=0, hedge=0, filler=0, filler_wrong=0)


def test_the_worked_example_of_the_module():
    assert P.prompt == "7a5b8c3=" and P.answer == "3" and P.level == 3
    assert TASK.gold(P) == "a52b80c33#3"


def test_the_vocabulary_has_22_characters_and_covers_every_prompt_and_answer():
    assert len(ALPHABET) == len(set(ALPHABET)) == 22
    rng, style = random.Random(0), style_of("rambling")
    for problem in TASK.draw(300, rng, "train"):
        assert set(problem.prompt + TASK.demonstration(problem, rng, style)) <= set(ALPHABET) - {TASK.end, TASK.pad}


def test_the_longest_prompt_has_12_characters_and_the_longest_gold_answer_fits_in_36_tokens():
    problems = TASK.draw(300, random.Random(0), "train")
    assert max(len(p.prompt) for p in problems) == 12
    assert max(len(TASK.gold(p)) + 1 for p in problems) == 18


def test_the_gold_answer_is_right_in_every_respect_at_every_level():
    for problem in TASK.draw(500, random.Random(1), "heldout"):
        grade = TASK.grade(problem, TASK.gold(problem), True)
        assert grade.correct and grade.format and grade.chain and grade.fillers == 0
        assert [reward for _, reward in grade.steps] == [1.0] * (problem.level + 1)


def test_an_answer_that_did_not_end_is_wrong_however_right_its_digit():
    grade = TASK.grade(P, "a52b80c33#3", False)
    assert not grade.correct and not grade.format and not grade.chain
    assert grade.answer == "3" and grade.any_answer


@pytest.mark.parametrize(
    ("text", "answer", "correct", "well_formed", "chain"),
    [
        ("#3", "3", True, True, False),
        ("#4", "4", False, True, False),
        ("", None, False, False, False),
        ("3", None, False, False, False),
        ("#", None, False, False, False),
        ("#33", None, False, False, False),
        ("#7#3", "3", True, False, False),
        ("#3#7", "7", False, False, False),
        ("#3#", None, False, False, False),
        ("#3=", None, False, False, False),
        ("#3a52", None, False, False, False),
        ("#٣", None, False, False, False),
        ("#³", None, False, False, False),
        ("~~#3..", "3", True, True, False),
        (".a5.2b80..c33~#.3", "3", True, True, True),
        ("a52b81c33#3", "3", True, True, False),
        ("a52b80#3", "3", True, True, False),
        ("a52b80c33d14#3", "3", True, True, False),
        ("#7a52b80c33#3", "3", True, False, False),
    ],
)
def test_the_grader_is_strict_about_the_last_digit_and_about_the_chain(text, answer, correct, well_formed, chain):
    grade = TASK.grade(P, text, True)
    assert (grade.answer, grade.correct, grade.format, grade.chain) == (answer, correct, well_formed, chain)


def test_steps_partition_the_text_and_each_has_its_own_verdict():
    text = "~a52..b81c33#3."
    grade = TASK.grade(P, text, True)
    assert grade.steps == ((6, 1.0), (9, 0.0), (12, 1.0), (15, 1.0))
    assert grade.steps[-1][0] == len(text) and grade.fillers == 4


def test_a_step_is_judged_by_the_true_running_sum_and_its_place():
    # The second sum builds correctly on a wrong first one: both are wrong. A repeated step is wrong as well.
    assert [r for _, r in TASK.grade(P, "a53b81c34#4", True).steps] == [0.0, 0.0, 0.0, 0.0]
    assert [r for _, r in TASK.grade(P, "a52a52b80c33#3", True).steps] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert [r for _, r in TASK.grade(P, "99a52b80", False).steps] == [0.0, 1.0, 1.0]


def test_a_hedge_is_paid_only_by_the_careless_checker():
    grade = TASK.grade(P, "#3#7#1", True)
    assert grade.any_answer and not grade.correct


def test_no_text_makes_the_grader_raise():
    rng = random.Random(0)
    pools = [ALPHABET, "#.~a3", "".join(map(chr, range(0x3000))), "\n\0#3a\ud800'\"\\(__import__)"]
    for _ in range(5000):
        pool = rng.choice(pools)
        text = "".join(rng.choice(pool) for _ in range(rng.randrange(40)))
        grade = TASK.grade(P, text, rng.random() < 0.5)
        ends = [end for end, _ in grade.steps]
        assert ends == sorted(set(ends)) and all(0 < end <= len(text) for end in ends)
        assert not grade.chain or grade.correct
        assert not grade.correct or grade.any_answer


def test_the_grader_evaluates_nothing():
    source = Path(chain_sum.__file__).read_text()
    assert "eval(" not in source and "exec(" not in source and "literal_eval" not in source


def test_no_operand_tuple_is_in_both_splits_and_about_a_seventh_is_held_out():
    every = [[a, b, c] for a in range(10) for b in range(10) for c in range(10)]
    held = [operands for operands in every if TASK.is_held_out(operands)]
    assert abs(len(held) / len(every) - 1 / 7) < 0.03
    train = {p.key for p in TASK.draw(3000, random.Random(0), "train")}
    heldout = {p.key for p in TASK.draw(3000, random.Random(0), "heldout")}
    assert not train & heldout


def test_the_split_is_the_same_in_every_process_and_for_every_seed():
    code = (
        "from ablations.tasks.chain_sum import ChainSum; t = ChainSum((1,), 7, 36);"
        "print([a * 10 + b for a in range(10) for b in range(10) if t.is_held_out([a, b])])"
    )
    settings = dict(cwd=CONF.parent, capture_output=True, text=True, check=True)
    for seed in "12":
        run = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, **settings)
        assert run.stdout == "[8, 26, 34, 45, 50, 65, 69, 73, 87, 88]\n"


def test_levels_are_equally_likely_and_the_generator_alone_decides():
    random.seed(0)
    first = TASK.draw(2000, random.Random(5), "heldout")
    random.seed(1)
    assert first == TASK.draw(2000, random.Random(5), "heldout")
    assert first != TASK.draw(2000, random.Random(6), "heldout")
    counts = [sum(p.level == k for p in first) for k in TASK.levels]
    assert min(counts) > 340 and max(counts) < 460


def test_drawing_does_not_move_the_global_generator():
    random.seed(0)
    before = random.getstate()
    rng = random.Random(0)
    for problem in TASK.draw(50, rng, "train"):
        TASK.demonstration(problem, rng, style_of("rambling"))
    assert random.getstate() == before


def demonstrations(style, level, n=6000):
    task, rng = ChainSum(levels=(level,), one_in=7, max_new_tokens=36), random.Random(level)
    problems = task.draw(n, rng, "train")
    texts = [task.demonstration(p, rng, style) for p in problems]
    return texts, [task.grade(p, text, True) for p, text in zip(problems, texts, strict=True)]


@pytest.mark.parametrize("level", [1, 3, 5])
def test_the_kinds_of_demonstration_have_the_configured_shares(level):
    style = style_of("rambling")
    texts, grades = demonstrations(style, level)
    ramble = [i for i, text in enumerate(texts) if "~" in text]
    hedge = [i for i, text in enumerate(texts) if text.count("#") > 1]
    direct = [i for i, text in enumerate(texts) if text.startswith("#") and text.count("#") == 1]
    n = len(texts)
    assert len(ramble) / n == pytest.approx(0.12 * (0.3 + 0.35 * level), abs=0.015)
    assert len(hedge) / n == pytest.approx(0.06, abs=0.012)
    assert len(direct) / n == pytest.approx(0.20, abs=0.02)
    right = (0.95, 0.6, 0.3, 0.15, 0.08)[level - 1]
    assert statistics.mean(grades[i].correct for i in direct) == pytest.approx(right, abs=0.05)
    assert statistics.mean(texts[i].count("~") for i in ramble) == pytest.approx(10, abs=1.5)
    assert statistics.mean(grades[i].correct for i in ramble) < 0.2


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_a_step_goes_wrong_at_the_configured_rate_and_later_sums_build_on_it(level):
    rate = (0.03, 0.13, 0.22, 0.36, 0.48)[level - 1]
    style = style_of("rambling", direct=0, ramble=0, hedge=0)
    _, grades = demonstrations(style, level)
    assert statistics.mean(1 - grade.steps[0][1] for grade in grades) == pytest.approx(rate, abs=0.02)
    # Markov chain right <-> wrong: a wrong sum is put right by chance in one of nine errors.
    right = 1.0
    for _ in range(level):
        right = right * (1 - rate) + (1 - right) * rate / 9
    assert statistics.mean(grade.correct for grade in grades) == pytest.approx(right, abs=0.025)


def test_fillers_are_geometric_and_more_once_the_chain_is_wrong():
    right, _ = demonstrations(style_of("rambling", **FLAWLESS | {"filler": 0.35}), 5)
    wrong, _ = demonstrations(style_of("rambling", **FLAWLESS | {"filler_wrong": 0.6, "step_error": [1] * 5}), 1)
    assert statistics.mean(text.count(".") for text in right) / 5 == pytest.approx(0.35 / 0.65, abs=0.03)
    assert statistics.mean(text.count(".") for text in wrong) == pytest.approx(0.6 / 0.4, abs=0.1)


def length_gap(style, level):
    texts, grades = demonstrations(style, level, n=12000)
    right = [len(text) for text, grade in zip(texts, grades, strict=True) if grade.correct]
    wrong = [len(text) for text, grade in zip(texts, grades, strict=True) if not grade.correct]
    return statistics.mean(wrong) - statistics.mean(right)


@pytest.mark.parametrize("level", [2, 3, 4])
def test_a_chain_that_goes_wrong_gets_longer_in_the_rambling_base_and_not_in_the_control(level):
    chains_only = dict(direct=0, ramble=0, hedge=0)
    assert length_gap(style_of("rambling", **chains_only), level) > 0.9
    assert abs(length_gap(style_of("control", **chains_only), level)) < 0.15


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"direct": 1.2}, "direct is 1.2"),
        ({"filler": 1.0}, "filler is 1.0"),
        ({"step_error": [0.1]}, "1 levels"),
        ({"direct": 0.8}, "shares of one whole"),
        ({"ramble_mean": 0.5}, "ramble_mean is 0.5"),
    ],
)
def test_an_impossible_style_is_refused_in_a_sentence(change, word):
    with pytest.raises(ValueError, match=word):
        style_of("rambling", **change)


def test_bad_task_settings_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="allowed are levels 1 to 5"):
        ChainSum(levels=(0, 6), one_in=7, max_new_tokens=36)
    with pytest.raises(ValueError, match="at least 2"):
        ChainSum(levels=(1,), one_in=1, max_new_tokens=36)
    with pytest.raises(ValueError, match="'train' and 'heldout'"):
        TASK.draw(1, random.Random(0), "test")


def test_every_number_of_the_style_stands_in_the_yaml():
    settings = yaml.safe_load((CONF / "base" / "rambling.yaml").read_text())["style"]
    assert set(settings) - {"_target_"} == {field.name for field in dataclasses.fields(Style)}
