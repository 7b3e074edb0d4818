"""Tabular policies: the interface of a language model, with every probability in closed form."""

import inspect
import math
import random

import pytest
import torch

from ablations import grpo
from ablations.knobs import entropy
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.policy.language import LanguagePolicy
from ablations.policy.tabular import Bandit, GeometricStop, Tabular, TwoClass, TwoTokens
from ablations.tasks.tabular import Table


def policies() -> dict[str, Tabular]:
    return {
        "bandit": Bandit(torch.tensor([[0.3, -0.2, 1.0], [0.0, 0.5, -1.0]])),
        "bandit with lengths": Bandit(torch.tensor([[0.3, -0.2, 1.0]]), (1, 3, 2)),
        "two classes": TwoClass([0.2, 0.7]),
        "two tokens": TwoTokens(torch.tensor([0.5, -0.4]), torch.tensor([[0.2, -0.2], [0.9, -0.8]])),
        "geometric stop": GeometricStop([0.3, 0.6], (0.4, 0.7)),
        "geometric stop, one hazard": GeometricStop([0.3], (0.6,)),
    }


every_policy = pytest.mark.parametrize("name", list(policies()))


def sampled(policy, generator=None, group_size=50, temperature=1.0, limit=40, **settings):
    prompts = [str(i) for i in range(len(policy.start))]
    generator = generator or torch.Generator().manual_seed(1)
    return policy.sample(
        prompts, group_size, max_new_tokens=limit, temperature=temperature, generator=generator, **settings
    )


def again(policy, sample, temperature=1.0):
    return policy.token_logp(sample.prompt_ids, sample.prompt_mask, sample.ids, sample.mask, temperature=temperature)


def test_the_methods_that_training_calls_have_the_parameters_of_a_language_model():
    for method in ("sample", "token_logp"):
        ours, theirs = (inspect.signature(getattr(kind, method)).parameters for kind in (Tabular, LanguagePolicy))
        assert [(p.name, p.kind) for p in ours.values()] == [(p.name, p.kind) for p in theirs.values()]


@every_policy
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_sampler_and_the_trainer_give_the_same_log_probabilities(name, temperature):
    policy = policies()[name]
    sample = sampled(policy, temperature=temperature)
    logp, entropies = again(policy, sample, temperature)
    torch.testing.assert_close(logp, sample.logp, rtol=0, atol=0)
    torch.testing.assert_close(entropies, sample.entropy, rtol=0, atol=0)
    assert logp.dtype == torch.float64
    assert not sample.logp[~sample.mask].any() and not sample.entropy[~sample.mask].any()


@every_policy
def test_the_probabilities_of_all_answers_sum_to_one(name):
    policy = policies()[name]
    for prompt in range(len(policy.start)):
        total = groups.outcomes(policy, prompt=prompt, longest=8).probability(policy).sum()
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-12)


@every_policy
def test_answers_are_sampled_as_often_as_they_are_likely(name):
    policy, draws = policies()[name], 4000
    of = groups.outcomes(policy, longest=4)
    probability = of.probability(policy).detach()
    sample = policy.sample(["0"], draws, max_new_tokens=4, temperature=1.0, generator=torch.Generator().manual_seed(0))
    width = sample.ids.shape[1]
    for ids, mask, p in zip(of.ids, of.mask, probability, strict=True):
        same = ((sample.ids == ids[:width]) | ~sample.mask) & (sample.mask == mask[:width])
        share = same.all(1).double().mean()
        assert abs(share - p) <= 4 * (p * (1 - p) / draws).sqrt() + 1e-12


def test_rows_of_a_prompt_are_adjacent_and_an_answer_counts_its_last_token():
    policy = GeometricStop([0.3, 0.6], (0.4, 0.7))
    sample = sampled(policy, group_size=200, limit=3)
    assert sample.prompt_ids[:, 0].tolist() == [0] * 200 + [1] * 200
    assert sample.prompt_mask.all()
    assert sample.mask.sum(1).max() == 3 and not sample.ended.all()
    for text, length, ended in zip(sample.texts, sample.mask.sum(1).tolist(), sample.ended.tolist(), strict=True):
        assert len(text) == length
        assert ended == (text[-1] in "bd")  # these two stop


def test_the_score_of_a_stop_logit_is_one_minus_length_times_hazard():
    policy, hazard = GeometricStop([0.3], (0.2, 0.5)), 0.2
    of = groups.outcomes(policy, longest=6)
    wrong = [i for i in range(len(of.ids)) if int(of.ids[i, 0]) in (0, 1) and of.ended[i]]
    for i in wrong:
        score = torch.autograd.grad(of.logp(policy)[i], policy.hazard)[0][0, 0]
        torch.testing.assert_close(score.item(), 1 - of.mask[i].sum().item() * hazard, rtol=0, atol=1e-12)


