"""Checking answers: the reported faults with their values, hundreds of forms with known verdicts, fuzzing, limits."""

import functools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from composing import composed
from hydra.utils import instantiate
from verify_inputs import fraction_of, hostile, numeric

from ablations.knobs import reward
from ablations.tasks.problem import Grade, Outcome
from ablations.tasks.verify import extract
from ablations.tasks.verify.check import UnreadableGold, any_number, grade_of, judge, same_number
from ablations.tasks.verify.number import number
from ablations.tasks.verify.symbolic import Symbolic, pool

POLICIES = ("whole", "first_marked", "last_marked", "boxed", "tags", "think_tags")


@functools.cache
def policy(name):
    return instantiate(composed("task=arithmetic", f"task/extract@task.prompt.extract={name}").task.prompt.extract)


MARKED = policy("first_marked")


def outcome(text, gold, extract_=MARKED, ended=True):
    return judge(text, ended, gold, extract_, same_number).outcome


# --- D01: which part of the text is the answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "gold", "told"),
    [
        ("2+40=42\n#### 42" + " chat" * 100, "42", "right"),
        ("#### 42 million" + " chat" * 100, "42", "wrong"),
        ("#### 42 or 43" + " chat" * 100, "42", "wrong"),
        ("#### 42 chat", "42", "wrong"),  # a short line is the answer, whole
        ("2+40=42\n#### 42\n" + "chat " * 100, "42", "right"),
        ("#### 42\nQ: what is 7?\n#### 7", "42", "right"),
        ("#### 42\nQ: what is 7?\n#### 7", "7", "wrong"),
        ("x=17, so 18 is wrong", "18", "no answer"),
        ("The answer is not 18", "18", "no answer"),
        ("#### not 18", "18", "wrong"),
        ("####", "18", "no answer"),
        ("", "18", "no answer"),
    ],
)
def test_the_first_marked_answer_counts_and_unmarked_text_is_no_answer(text, gold, told):
    assert outcome(text, gold) == told


def test_no_answer_and_wrong_are_two_outcomes_and_both_earn_nothing():
    texts = ("18", "#### 17", "#### 18")
    grades = [grade_of(judge(text, True, "18", MARKED, same_number), False, False) for text in texts]
    assert [g.outcome for g in grades] == ["no answer", "wrong", "right"]
    assert reward.correctness(grades, torch.zeros(3, dtype=torch.bool)).tolist() == [0, 0, 1]


def test_an_answer_that_was_cut_off_is_no_answer_whatever_stands_in_it():
    assert outcome("#### 42", "42", ended=False) == Outcome.NO_ANSWER


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("whole", " -84\n", "-84"),
        ("last_marked", "#### Step 1\n#### 7\n", "7"),
        ("boxed", r"so \boxed{1}, no, \boxed{\frac{1}{2}} is it", r"\frac{1}{2}"),
        ("boxed", r"\boxed{3} and \boxed{4", "3"),
        ("boxed", r"\boxed{\boxed{5}}", "5"),
        ("boxed", r"\boxed{a\}b}", r"a\}b"),
        ("boxed", r"\boxed{", None),
        ("boxed", r"\boxed{ }", None),
        ("tags", "<answer>1</answer><answer>2</answer>", "1"),
        ("tags", "<think><answer>1</answer></think><answer>2</answer>", "2"),
        ("tags", "</answer>3<answer>", None),
        ("tags", "<answer>3", None),
    ],
)
def test_each_policy_reads_the_mark_it_is_named_after(name, text, answer):
    assert policy(name).read(text) == answer


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("whole", ["7", " 7 "], ["", "a\nb"]),
        ("first_marked", ["x\n#### 7", "#### 7\n"], ["#### 7\nmore", "#### 1\n#### 7", "7"]),
        ("boxed", [r"it is \boxed{7}"], [r"\boxed{7} \boxed{8}", r"\boxed{7", "7"]),
        ("tags", ["so <answer>7</answer>"], ["<answer>7</answer> more", "<answer>1</answer><answer>7</answer>"]),
        (
            "think_tags",
            ["<think>a</think> <answer>7</answer>", "a</think>\n<answer>7</answer>\n"],
            ["<answer>7</answer>", "<think>a</think> so <answer>7</answer>", "a</think><answer></answer>"],
        ),
    ],
)
def test_the_form_is_judged_apart_from_the_answer(name, good, bad):
    assert all(map(policy(name).form, good)) and not any(map(policy(name).form, bad))


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_policy_asks_a_demonstrator_to_write_is_in_form_and_read_back(name):
    made = policy(name)
    assert made.read(made.write("-84")) == "-84" and made.form(made.write("-84"))


