"""Evaluation: right counts, unbiased pass@k, and no trace left on the policy or on any other generator."""

import itertools
import math
import random

import pytest
import torch

from ablations import evaluate
from ablations.policy.load import scratch
from ablations.policy.sample import Sample
from ablations.tasks.chain_sum import ALPHABET, END, PAD, UNKNOWN, ChainSum

TASK = ChainSum(levels=(1, 2, 3), one_in=7, max_new_tokens=36)
SETTINGS = dict(task=TASK, problems=120, batch=50, max_new_tokens=36, temperature=1.0, seed=3)


class Scripted:
    """Answers say(prompt, draw) with a uniform draw, which is 0 when greedy."""

    def __init__(self, say):
        self.say, self.calls = say, []

    def sample(self, prompts, group_size, *, max_new_tokens, temperature, generator, greedy=False):
        self.calls.append((len(prompts), group_size, temperature, greedy))
        n = len(prompts) * group_size
        draws = [0.0] * n if greedy else torch.rand(n, generator=generator).tolist()
        texts = [self.say(prompts[i // group_size], draw) for i, draw in enumerate(draws)]
        mask = torch.arange(max_new_tokens) <= torch.tensor([len(text) for text in texts])[:, None]
        empty = torch.zeros(n, 1)
        return Sample(empty, empty, empty, mask, torch.ones(n, dtype=torch.bool), empty, empty, texts)


def total(prompt):
    return sum(int(c) for c in prompt if c.isdigit()) % 10


def test_accuracy_is_the_share_of_right_answers_over_all_and_by_level():
    # Right at level 1, wrong at level 2; at level 3 sampled answers are right when their draw is above .75.
    def say(prompt, draw):
        level = sum(c.isdigit() for c in prompt) - 1
        wrong = {1: 0, 2: 1, 3: int(draw <= 0.75)}[level]
        return f"#{(total(prompt) + wrong) % 10}"

    metrics = evaluate.heldout(Scripted(say), **{**SETTINGS, "problems": 3000})
    assert metrics["accuracy/heldout/level_1"] == 1.0 and metrics["accuracy/heldout/level_2"] == 0.0
    assert metrics["accuracy/heldout/level_3"] == pytest.approx(0.25, abs=0.05)
    assert metrics["accuracy/heldout"] == pytest.approx(1.25 / 3, abs=0.04)
    assert metrics["accuracy/heldout_greedy"] == pytest.approx(1 / 3, abs=0.04)


def test_only_held_out_problems_are_asked_and_batches_have_the_given_size():
    policy = Scripted(lambda prompt, draw: "#0")
    asked = TASK.draw(120, random.Random("problems 3"), "heldout")
    evaluate.heldout(policy, **SETTINGS)
    sampled = [call for call in policy.calls if not call[3]]
    assert [call[0] for call in sampled] == [50, 50, 20]
    assert sum(call[0] for call in policy.calls if call[3]) == len(set(asked)) < 120
    assert all(TASK.is_held_out([int(c) for c in p.prompt if c.isdigit()]) for p in asked)


def test_equal_seeds_ask_every_policy_the_same_and_give_the_same_numbers():
    policies = [Scripted(lambda prompt, draw: f"#{int(draw * 10)}") for _ in range(2)]
    one, two = (evaluate.heldout(policy, **SETTINGS) for policy in policies)
    assert one == two
    assert evaluate.heldout(policies[0], **{**SETTINGS, "seed": 4}) != one


def test_answers_that_could_not_be_graded_are_left_out_of_the_accuracy():
    class Unsure(ChainSum):
        def grade(self, problem, text, ended):
            grade = super().grade(problem, text, ended)
            return grade if problem.level == 1 else grade._replace(correct=None)

    settings = SETTINGS | {"task": Unsure(levels=(1, 2), one_in=7, max_new_tokens=36)}
    metrics = evaluate.heldout(Scripted(lambda prompt, draw: f"#{total(prompt)}"), **settings)
    assert metrics["accuracy/heldout"] == 1.0
    assert "accuracy/heldout/level_2" not in metrics


@pytest.mark.parametrize(("n", "right", "k", "value"), [(4, 1, 2, 0.5), (4, 0, 3, 0.0), (4, 4, 1, 1.0), (4, 2, 3, 1.0)])
def test_pass_at_k_by_hand(n, right, k, value):
    assert evaluate.pass_at_k(n, right, k) == pytest.approx(value)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k_is_unbiased_by_enumeration(k):
    # Sum over every outcome of n = 5 answers, each right with probability p: the mean must be 1 - (1 - p)^k exactly.
    n, p = 5, 0.3
    mean = 0.0
    for outcome in itertools.product((0, 1), repeat=n):
        c = sum(outcome)
        mean += p**c * (1 - p) ** (n - c) * evaluate.pass_at_k(n, c, k)
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_pass_at_k_is_reported_for_every_k_and_never_falls_with_it():
    policy = Scripted(lambda prompt, draw: f"#{(total(prompt) + (draw > 0.3)) % 10}")
    metrics = evaluate.heldout(policy, **SETTINGS, samples=8, ks=(1, 2, 8))
    values = [metrics[f"accuracy/heldout/pass_at_{k}"] for k in (1, 2, 8)]
    assert values[0] == pytest.approx(metrics["accuracy/heldout"], abs=1e-12)
    assert values == sorted(values) and values[1] == pytest.approx(1 - 0.7**2, abs=0.06)
    with pytest.raises(ValueError, match="needs at least k"):
        evaluate.heldout(policy, **SETTINGS, samples=2, ks=(4,))


def test_evaluating_moves_neither_the_policy_nor_any_generator_of_training():
    sizes = dict(hidden=16, layers=1, heads=2, key_value_heads=2, feed_forward=16, rope_theta=1000.0, norm_eps=1e-6)
    generator = torch.Generator().manual_seed(0)
    signs = dict(end=END, pad=PAD, unknown=UNKNOWN)
    policy = scratch(ALPHABET, **signs, generator=generator, **sizes, initial_std=0.3, max_positions=64)
    policy.train()
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate(), generator.get_state(), policy.training
    weights = [parameter.clone() for parameter in policy.parameters()]
    metrics = evaluate.heldout(policy, **{**SETTINGS, "problems": 40})
    assert 0 <= metrics["accuracy/heldout"] <= 1 and not any(map(math.isnan, metrics.values()))
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert torch.equal(before[2], generator.get_state()) and before[3] == policy.training
    assert all(torch.equal(a, b) for a, b in zip(weights, policy.parameters(), strict=True))
