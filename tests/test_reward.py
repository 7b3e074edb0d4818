"""Grades to rewards: parts, transforms, and placebos that pay without looking at the answer."""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs import reward
from ablations.knobs.call import call
from ablations.tasks.problem import Grade

CONF = Path(__file__).parents[1] / "conf"
NAN = math.nan


def grade(correct, format=True, chain=None, any_answer=False):
    return Grade(correct, format, "3", bool(correct) if chain is None else chain, 0, (), any_answer)


GRADES = [grade(True), grade(False), grade(None), grade(True), grade(False, format=False), grade(True, chain=False)]
TRUNCATED = torch.tensor([False, False, False, True, True, False])
GROUP = torch.tensor([0, 0, 0, 1, 1, 1])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12, equal_nan=True)


def many(n, seed=5):
    """n answers of a random third each: right, wrong, and in between some that were not scored."""
    verdicts = torch.randint(0, 20, (n,), generator=generator(seed)).tolist()
    grades = [grade(None if v == 0 else v < 8) for v in verdicts]
    return grades, torch.zeros(n, dtype=torch.bool), torch.arange(n) // 8


# --- parts ---------------------------------------------------------------------------------------------------------


def test_a_truncated_answer_earns_nothing_for_being_correct():
    equal(reward.correctness(GRADES, TRUNCATED), tensor(1, 0, NAN, 0, 0, 1))


def test_an_answer_that_could_not_be_told_is_unscored_and_not_wrong_even_if_truncated():
    equal(reward.correctness([grade(None), grade(None)], torch.tensor([False, True])), tensor(NAN, NAN))
    equal(reward.chain([grade(None, chain=True)], torch.tensor([False])), tensor(NAN))
    equal(reward.lenient([grade(None, any_answer=True)]), tensor(NAN))


def test_the_chain_part_asks_for_every_step():
    equal(reward.chain(GRADES, TRUNCATED), tensor(1, 0, NAN, 0, 0, 0))


def test_the_format_part_does_not_ask_whether_the_answer_is_right():
    equal(reward.formatted(GRADES), tensor(1, 1, 1, 1, 0, 1))


def test_the_lenient_part_pays_for_any_offered_answer():
    equal(reward.lenient([grade(False, any_answer=True), grade(False), grade(True, any_answer=True)]), tensor(1, 0, 1))


def test_soft_overlong_is_0_then_falls_over_the_buffer_to_minus_1():
    lengths = torch.tensor([0, 16384, 18432, 20480, 99999])
    equal(reward.soft_overlong(lengths, max_length=20480, buffer=4096, factor=1.0), -tensor(0, 0, 0.5, 1, 1))
    equal(reward.soft_overlong(lengths, max_length=20480, buffer=4096, factor=0.3), -tensor(0, 0, 0.15, 0.3, 0.3))


@pytest.mark.parametrize("buffer", [0, -3, 37])
def test_an_overlong_buffer_outside_the_length_is_refused(buffer):
    with pytest.raises(ValueError, match=f"buffer {buffer} and max_length 36"):
        reward.soft_overlong(torch.tensor([1]), max_length=36, buffer=buffer, factor=1.0)


def test_an_answer_without_an_end_token_pays_the_penalty():
    equal(reward.truncation(TRUNCATED, penalty=-10.0), tensor(0, 0, 0, -10, -10, 0))


# --- placebos ------------------------------------------------------------------------------------------------------

PLACEBOS = {
    "random": lambda g, t, ids, rng: reward.random(g, t, rng, probability=0.3),
    "shuffled_gold": lambda g, t, ids, rng: reward.shuffled_gold(g, t, rng),
    "shuffled_within_group": reward.shuffled_within_group,
    "flips": lambda g, t, ids, rng: reward.flips(g, t, rng, false_positive=0.2, false_negative=0.4),
    "inverted": lambda g, t, ids, rng: reward.inverted(g, t),
}
DRAWN = ["random", "shuffled_gold", "shuffled_within_group", "flips"]


@pytest.mark.parametrize("name", PLACEBOS)
def test_a_placebo_scores_the_same_answers_as_correctness(name):
    grades, truncated, ids = many(200)
    untold = torch.isnan(reward.correctness(grades, truncated))
    assert untold.any()
    assert torch.equal(torch.isnan(PLACEBOS[name](grades, truncated, ids, generator())), untold)