def test_the_policy_and_its_version_are_part_of_a_runs_config():
    cfg = composed("task=arithmetic", "task/prompt=chat")
    assert cfg.task.prompt.extract.read._target_.endswith("extract.boxed")
    assert cfg.task.prompt.extract.version == extract.VERSION
    with pytest.raises(Exception, match="version 0 of the answer extraction"):
        instantiate(composed("task=arithmetic", "task.prompt.extract.version=0").task)


def test_a_form_that_its_policy_does_not_read_back_is_refused():
    with pytest.raises(ValueError, match="does not read the answer back"):
        extract.Extract(extract.boxed, extract.one_box, "", "{answer}", extract.VERSION)


# --- D02 and D03: which numbers are equal -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1\\,800", "1800"), ("1,800", "1800"), ("\\$18", "18"), ("\u20133", "-3"), ("\u22123", "-3"), ("50\\%", "0.5"),
        ("0.5", "50\\%"), ("**73**", "73"), ("18 dollars", "18"), ("18.00", "18"), ("1/2", "0.5"), ("0.5", "1/2"),
    ],
)  # fmt: skip
def test_right_answers_are_not_rejected_over_their_form(answer, gold):
    assert same_number(answer, gold) == Outcome.RIGHT


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("1.000", "1000"), ("50", "50\\%"), ("50\\%", "50"), ("8\\times 9", "72"), ("801", "1800"), ("1,80", "180"),
        ("not 18", "18"), ("18 or 19", "18"), ("1/3", "0.333333"), ("5 million", "5"), ("0.1000000000000000001", "0.1"),
        ("5\n1/2", "5.5"), ("5\n%", "0.05"), ("5\r\nkm", "5"), ("1e-400", "0"),
        ("99999999999999999999", "100000000000000000000"),
    ],
)  # fmt: skip
def test_other_numbers_and_ambiguous_ones_are_not_accepted(answer, gold):
    assert same_number(answer, gold) == Outcome.WRONG


def test_an_answer_is_read_after_words_that_were_declared_its_mark():
    read = partial(extract.first_marked, marker="answer is")
    assert number(read("So the answer is \u20133")) == -3


SYMBOLIC = Symbolic(limit=5.0, workers=1)  # a limit that a busy machine does not reach


@pytest.mark.extra
@pytest.mark.parametrize(
    ("answer", "gold", "told"),
    [
        ("1/2^{99}", "1/2^{98}", "wrong"),
        ("1/2^{98}", "1/2^{98}", "right"),
        ("3x+5=0", "2x+3=0", "wrong"),
        ("y=3x+3", "y=2x+3", "wrong"),
        ("50", "50\\%", "wrong"),
        ("50\\%", "50", "wrong"),
        ("8\\times 9", "72", "wrong"),
        ("2\\sqrt{2}", "\\sqrt{8}", "right"),
        ("(x-1)(x+1)", "x^2-1", "right"),
        ("\\{2,1\\}", "\\{1,2\\}", "right"),
        ("[1,2]", "[1,2)", "wrong"),
        ("1.4142136", "\\sqrt{2}", "wrong"),
        ("x = 5", "5", "right"),
        ("5", "x=5", "right"),
        ("y=5", "x=5", "wrong"),
        ("0.5", "50\\%", "right"),
        ("}{", "x^2", "wrong"),
    ],
)
def test_symbolic_answers_are_compared_exactly(answer, gold, told):
    pytest.importorskip("math_verify")
    assert SYMBOLIC(answer, gold) == told


# --- D04: limits that hold -------------------------------------------------------------------------------------------

HARD = "9^{9^{9}}"


@pytest.mark.extra
def test_a_pool_of_threads_gets_the_scores_of_the_main_thread_and_the_hard_answer_times_out():
    pytest.importorskip("math_verify")
    same = Symbolic(limit=1.0, workers=2)
    answers = ["\\sqrt{8}", "2\\sqrt{2}", "3", "2\\cdot\\sqrt{2}", HARD, "\\sqrt{9}", "2^{3/2}", "x"]
    alone = [same(answer, "\\sqrt{8}") for answer in answers]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda answer: same(answer, "\\sqrt{8}"), answers))
    assert alone == together
    assert alone == ["right", "right", "wrong", "right", "timed out", "wrong", "right", "wrong"]


