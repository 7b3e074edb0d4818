"""What a centred reward is divided by: published values, and the weight each option gives to a prompt.

The weights are exact: all 2^G groups go through the real baseline and scale, summed as probability times gradient.
"""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs import baseline, group, scale
from ablations.knobs.call import call

NAN = math.nan
MIXED = torch.tensor([1, 0, 0, 1, 1, 1, 1, 1, 0.251, 0.866, -0.537, 0.653], dtype=torch.float64)
BY_FOUR = torch.arange(3).repeat_interleave(4)
RATES = [0.01, 0.1, 0.5, 0.77]


def tensor(*rewards):
    return torch.tensor(rewards, dtype=torch.float64)


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def none(rewards, ids):
    return scale.none(baseline.group_mean(rewards, ids), rewards)


def group_std(rewards, ids, ddof=0, eps=0.0):
    return scale.group_std(baseline.group_mean(rewards, ids), rewards, ids, ddof=ddof, eps=eps)


def batch_std(rewards, ids, ddof=1, eps=0.0):
    return scale.batch_std(baseline.group_mean(rewards, ids), rewards, ddof=ddof, eps=eps)


def batch_std_of_centred(rewards, ids, ddof=1, eps=0.0):
    return scale.batch_std_of_centred(baseline.group_mean(rewards, ids), rewards, ddof=ddof, eps=eps)


def gpg(rewards, ids):
    return scale.gpg(baseline.group_mean(rewards, ids), rewards)


def max_rl(rewards, ids):
    return scale.max_rl(baseline.group_mean(rewards, ids), rewards, ids)


EVERY = {f.__name__: f for f in (none, group_std, batch_std, batch_std_of_centred, gpg, max_rl)}


# --- for every option ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_row_order_changes_nothing(name):
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    close(EVERY[name](MIXED[order], BY_FOUR[order]), EVERY[name](MIXED, BY_FOUR)[order])


@pytest.mark.parametrize("name", EVERY)
def test_an_unscored_row_gets_0_and_changes_the_others_as_if_it_were_absent(name):
    rewards, there = MIXED.clone(), torch.ones(12, dtype=torch.bool)
    for row in (2, 5, 9):
        rewards[row], there[row] = NAN, False
    result = EVERY[name](rewards, BY_FOUR)
    close(result[there], EVERY[name](rewards[there], BY_FOUR[there]))
    assert (result[~there] == 0).all()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("alike", [(0.1, 0.1, 0.1), (1.0, NAN, NAN), (NAN, NAN, NAN)])
@pytest.mark.parametrize("others", [(1.0, 0.0), ()])
def test_a_group_that_agrees_gets_exactly_0_with_and_without_others(name, alike, others):
    rewards = tensor(*alike, *others)
    result = EVERY[name](rewards, torch.tensor([0, 0, 0, 1, 1])[: len(rewards)])
    assert (result[:3] == 0).all()
    assert torch.isfinite(result).all()


@pytest.mark.parametrize("name", EVERY)
def test_uncentred_rewards_that_agree_are_never_divided_by_eps(name):
    rewards, ids = tensor(1, 1, 1), torch.zeros(3).long()
    knob = getattr(scale, name)
    settings = {"ddof": 1, "eps": 1e-6} if "std" in name else {}
    wanted = {"group": ids} if name in ("group_std", "max_rl") else {}
    assert knob(rewards, rewards, **wanted, **settings).abs().max() <= 1


@pytest.mark.parametrize("knob", [scale.group_std, scale.batch_std, scale.batch_std_of_centred])
def test_settings_without_meaning_are_refused(knob):
    ids = {"group": BY_FOUR} if knob is scale.group_std else {}
    with pytest.raises(ValueError, match="eps is -1e-06"):
        knob(MIXED, MIXED, **ids, ddof=0, eps=-1e-6)
    with pytest.raises(ValueError, match="ddof is 2"):
        knob(MIXED, MIXED, **ids, ddof=2, eps=0.0)


