"""What a run makes of its checkers: failures are no zeros, too many stop it, and two checkers are told apart."""

import json
import math
import random

import pytest
import torch
from composing import composed
from hydra.utils import instantiate

from ablations import evaluate, measure, rollout, run
from ablations.knobs import reward
from ablations.policy.sample import Sample
from ablations.tasks.arithmetic import Arithmetic
from ablations.tasks.problem import Grade, Outcome
from ablations.tasks.verify.check import same_number


def test_a_checker_that_fails_on_one_of_four_leaves_that_answer_unscored_and_stops_a_run_that_allows_less():
    """A raising verifier is not an answer of reward 0."""
    right, failed = Grade(True, True, "1", outcome=Outcome.RIGHT), Grade(None, True, "?", outcome=Outcome.FAILED)
    wrong, none = Grade(False, True, "2", outcome=Outcome.WRONG), Grade(False, False, None, outcome=Outcome.NO_ANSWER)
    grades = [right, failed, wrong, none]
    scores = reward.correctness(grades, torch.zeros(4, dtype=torch.bool))
    assert scores[0] == 1 and torch.isnan(scores[1]) and scores[2:].tolist() == [0, 0]
    rollout.stop_if_broken(grades, allowed=0.25)
    with pytest.raises(rollout.CheckerBroken, match=r"could not tell 1 of 4 answers, for example '\?' \(checker fail"):
        rollout.stop_if_broken(grades, allowed=0.2)
    late = failed._replace(outcome=Outcome.TIMED_OUT)
    with pytest.raises(rollout.CheckerBroken, match="timed out"):
        rollout.stop_if_broken([late, right], allowed=rollout.FAILURES_ALLOWED)


def test_the_gap_is_what_the_careless_checker_passes_beyond_the_strict_one():
    correct, lenient = torch.tensor([1.0, 0, 0, math.nan]), torch.tensor([1.0, 1, 0, 1])
    paid = torch.tensor([1.0, 1, 0, math.nan])
    outcomes = ["right", "wrong", "no answer", "checker failed"]
    row = measure.checker_metrics(correct, lenient, paid, outcomes)
    assert row["accuracy/lenient"] == pytest.approx(2 / 3) and row["accuracy/lenient_gap"] == pytest.approx(1 / 3)
    assert row["reward/gold_gap"] == pytest.approx(1 / 3)
    assert row["answers/none_share"] == 0.25 and row["answers/failed"] == 1 and row["answers/timed_out"] == 0
    silent = measure.checker_metrics(correct, torch.full((4,), math.nan), paid, [None] * 4)
    assert set(silent) == {"reward/gold_gap"}


class Guesses:
    """Answers every sum with a list of guesses that has the right one."""

    def sample(self, prompts, group_size, *, max_new_tokens, temperature, generator, greedy=False):
        texts = [f"7, {sum(map(int, p.strip('=').split('+')))}" for p in prompts for _ in range(group_size)]
        n = len(texts)
        empty, mask = torch.zeros(n, 1), torch.ones(n, 4, dtype=torch.bool)
        return Sample(empty, empty, empty, mask, torch.ones(n, dtype=torch.bool), empty, empty, texts)


def test_held_out_accuracy_is_told_by_both_checkers():
    prompt = instantiate(composed("task=arithmetic").task).prompt
    task = Arithmetic([1], ["+"], False, 7, 8, prompt, same_number)
    settings = dict(problems=20, batch=10, max_new_tokens=8, temperature=1.0, seed=0)
    metrics = evaluate.heldout(Guesses(), task=task, **settings)
    assert metrics["accuracy/heldout"] == 0 and metrics["accuracy/heldout_lenient"] == 1


class Flaky(Arithmetic):
    """A task whose checker fails on half of the answers."""

    def grade(self, problem, text, ended):
        grade = super().grade(problem, text, ended)
        broken = random.Random(problem.key + text).random() < 0.5
        return grade._replace(correct=None, outcome=Outcome.FAILED) if broken else grade


def test_a_run_with_a_broken_checker_ends_as_failed_with_the_reason_and_not_with_rewards_of_0(results):
    overrides = ["task=arithmetic", "task._target_=test_checkers_in_runs.Flaky", "base=slips", "steps=2"]
    overrides += ["base.clean_steps=4", "base.noisy_steps=2", "base.record_problems=8", "evaluate.problems=8"]
    overrides += ["rollout.prompts=4", "machine.tracking=none"]
    assert run.run(composed(*overrides), overrides) == "failed"
    (folder,) = results.glob("single/runs/*")
    assert "could not tell" in json.loads((folder / "status.json").read_text())["reason"]