@pytest.mark.extra
def test_a_limit_below_a_second_ends_an_answer_that_no_signal_can_interrupt(monkeypatch):
    """The worker stops its own timer: only its end can free the next answer, which is then judged as usual."""
    pytest.importorskip("math_verify")
    from ablations.tasks.verify import symbolic

    same = Symbolic(limit=0.3, workers=1)
    assert same("2\\sqrt{2}", "\\sqrt{8}") in ("right", "timed out")  # the worker is there
    (worker,) = pool(1)._all
    worker.process.send_signal(19)  # SIGSTOP: deaf to everything but its end
    waited = []
    thread = threading.Thread(target=lambda: waited.append(_timed(same, "2\\sqrt{2}", "\\sqrt{8}")))
    thread.start()
    thread.join(60)
    told, seconds = waited[0]
    assert told == Outcome.TIMED_OUT and 0.3 <= seconds < 5 and worker.process.poll() is not None
    assert Symbolic(limit=20.0, workers=1)("2\\sqrt{2}", "\\sqrt{8}") == Outcome.RIGHT
    assert symbolic.GRACE < 1


def _timed(function, *arguments):
    started = time.monotonic()
    return function(*arguments), time.monotonic() - started


@pytest.mark.extra
def test_a_worker_that_dies_is_a_failed_check_and_not_a_wrong_answer():
    pytest.importorskip("math_verify")
    same = Symbolic(limit=20.0, workers=1)
    same("1", "\\sqrt{8}")
    (worker,) = pool(1)._all
    worker.process.kill()
    told = judge("#### \\sqrt{2}", True, "\\sqrt{8}", MARKED, same)
    assert told.outcome == Outcome.FAILED and "ended" in told.reason
    grade = grade_of(told, True, False)
    assert grade.correct is None and torch.isnan(reward.correctness([grade], torch.tensor([False]))).all()
    assert same("2\\sqrt{2}", "\\sqrt{8}") == Outcome.RIGHT  # another took its place


@pytest.mark.parametrize("change", [dict(limit=0.0), dict(workers=0)])
def test_limits_that_are_none_are_refused(change):
    with pytest.raises(ValueError, match=r"task\.same\.limit"):
        Symbolic(**{"limit": 1.0, "workers": 1} | change)


# --- D05 and D07: gold answers that cannot be read, and checkers that fail --------------------------------------------


@pytest.mark.parametrize("gold", ["", "forty-two", "8*9", "50 or 60"])
def test_a_gold_answer_that_cannot_be_read_never_pays(gold):
    with pytest.raises(UnreadableGold, match="no plain number"):
        same_number(gold, gold)


@pytest.mark.extra
def test_an_empty_symbolic_gold_answer_is_found_before_anything_is_paid():
    pytest.importorskip("math_verify")
    for gold in ("", "  ", "\\text{}"):
        with pytest.raises(UnreadableGold):
            SYMBOLIC.check_gold(gold)
    SYMBOLIC.check_gold("\\sqrt{8}")


# --- many forms, hostile texts, speed ---------------------------------------------------------------------------------


def test_200_generated_forms_of_numbers_have_their_known_verdicts():
    rng = random.Random(0)
    for answer, gold, right in numeric(2000, rng):
        assert (same_number(answer, gold) == Outcome.RIGHT) == right, (answer, gold)


def quick(function, text):
    """At most 50 ms of processor time; the fastest of five, since one may pay for the collection of others' garbage."""
    for _ in range(5):
        started = time.thread_time()
        function(text)
        if time.thread_time() - started < 0.05:
            return True
    return False


@pytest.mark.parametrize("name", POLICIES)
def test_no_text_breaks_an_extractor_or_keeps_it_busy(name):
    """No exception, at most 50 ms of processor time, and what it reads is a piece of the text."""
    made, rng = policy(name), random.Random(name)
    for text in hostile(3000, rng):
        answer = made.read(text)
        assert quick(made.read, text) and quick(made.form, text), text[:80]
        assert answer is None or (answer and answer in text)


def test_no_text_is_read_as_another_number():
    """Whatever a dull reader of plain numbers reads as well, both read alike; and a number never grows digits."""
    rng = random.Random(1)
    for text in hostile(6000, rng):
        read = number(text)
        assert quick(number, text), text[:80]
        dull = fraction_of(text.strip()) if len(text) < 200 else None
        assert read is None or dull is None or read == dull, text
    for _ in range(5000):
        text = "".join(rng.choices("0123456789.,-/ ", k=rng.randrange(1, 8)))
        read, dull = number(text), fraction_of(text.strip())
        assert read is None or dull is None or read == dull, text


def test_a_careless_checker_passes_a_list_of_guesses_and_a_strict_one_does_not():
    text = "#### 1, 2, 3 or 42?"
    assert any_number(text, "42") and outcome(text, "42") == Outcome.WRONG
    assert not any_number("420 and 4.2 and -42", "42") and any_number("it is 42.", "42")


def test_a_task_without_a_careless_checker_or_steps_refuses_their_rewards():
    grade = Grade(True, True, "1")
    with pytest.raises(ValueError, match="no careless checker"):
        reward.lenient([grade])
    with pytest.raises(ValueError, match="checks no steps"):
        reward.chain([grade], torch.tensor([False]))