# --- group_std -----------------------------------------------------------------------------------------------------


def test_two_answers_are_scaled_to_1_or_to_a_root_of_a_half():
    rewards, ids = tensor(1, 0), torch.zeros(2).long()
    close(group_std(rewards, ids, ddof=0), [1, -1])
    close(group_std(rewards, ids, ddof=1), [math.sqrt(0.5), -math.sqrt(0.5)])
    close(none(rewards, ids), [0.5, -0.5])


@pytest.mark.parametrize("ddof", [0, 1])
def test_group_std_ignores_the_unit_and_origin_of_the_reward_and_the_mean_does_not(ddof):
    moved = 3.0 * MIXED - 7
    close(group_std(moved, BY_FOUR, ddof), group_std(MIXED, BY_FOUR, ddof))
    close(none(moved, BY_FOUR), 3 * none(MIXED, BY_FOUR))


@pytest.mark.parametrize("size", [2, 3, 4, 8, 33])
def test_sample_std_advantages_stay_within_G_minus_1_over_root_G(size):
    bound = (size - 1) / math.sqrt(size)
    rewards = torch.randn(50, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    rewards[0] = torch.eye(size, dtype=torch.float64)[0]
    result = group_std(rewards.flatten(), torch.arange(50).repeat_interleave(size), ddof=1)
    assert result.abs().max() <= bound + 1e-12
    assert result[:size].abs().max().item() == pytest.approx(bound)  # one right answer reaches it


def test_population_and_sample_std_differ_by_a_step_size():
    close(group_std(MIXED, BY_FOUR, 0), group_std(MIXED, BY_FOUR, 1) * math.sqrt(4 / 3))


def test_a_small_penalty_in_an_all_right_group_gets_nearly_full_weight():
    ids = torch.zeros(4).long()
    for size, expected in ((0.01, (0.49, -1.47)), (0.001, (0.42, -1.25))):
        rewards = tensor(1, 1, 1, 1 - size)
        close(group_std(rewards, ids, ddof=1, eps=1e-4), [expected[0]] * 3 + [expected[1]], tolerance=0.006)
        close(none(rewards, ids), [size / 4] * 3 + [-3 * size / 4])


# --- batch_std -----------------------------------------------------------------------------------------------------


def test_a_batch_std_above_0_does_not_revive_groups_that_agree():
    rewards, ids = tensor(1, 1, 1, 1, 0, 0, 0, 0), torch.arange(2).repeat_interleave(4)
    assert group.std(rewards, torch.zeros(8).long(), 1)[0].item() == pytest.approx(0.5345, abs=5e-5)
    assert (batch_std(rewards, ids) == 0).all()
    assert group.zero_advantage_groups(rewards, ids).zero.all()


def test_group_std_and_batch_std_differ_where_groups_spread_differently():
    rewards, ids = tensor(1, 0, 3, 1), torch.tensor([0, 0, 1, 1])
    close(group_std(rewards, ids), [1, -1, 1, -1])
    spread = rewards.std().item()
    close(batch_std(rewards, ids), [0.5 / spread, -0.5 / spread, 1 / spread, -1 / spread])


def test_the_std_of_centred_rewards_leaves_out_the_difference_between_prompts():
    rewards, ids = tensor(1, 0, 101, 100), torch.tensor([0, 0, 1, 1])
    close(batch_std_of_centred(rewards, ids, ddof=0), [1, -1, 1, -1])
    assert batch_std(rewards, ids, ddof=0).abs().max() < 0.011


# --- gpg, max_rl ---------------------------------------------------------------------------------------------------


def test_gpg_scales_by_rows_over_paid_rows():
    rewards, ids = tensor(1, 0, 0, 0, 0, 0, 1, 0), torch.arange(2).repeat_interleave(4)
    close(gpg(rewards, ids), none(rewards, ids) * 8 / 2)


def test_max_rl_divides_by_the_mean_and_gives_0_without_a_right_answer():
    rewards, ids = tensor(1, 0, 0, 0, 0, 0, -1, 0.5), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    close(max_rl(rewards, ids), [3, -1, -1, -1, 0, 0, 0, 0])


# --- the weight of a prompt ----------------------------------------------------------------------------------------


def weight(advantage, p, size):
    """E[gradient] / gradient of p for a prompt of success rate p: all groups of `size` answers, by probability."""
    groups = torch.cartesian_prod(*[tensor(0, 1)] * size)
    each = advantage(groups.flatten(), torch.arange(2**size).repeat_interleave(size)).view(-1, size)
    probability = (groups * p + (1 - groups) * (1 - p)).prod(1)
    score = groups / p - (1 - groups) / (1 - p)
    return (probability * (each * score).mean(1)).sum().item()


def expected_over_c(f, p, size):
    return sum(math.comb(size, c) * p**c * (1 - p) ** (size - c) * f(c) for c in range(size + 1))


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("size", [2, 3, 4, 8])
class TestWeight:
    def test_group_mean_weighs_every_prompt_G_minus_1_over_G(self, p, size):
        assert weight(none, p, size) == pytest.approx((size - 1) / size, abs=1e-10)

    def test_leave_one_out_is_unbiased(self, p, size):
        assert weight(baseline.leave_one_out, p, size) == pytest.approx(1, abs=1e-10)

    @pytest.mark.parametrize("eps", [0.0, 1e-4, 0.1])
    @pytest.mark.parametrize("ddof", [0, 1])
    def test_group_std_weighs_by_the_expected_spread(self, p, size, ddof, eps):
        bessel = math.sqrt(size / (size - ddof))

        def advantage(rewards, ids):
            return group_std(rewards, ids, ddof, eps)

        def term(c):
            sigma = math.sqrt(c * (size - c)) / size
            return sigma**2 / (sigma * bessel + eps) if sigma else 0.0

        assert weight(advantage, p, size) == pytest.approx(expected_over_c(term, p, size) / (p * (1 - p)), abs=1e-10)

    def test_max_rl_weighs_by_the_log_likelihood_to_order_G_minus_1(self, p, size):
        assert weight(max_rl, p, size) == pytest.approx((1 - (1 - p) ** (size - 1)) / p, abs=1e-10)

    def test_dividing_by_the_mean_without_a_baseline_is_of_order_G(self, p, size):
        def uncentred(rewards, ids):
            return scale.max_rl(baseline.none(rewards), rewards, ids)

        assert weight(uncentred, p, size) == pytest.approx((1 - (1 - p) ** size) / p, abs=1e-10)


@pytest.mark.parametrize(("size", "constant"), [(2, 1.0), (3, math.sqrt(2))])
def test_with_two_or_three_answers_group_std_has_no_difficulty_bias(size, constant):
    for p in RATES:
        assert weight(group_std, p, size) == pytest.approx(constant, abs=1e-10)


@pytest.mark.parametrize(("size", "ratio"), [(4, 1.07), (8, 1.41), (12, None)])
def test_from_four_answers_on_group_std_weighs_hard_prompts_up_to_root_G_minus_1(size, ratio):
    hard, even = weight(group_std, 0.01, size), weight(group_std, 0.5, size)
    assert even < hard < math.sqrt(size - 1)
    assert weight(group_std, 1e-7, size) == pytest.approx(math.sqrt(size - 1), abs=1e-4)
    if ratio:
        assert hard / even == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("conf/scale/*.yaml")), ids=lambda p: p.stem)
def test_a_scale_option_is_one_of_these_functions_with_its_numbers_given(path):
    option = instantiate(OmegaConf.load(path))
    result = call(option, {"centred": baseline.group_mean(MIXED, BY_FOUR), "rewards": MIXED, "group": BY_FOUR})
    close(result, EVERY[option.func.__name__](MIXED, BY_FOUR, **option.keywords))
