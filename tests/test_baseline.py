"""Group statistics, and what is subtracted from a reward. A row of a group is found by its id, wherever it stands."""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs import baseline, group
from ablations.knobs.call import call

NAN = math.nan
MIXED = torch.tensor([1, 0, 0, 1, 1, 1, 1, 1, 0.251, 0.866, -0.537, 0.653], dtype=torch.float64)
BY_FOUR = torch.arange(3).repeat_interleave(4)
LENGTHS = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
GROUP_BASELINES = {
    "group_mean": lambda r, g, n: baseline.group_mean(r, g),
    "leave_one_out": lambda r, g, n: baseline.leave_one_out(r, g),
    "opo": baseline.opo,
    "best_minus_second": lambda r, g, n: baseline.best_minus_second(r, g),
}
BATCH_BASELINES = {
    "batch_mean": lambda r, g, n: baseline.batch_mean(r),
    "none": lambda r, g, n: baseline.none(r),
    "running_mean": lambda r, g, n: baseline.RunningMean(decay=0.9, start=0.25)(r),
}
EVERY = GROUP_BASELINES | BATCH_BASELINES


def tensor(*rewards):
    return torch.tensor(rewards, dtype=torch.float64)


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


# --- the rows of a statistic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3], [3, 1, 0, 2]])
def test_two_prompts_are_centred_apart_in_every_row_order(order):
    rewards, ids = tensor(1, 0, 10, 9)[order], torch.tensor([7, 7, -2, -2])[order]
    close(baseline.group_mean(rewards, ids), tensor(0.5, -0.5, 0.5, -0.5)[order])


def test_groups_of_three_and_one_are_uneven_and_the_single_answer_gets_0():
    close(baseline.group_mean(tensor(1, 0, 0.5, 9), torch.tensor([0, 0, 0, 1])), [0.5, -0.5, 0, 0])


@pytest.mark.parametrize("name", EVERY)
def test_row_order_changes_nothing(name):
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    inorder = EVERY[name](MIXED, BY_FOUR, LENGTHS)
    close(EVERY[name](MIXED[order], BY_FOUR[order], LENGTHS[order]), inorder[order])


@pytest.mark.parametrize("name", EVERY)
def test_an_unscored_row_gets_0_and_changes_the_others_as_if_it_were_absent(name):
    rewards, there = MIXED.clone(), torch.ones(12, dtype=torch.bool)
    for row in (2, 5, 9):
        rewards[row], there[row] = NAN, False
    result = EVERY[name](rewards, BY_FOUR, LENGTHS)
    close(result[there], EVERY[name](rewards[there], BY_FOUR[there], LENGTHS[there]))
    assert (result[~there] == 0).all()


@pytest.mark.parametrize("name", GROUP_BASELINES)
@pytest.mark.parametrize("rewards", [(0.1, 0.1, 0.1), (1.0, NAN, NAN), (NAN, NAN, NAN), (0.7, NAN, 0.7)])
def test_a_group_that_agrees_or_has_one_scored_answer_gets_exactly_0(name, rewards):
    result = GROUP_BASELINES[name](tensor(*rewards, 1, 0), torch.tensor([0, 0, 0, 1, 1]), LENGTHS[:5])
    assert (result[:3] == 0).all()
    assert (result[3:] != 0).any()


@pytest.mark.parametrize("name", EVERY)
def test_float32_rewards_are_centred_in_float64(name):
    rewards = torch.tensor([1e4 + 1, 1e4], dtype=torch.float32)
    result = EVERY[name](rewards, torch.zeros(2, dtype=torch.long), LENGTHS[:2])
    assert result.dtype == torch.float64
    close(result, EVERY[name](rewards.double(), torch.zeros(2, dtype=torch.long), LENGTHS[:2]))


# --- the options ---------------------------------------------------------------------------------------------------


def test_leave_one_out_is_group_mean_scaled_by_G_over_G_minus_1():
    close(baseline.leave_one_out(MIXED, BY_FOUR), baseline.group_mean(MIXED, BY_FOUR) * 4 / 3)


def test_leave_one_out_subtracts_the_mean_of_the_others():
    close(baseline.leave_one_out(tensor(1, 2, 6), torch.zeros(3, dtype=torch.long)), [1 - 4, 2 - 3.5, 6 - 1.5])


def test_an_abstention_leaves_the_baseline_to_the_scored_answers():
    close(baseline.group_mean(tensor(1, NAN, 0, 1), torch.zeros(4, dtype=torch.long)), [1 / 3, 0, -2 / 3, 1 / 3])


