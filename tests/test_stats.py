"""Few-seed statistics against worked values, scipy, published power tables and identities."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy

from analysis import stats


def numbers(*seed, n=7):
    return np.random.default_rng(seed).normal(0.4, 1.0, n)


def test_three_seeds_give_the_worked_t_interval():
    mean, low, high, n, reason = stats.t_interval([0.1, 0.4, 0.5])
    assert (round(mean, 3), round(low, 3), round(high, 3), n, reason) == (0.333, -0.184, 0.850, 3, "")


def test_one_seed_has_no_interval_and_says_so():
    interval = stats.t_interval([0.7])
    assert interval.mean == 0.7 and math.isnan(interval.low) and math.isnan(interval.high)
    assert interval.n == 1 and interval.reason == "one value has no interval"
    assert stats.t_interval([]).reason == "no value"


def test_a_nan_among_the_values_takes_the_interval_away_and_is_named_instead_of_dropped():
    interval = stats.t_interval([0.1, math.nan, 0.5])
    assert math.isnan(interval.mean) and math.isnan(interval.low) and interval.reason == "1 of 3 values are not finite"
    values = [0.1, math.nan, 0.5]
    undefined = [
        stats.t_test(values),
        stats.sign_flip(values, np.random.default_rng(0)),
        stats.equivalent(values, 1)[0],
    ]
    assert all(map(math.isnan, undefined))


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_t_interval_is_scipys(level):
    values = numbers(1)
    theirs = scipy.ttest_1samp(values, 0).confidence_interval(level)
    assert stats.t_interval(values, level)[1:3] == pytest.approx((theirs.low, theirs.high))


def test_the_paired_t_test_is_scipys():
    x, y = numbers(1), numbers(2)
    assert stats.t_test(x - y) == pytest.approx(scipy.ttest_rel(x, y).pvalue)


def test_identical_arms_have_p_1_and_a_constant_difference_has_p_0():
    assert stats.t_test([0.0] * 5) == 1 and stats.t_interval([0.0] * 5)[:3] == (0, 0, 0)
    assert stats.t_test([0.3] * 5) == 0 and stats.spread([0.1 + 0.2] * 7) == 0


def test_holm_gives_the_textbook_steps():
    np.testing.assert_allclose(stats.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(stats.holm([0.5, 0.9]), [1, 1])
    assert len(stats.holm([])) == 0


def test_holm_does_not_count_tests_that_were_not_made():
    adjusted = stats.holm([0.02, math.nan, 0.03])
    np.testing.assert_allclose(adjusted[[0, 2]], [0.04, 0.04])
    assert math.isnan(adjusted[1])


def test_sign_flip_is_exact_for_few_pairs_and_its_smallest_p_is_2_over_2_to_the_n():
    rng = np.random.default_rng(0)
    assert stats.sign_flip([1.0, 2.0, 3.0, 4.0, 5.0], rng) == 2 / 32
    assert stats.sign_flip([1.0, 1.0, 1.0, -1.0], rng) == 10 / 16  # |sum| >= 2: all but the six balanced patterns
    assert stats.sign_flip([0.0, 0.0], rng) == 1


def test_sign_flip_is_that_of_exact_arithmetic_where_patterns_tie_and_where_the_sum_is_zero():
    rng = np.random.default_rng(0)
    assert stats.sign_flip([0.1, 0.2, -0.3, 0.4, -0.4], rng) == 1
    for draw in range(60):
        counts = rng.integers(-40, 41, 8)
        if draw % 2:
            counts[-1] = -counts[:-1].sum()
        exact = [Fraction(int(count), 200) for count in counts]
        signs = itertools.product((1, -1), repeat=8)
        sums = [abs(sum(sign * v for sign, v in zip(pattern, exact, strict=True))) for pattern in signs]
        expected = sum(one >= abs(sum(exact)) for one in sums) / len(sums)
        values = [float(v) for v in exact]
        assert stats.sign_flip(values, rng) == expected
        drawn = stats.sign_flip(values, rng, exact_up_to=0, draws=2_000)
        assert drawn == 1 if expected == 1 else drawn == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("size", [1e308, 1e-310, 5e-324])
def test_sign_flip_does_not_depend_on_the_unit(size):
    rng = np.random.default_rng(0)
    assert stats.sign_flip([size] * 5, rng) == 2 / 32
    assert stats.sign_flip([size, -size, size, -size], rng) == 1


def test_sign_flip_agrees_with_scipys_permutation_test():
    values = numbers(3, n=9)
    theirs = scipy.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    assert stats.sign_flip(values, np.random.default_rng(0)) == pytest.approx(theirs)


def test_drawn_sign_flips_estimate_the_exact_p_and_are_set_by_the_generator_alone():
    values = numbers(4, n=10)
    exact = stats.sign_flip(values, np.random.default_rng(0))
    np.random.seed(1)
    drawn = stats.sign_flip(values, np.random.default_rng(5), exact_up_to=0)
    np.random.seed(2)
    assert drawn == stats.sign_flip(values, np.random.default_rng(5), exact_up_to=0)
    assert drawn != stats.sign_flip(values, np.random.default_rng(6), exact_up_to=0)
    assert drawn == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 20_000) ** 0.5)
    assert stats.sign_flip(np.full(30, 1.0), np.random.default_rng(0)) == 1 / 20_001


@pytest.mark.parametrize("values", [numbers(5), -numbers(6)])
def test_equivalence_holds_exactly_when_the_90_percent_interval_is_inside_the_margin(values):
    interval = stats.t_interval(values, 0.9)
    reach = max(abs(interval.low), abs(interval.high))
    assert stats.equivalent(values, reach * 1.001)[1] and not stats.equivalent(values, reach * 0.999)[1]
    assert stats.equivalent(values, reach)[0] == pytest.approx(0.05)


def test_the_equivalence_p_is_the_larger_of_scipys_two_one_sided_ps():
    values = numbers(6)
    theirs = max(
        scipy.ttest_1samp(values, -1, alternative="greater").pvalue,
        scipy.ttest_1samp(values, 1, alternative="less").pvalue,
    )
    assert stats.equivalent(values, 1)[0] == pytest.approx(theirs)
    assert stats.equivalent([0.0] * 5, 0.1) == (0, True) and stats.equivalent([0.2] * 5, 0.1) == (1, False)


@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_the_sample_sizes_of_the_published_power_tables(effect, n):
    assert stats.seeds_needed(effect, 1.0) == n
    assert stats.power(effect, n) >= 0.8 > stats.power(effect, n - 1)


def test_seeds_needed_do_not_depend_on_the_unit_or_the_sign():
    assert stats.seeds_needed(0.5, 1.0) == stats.seeds_needed(-50, 100.0)


def test_no_number_of_seeds_finds_a_difference_of_zero_and_two_find_one_without_spread():
    assert stats.seeds_needed(0, 1.0) == math.inf == stats.seeds_needed(1e-6, 1.0)
    assert stats.seeds_needed(0.1, 0.0) == 2 and stats.seeds_needed(50, 1.0) == 2
    assert math.isnan(stats.seeds_needed(1.0, math.nan))


def test_power_at_no_effect_is_the_error_rate():
    assert stats.power(0, 8) == pytest.approx(0.05)


def runs(**columns):
    return pd.DataFrame(columns)


def test_pairs_are_runs_that_differ_in_the_compared_knob_only():
    values = runs(
        aggregate=["a", "b"] * 4,
        scale=["s", "s", "t", "t"] * 2,
        seed=[0] * 4 + [1] * 4,
        base="r",
        value=[1.0, 0.0, 12.0, 10.0, 4.0, 1.0, 24.0, 20.0],
    )
    pairs = stats.paired(values, {"aggregate": ("a", "b")}, ["scale", "seed", "base"])
    assert pairs.difference.tolist() == [1, 2, 3, 4]


def test_pairs_do_not_depend_on_the_order_of_the_runs_and_a_run_without_partner_makes_none():
    values = runs(k=[1, 1, 1, 2, 2], seed=[0, 1, 2, 1, 0], value=[1.0, 2.0, 9.0, 20.0, 10.0])
    for frame in (values, values.iloc[::-1]):
        pairs = stats.paired(frame, {"k": (1, 2)}, ["seed"]).sort_values("seed")
        assert pairs[["seed", "x", "y", "difference"]].values.tolist() == [[0, 1, 10, -9], [1, 2, 20, -18]]


def test_two_arms_that_differ_in_two_knobs_can_be_paired():
    values = runs(k=[1, 1, 2, 2], m=["u", "v", "u", "v"], seed=0, value=[1.0, 2.0, 4.0, 8.0])
    assert stats.paired(values, {"k": (1, 2), "m": ("u", "v")}, ["seed"]).difference.tolist() == [-7]


def test_two_runs_with_the_same_key_are_refused_because_something_else_differs():
    with pytest.raises(ValueError, match="'seed': 0"):
        stats.paired(runs(k=[1, 1, 2], seed=0, value=1.0), {"k": (1, 2)}, ["seed"])


def test_a_seed_that_dies_cuts_the_band_instead_of_improving_it():
    curves = pd.DataFrame({"a": [0.8] * 10, "b": [0.8] * 10, "c": [0.1] * 5 + [math.nan] * 5})
    band = stats.t_band(curves)
    assert band["mean"][:5].round(3).tolist() == [0.567] * 5 and band["mean"][5:].isna().all()
    assert band.n.tolist() == [3] * 5 + [2] * 5


def test_the_mean_does_not_come_back_after_a_run_is_gone():
    curves = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, math.nan, 3.0]})
    assert stats.t_band(curves)["mean"].isna().tolist() == [False, True, True]


def test_a_metric_undefined_at_a_step_of_a_living_run_is_averaged_over_those_that_have_it():
    curves = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [3.0, math.nan, math.nan], "c": [5.0, 4.0, math.nan]})
    band = stats.t_band(curves, alive=np.ones((3, 3), bool))
    assert band["mean"][:2].tolist() == [3, 3] and band.n.tolist() == [3, 2, 1]
    assert math.isnan(band["mean"][2])  # one of three is fewer than half


def test_the_band_is_the_t_interval_of_each_step():
    curves = pd.DataFrame([numbers(1), numbers(2)], index=[10, 20])
    band = stats.t_band(curves)
    for step in curves.index:
        expected = stats.t_interval(curves.loc[step])
        assert band.loc[step, ["mean", "low", "high"]].tolist() == pytest.approx(expected[:3])


def test_one_run_has_a_line_and_no_band():
    band = stats.t_band(pd.DataFrame({"a": [1.0, 2.0]}))
    assert band["mean"].tolist() == [1, 2] and band.low.isna().all() and band.high.isna().all()


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 10, 20])
def test_the_nominal_95_percent_interval_covers_93_to_97_percent(n):
    rng = np.random.default_rng(n)
    covered = [low < 0.3 < high for _, low, high, *_ in (stats.t_interval(rng.normal(0.3, 1, n)) for _ in range(4000))]
    assert 0.93 < np.mean(covered) < 0.97


@pytest.mark.slow
def test_the_power_that_is_predicted_is_the_power_that_is_seen():
    rng = np.random.default_rng(0)
    found = np.mean([stats.t_test(rng.normal(0.8, 1, 15)) < 0.05 for _ in range(3000)])
    assert found == pytest.approx(stats.power(0.8, 15), abs=0.025)