@every_policy
def test_only_the_given_generator_is_drawn_from(name):
    policy, generator = policies()[name], torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    first = sampled(policy, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before)
    second = sampled(policy, generator)
    assert first.texts == second.texts
    assert sampled(policy, generator).texts != first.texts


def test_greedy_takes_the_likeliest_token_and_leaves_the_generator_alone():
    policy, generator = policies()["bandit"], torch.Generator().manual_seed(3)
    before = generator.get_state()
    sample = sampled(policy, generator, greedy=True, group_size=2)
    assert sample.texts == ["c", "c", "b", "b"]
    assert torch.equal(generator.get_state(), before)


def test_tokens_that_cannot_come_leave_value_and_gradient_finite():
    policy = GeometricStop([0.3], (0.4, 0.7))
    logp, entropies = again(policy, sampled(policy))
    (logp.sum() + entropies.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters())


def test_entropy_is_that_of_the_whole_distribution():
    sample = sampled(Bandit(torch.zeros(1, 5)), group_size=3)
    torch.testing.assert_close(sample.entropy, torch.full((3, 1), math.log(5), dtype=torch.float64))


@every_policy
def test_the_training_loop_trains_it_unchanged(name):
    policy = policies()[name]
    before = [p.detach().clone() for p in policy.parameters()]
    knobs = rules.knobs(scale=rules.group_std(), entropy=entropy.Constant(0.01))
    collect = runs.sampling(Table(len(policy.start), ["b"]), prompts=4, group_size=4, max_new_tokens=6)
    rows = list(
        runs.trained(
            policy, knobs, collect, steps=3, lr=0.1, beta=0.1, epochs=2, minibatches=2, tokens_per_micro_batch=7
        )
    )
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["ratio/first_update_deviation"] <= 1e-10
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_a_run_repeats_bit_by_bit():
    def end() -> torch.Tensor:
        policy = TwoClass([0.2, 0.5])
        collect = runs.sampling(Table(2, ["b"]), prompts=2, group_size=4)
        runs.finish(runs.trained(policy, rules.knobs(), collect, steps=4, lr=0.5, seed=5))
        return policy.logit.detach()

    assert torch.equal(end(), end())


@pytest.mark.parametrize("prompt", ["2", "-1", "x", ""])
def test_a_prompt_that_is_not_in_the_table_is_refused(prompt):
    with pytest.raises(ValueError, match="not in a table of 2 prompts"):
        TwoClass([0.2, 0.5]).sample(
            [prompt], 2, max_new_tokens=1, temperature=1.0, generator=torch.Generator().manual_seed(0)
        )


@pytest.mark.parametrize("lengths", [(1, 2), (1, 0, 2)])
def test_arms_need_one_length_each(lengths):
    with pytest.raises(ValueError, match="one length of at least 1 per arm"):
        Bandit(torch.zeros(1, 3), lengths)


def test_three_hazards_are_refused():
    with pytest.raises(ValueError, match="one for both modes, or two"):
        GeometricStop([0.5], (0.1, 0.2, 0.3))


# --- the task --------------------------------------------------------------------------------------------------------


def test_every_prompt_is_drawn_equally_often():
    drawn = [problem.key for problem in Table(3, ["b"]).draw(8, random.Random(0), "train")]
    counts = sorted(drawn.count(str(i)) for i in range(3))
    assert counts == [2, 3, 3]


def test_an_answer_is_right_if_it_begins_with_a_right_one():
    task = Table(1, ["c", "ab"])
    verdicts = {text: task.grade(task.problem(0), text, True).correct for text in ("c", "cd", "ab", "aa", "bc", "")}
    assert verdicts == {"c": True, "cd": True, "ab": True, "aa": False, "bc": False, "": False}


def test_a_reference_is_a_copy_that_training_does_not_move():
    policy = TwoClass([0.2])
    reference = TwoClass([0.2])
    collect = runs.sampling(Table(1, ["b"]), prompts=4, group_size=4)
    runs.finish(runs.trained(policy, rules.knobs(), collect, steps=2, lr=1.0, beta=0.1, reference=reference))
    assert torch.equal(reference.logit, TwoClass([0.2]).logit) and not torch.equal(policy.logit, reference.logit)
    assert isinstance(rules.knobs(), grpo.Knobs)