@pytest.mark.parametrize("name", DRAWN)
def test_a_placebo_is_set_by_its_generator_and_not_by_global_state(name):
    grades, truncated, ids = many(200)
    torch.manual_seed(1)
    first = PLACEBOS[name](grades, truncated, ids, generator(7))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    equal(PLACEBOS[name](grades, truncated, ids, generator(7)), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(PLACEBOS[name](grades, truncated, ids, generator(8)).nan_to_num(), first.nan_to_num())


@pytest.mark.parametrize("name", DRAWN)
def test_a_placebo_draws_once_per_answer_whatever_the_grades(name):
    grades, truncated, ids = many(50)
    left, right = generator(3), generator(3)
    PLACEBOS[name](grades, truncated, ids, left)
    PLACEBOS[name]([grade(False)] * 50, ~truncated, ids, right)
    assert torch.equal(left.get_state(), right.get_state())


def test_the_coin_does_not_look_at_the_answer():
    n = 4000
    truncated = torch.zeros(n, dtype=torch.bool)
    right = reward.random([grade(True)] * n, truncated, generator(), probability=0.3)
    equal(reward.random([grade(False)] * n, ~truncated, generator(), probability=0.3), right)
    assert right.mean().item() == pytest.approx(0.3, abs=0.03)
    for probability in (0.0, 1.0):
        paid = reward.random([grade(False)] * n, truncated, generator(), probability=probability)
        assert (paid == probability).all()


def test_shuffled_gold_keeps_what_the_batch_earns_and_mixes_the_prompts():
    grades = [grade(True)] * 40 + [grade(False)] * 40 + [grade(None)] * 5
    truncated = torch.zeros(85, dtype=torch.bool)
    shuffled = reward.shuffled_gold(grades, truncated, generator())
    assert shuffled.nansum() == 40
    assert 10 < shuffled[:40].sum() < 30  # the easy prompt is paid no more than the hard one


def test_shuffled_within_group_keeps_what_every_group_earns_and_unties_it_from_the_answers():
    grades, truncated, ids = many(400)
    true, ids = reward.correctness(grades, truncated), ids[torch.randperm(400, generator=generator())]
    shuffled = reward.shuffled_within_group(grades, truncated, ids, generator())
    for one in ids.unique():
        assert shuffled[ids == one].nansum() == true[ids == one].nansum()
    moved = (shuffled != true) & ~torch.isnan(true)
    assert moved.double().mean() > 0.3


def test_every_order_of_a_group_is_as_likely():
    grades, truncated, ids = [grade(True), grade(False), grade(False)], torch.zeros(3, dtype=torch.bool), torch.zeros(3)
    rng = generator()
    paid = sum(reward.shuffled_within_group(grades, truncated, ids.long(), rng) for _ in range(3000)) / 3000
    torch.testing.assert_close(paid, torch.full((3,), 1 / 3, dtype=torch.float64), rtol=0, atol=0.03)


def test_inverted_pays_exactly_what_correctness_does_not():
    equal(reward.inverted(GRADES, TRUNCATED), 1 - reward.correctness(GRADES, TRUNCATED))


def test_flips_pass_wrong_answers_and_fail_right_ones_at_their_own_rates():
    n = 20_000
    truncated = torch.zeros(n, dtype=torch.bool)
    settings = {"false_positive": 0.2, "false_negative": 0.4}
    passed = reward.flips([grade(False)] * n, truncated, generator(), **settings).mean().item()
    failed = 1 - reward.flips([grade(True)] * n, truncated, generator(), **settings).mean().item()
    assert (passed, failed) == (pytest.approx(0.2, abs=0.015), pytest.approx(0.4, abs=0.015))


def test_flips_at_0_are_the_truth_and_at_1_its_opposite():
    true = reward.correctness(GRADES, TRUNCATED)
    equal(reward.flips(GRADES, TRUNCATED, generator(), false_positive=0.0, false_negative=0.0), true)
    equal(reward.flips(GRADES, TRUNCATED, generator(), false_positive=1.0, false_negative=1.0), 1 - true)


def test_a_share_that_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="probability is 1.5"):
        reward.random(GRADES, TRUNCATED, generator(), probability=1.5)
    with pytest.raises(ValueError, match="false_negative is -0.1"):
        reward.flips(GRADES, TRUNCATED, generator(), false_positive=0.0, false_negative=-0.1)


# --- transforms ----------------------------------------------------------------------------------------------------


def test_positive_and_negative_sample_reinforcement_split_the_reward():
    rewards = tensor(1, 0, NAN)
    equal(reward.none(rewards), rewards)
    equal(reward.psr(rewards), tensor(1, 0, NAN))
    equal(reward.nsr(rewards), tensor(0, -1, NAN))
    equal(reward.w_reinforce(rewards, lam=0.1), tensor(0.1, -1, NAN))
    equal(reward.affine(rewards, scale=2.0, shift=-1.0), tensor(1, -1, NAN))


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_positive_and_negative_samples_have_one_expected_direction(p):
    outcomes, probability = tensor(0, 1), tensor(1 - p, p)
    score = outcomes / p - (1 - outcomes) / (1 - p)  # derivative of the log-probability by p

    def weight(advantage):
        return (probability * advantage * score).sum().item()

    assert weight(reward.psr(outcomes)) == pytest.approx(1)
    assert weight(reward.nsr(outcomes)) == pytest.approx(1)
    assert weight(reward.w_reinforce(outcomes, lam=0.1)) == pytest.approx(1.1)


# --- the options in conf -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((CONF / "reward").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_part_of_a_reward_option_has_a_weight_and_gives_one_number_per_answer(path):
    config = OmegaConf.create({"rollout": {"max_new_tokens": 36}, "reward": OmegaConf.load(path)})
    parts = instantiate(config.reward)
    assert len(parts) > 1 or list(parts) == [path.stem]  # a single part has its file's name; several compose a paper's
    values = {"grades": GRADES, "texts": [""] * 6, "lengths": torch.arange(6), "truncated": TRUNCATED, "group": GROUP}
    for entry in parts.values():
        assert isinstance(entry["weight"], float)
        result = call(entry["part"], values | {"generator": generator()})
        assert (result.shape, result.dtype) == ((6,), torch.float64)


@pytest.mark.parametrize("path", sorted((CONF / "transform").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_transform_option_keeps_unscored_rows_unscored(path):
    result = call(instantiate(OmegaConf.load(path)), {"rewards": tensor(1, 0, NAN)})
    assert torch.isnan(result).tolist() == [False, False, True]