def test_batch_mean_keeps_the_difference_between_prompts():
    close(baseline.batch_mean(tensor(1, 1, 0, 0)), [0.5, 0.5, -0.5, -0.5])
    assert (baseline.batch_mean(tensor(0.1, 0.1, 0.1)) == 0).all()


def test_opo_weights_the_baseline_by_length():
    close(baseline.opo(tensor(1, 0), torch.tensor([3, 3]), torch.tensor([30, 10])), [0.25, -0.75])


def test_opo_with_equal_lengths_is_group_mean():
    close(baseline.opo(MIXED, BY_FOUR, torch.full((12,), 7)), baseline.group_mean(MIXED, BY_FOUR))


def test_opo_of_a_group_without_tokens_is_finite():
    assert torch.isfinite(baseline.opo(tensor(1, 0), torch.zeros(2).long(), torch.zeros(2).long())).all()


def test_pass_at_k_pays_the_best_answer_by_how_much_it_beats_the_second():
    close(baseline.best_minus_second(MIXED, BY_FOUR), [0] * 9 + [0.866 - 0.653, 0, 0])


def test_pass_at_k_pays_nothing_for_a_tie():
    assert (baseline.best_minus_second(tensor(1, 1, 0), torch.zeros(3).long()) == 0).all()


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_pass_at_k_has_the_gradient_of_pass_at_G_over_G(p, size):
    groups = torch.cartesian_prod(*[tensor(0, 1)] * size)
    ids = torch.arange(2**size).repeat_interleave(size)
    advantage = baseline.best_minus_second(groups.flatten(), ids).view(-1, size)
    probability = (groups * p + (1 - groups) * (1 - p)).prod(1)
    score = groups / p - (1 - groups) / (1 - p)  # derivative of an answer's log-probability by p
    measured = (probability * (advantage * score).mean(1)).sum().item()
    assert measured == pytest.approx((1 - p) ** (size - 1), abs=1e-12)  # d/dp [1 - (1-p)^G] / G


def test_the_running_mean_centres_a_batch_with_the_value_from_before_it():
    knob = baseline.RunningMean(decay=0.8, start=0.5)
    close(knob(tensor(1, 0, NAN)), [0.5, -0.5, 0])
    assert knob.value == pytest.approx(0.5)
    close(knob(tensor(1, 1)), [0.5, 0.5])
    close(knob(tensor(0)), [-(0.8 * 0.5 + 0.2 * 1)])


def test_the_running_mean_resumes_where_it_was_and_an_unscored_batch_leaves_it():
    first, second = (baseline.RunningMean(decay=0.9, start=0.0) for _ in range(2))
    first(MIXED)
    first(tensor(NAN, NAN))
    second.load_state_dict(first.state_dict())
    close(second(MIXED), first(MIXED))
    assert second.value == first.value != 0


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_running_mean_that_forgets_nothing_or_too_much_is_refused(decay):
    with pytest.raises(ValueError, match="0 <= decay < 1"):
        baseline.RunningMean(decay=decay, start=0.0)


# --- groups that teach nothing, and how far rewards spread ---------------------------------------------------------


def test_all_right_and_all_wrong_groups_are_told_from_the_rewards():
    flags = group.zero_advantage_groups(
        tensor(1, 0, 1, 0, 1, 0, NAN, 1, 0.3), torch.tensor([5, 3, 5, 3, 8, 8, 1, 2, 2])
    )
    assert flags.ids.tolist() == [1, 2, 3, 5, 8]
    assert flags.zero.tolist() == [True, False, True, True, False]
    assert flags.all_right.tolist() == [False, False, False, True, False]
    assert flags.all_wrong.tolist() == [False, False, True, False, False]


def test_a_batch_of_an_all_right_and_an_all_wrong_group_is_entirely_dead():
    flags = group.zero_advantage_groups(tensor(1, 1, 1, 1, 0, 0, 0, 0), torch.arange(2).repeat_interleave(4))
    assert flags.zero.double().mean() == 1
    assert flags.all_right.double().mean() == flags.all_wrong.double().mean() == 0.5


def test_rewards_that_agree_are_recognised_in_spite_of_rounding():
    rewards = tensor(0.1, 0.1, 0.1)
    assert (rewards - rewards.sum() / 3 != 0).all()  # why a mean or a standard deviation is not asked
    assert group.agree(rewards, torch.zeros(3).long()).all()
    assert (group.std(rewards, torch.zeros(3).long(), 1) == 0).all()


def test_pooled_and_within_group_std_are_two_numbers():
    pooled, within = group.spread(tensor(1, 1, 1, 1, 0, 0, 0, 0), torch.arange(2).repeat_interleave(4))
    assert pooled == pytest.approx(0.5345, abs=5e-5)
    assert within == 0.0


def test_within_group_std_is_the_mean_over_groups_and_not_over_rows():
    rewards = tensor(1, 0, 5, 5, 5, 5, NAN, 9)
    pooled, within = group.spread(rewards, torch.tensor([0, 0, 1, 1, 1, 1, 1, 2]))
    assert within == pytest.approx(math.sqrt(0.5) / 2)
    assert pooled == pytest.approx(rewards[~torch.isnan(rewards)].std().item())


def test_a_spread_that_nothing_defines_is_absent():
    assert group.spread(tensor(1, NAN), torch.tensor([0, 0])) == (None, None)
    assert group.spread(tensor(1, 0), torch.tensor([0, 1])).within is None


def test_the_share_of_informative_groups_follows_the_group_size():
    shares = [1 - group.zero_advantage_probability(0.18, size) for size in (2, 4, 8, 16)]
    assert shares == pytest.approx([0.295, 0.547, 0.796, 0.958], abs=5e-4)


# --- the predicted zero-advantage share ----------------------------------------------------------------------------


def batch(counts, size):
    """One group per entry: that many right answers out of `size`."""
    rows = [[1.0] * c + [0.0] * (size - c) for c in counts]
    return torch.tensor(rows, dtype=torch.float64).flatten(), torch.arange(len(rows)).repeat_interleave(size)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_uniform_success_rates_predict_2_over_G_plus_1(size):
    # right answers of a group are uniform on 0..G when the rate is uniform: each count once has exactly those moments
    assert group.predicted_zero_advantage(*batch(range(size + 1), size)) == pytest.approx(2 / (size + 1), abs=1e-12)


def test_beta_distributed_success_rates_are_predicted_by_the_ratio_of_beta_functions():
    a, b, size, prompts = 0.6, 1.7, 6, 20_000
    generator = torch.Generator().manual_seed(3)
    quantiles = (torch.arange(prompts) + 0.5) / prompts
    grid = torch.linspace(0, 1, 200_001, dtype=torch.float64)[1:-1]
    cumulative = (grid ** (a - 1) * (1 - grid) ** (b - 1)).cumsum(0)
    rate = grid[torch.searchsorted(cumulative / cumulative[-1], quantiles.double())]
    correct = (torch.rand(prompts, size, generator=generator, dtype=torch.float64) < rate[:, None]).double()

    def log_beta(x, y):
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    exact = sum(math.exp(log_beta(*pair) - log_beta(a, b)) for pair in ((a + size, b), (a, b + size)))
    predicted = group.predicted_zero_advantage(correct.flatten(), torch.arange(prompts).repeat_interleave(size))
    assert predicted == pytest.approx(exact, abs=0.01)
    assert predicted > group.zero_advantage_probability(correct.mean().item(), size) + 0.1  # the mean rate's share


def test_equal_success_rates_predict_the_binomial_share():
    # 3 of 8 everywhere is more alike than chance: the variance between prompts is below 0 and read as 0
    predicted = group.predicted_zero_advantage(*batch([3, 3, 3], 8))
    assert predicted == pytest.approx((3 / 8) ** 8 + (5 / 8) ** 8, abs=1e-12)


@pytest.mark.parametrize("counts", [[0, 0], [4, 4], [4, 0, 4], [0, 4, 0, 0]])
def test_prompts_always_right_or_always_wrong_predict_1(counts):
    assert group.predicted_zero_advantage(*batch(counts, 4)) == pytest.approx(1.0, abs=1e-12)


def test_unscored_answers_do_not_enter_the_prediction():
    correct, ids = batch([1, 3, 2, 4], 4)
    padded = torch.cat([correct, tensor(NAN, NAN, NAN)])
    assert group.predicted_zero_advantage(padded, torch.cat([ids, torch.tensor([0, 0, 99])])) == pytest.approx(
        group.predicted_zero_advantage(correct, ids)
    )
    assert group.predicted_zero_advantage(tensor(NAN), torch.tensor([0])) is None


def test_groups_of_one_agree_with_certainty():
    assert group.predicted_zero_advantage(tensor(1, 0, 1), torch.arange(3)) == pytest.approx(1.0)


# --- the options in conf -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("conf/baseline/*.yaml")), ids=lambda p: p.stem)
def test_a_baseline_option_centres_as_the_function_of_its_name(path):
    result = call(instantiate(OmegaConf.load(path)), {"rewards": MIXED, "group": BY_FOUR, "lengths": LENGTHS})
    expected = MIXED if path.stem == "running_mean" else EVERY[path.stem](MIXED, BY_FOUR, LENGTHS)
    close(result, expected)
