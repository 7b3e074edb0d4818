"""Bootstrap intervals: what they cover, and that they are set by their generator alone."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from analysis import bootstrap


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_interquartile_mean_leaves_out_a_quarter_on_each_side():
    assert bootstrap.iqm(np.array([0.0, 1, 2, 3, 4, 5, 6, 1000])) == 3.5
    values = rng().normal(size=(3, 17))
    assert bootstrap.iqm(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25, axis=1))


def test_an_interval_is_set_by_the_generator_and_not_by_global_state():
    """google/rliable#10: two calls with the same random state gave different intervals."""
    values = rng().normal(size=12)
    np.random.default_rng(1).normal()
    first, second, other = (bootstrap.interval(values, rng(seed), bootstrap.iqm) for seed in (3, 3, 4))
    assert first == second and first.low != other.low


def test_one_run_has_no_interval_and_a_nan_run_is_named():
    """rliable 1.2.0 gives (0.5, 0.5) for one run, and NaN for everything where one run is NaN."""
    single = bootstrap.interval([0.5], rng())
    assert np.isnan(single.low) and single.reason == "one value has no interval"
    broken = bootstrap.interval([0.5, 0.6, np.nan], rng())
    assert np.isnan(broken.mean) and broken.reason == "1 of 3 values are not finite" and broken.n == 3
    assert np.isnan(bootstrap.stratified([[0.1, 0.2], [0.3]], rng()).low)


def test_values_that_agree_have_an_interval_of_no_width_and_not_nan():
    assert bootstrap.interval([0.5] * 5, rng())[:3] == (0.5, 0.5, 0.5)


def test_strata_are_resampled_within_themselves():
    """Two bases far apart, no spread within: resampling across them would give a wide interval."""
    apart = [[0.0, 0.001, 0.002], [10.0, 10.001, 10.002]]
    within = bootstrap.stratified(apart, rng())
    assert within.high - within.low < 0.01
    across = bootstrap.interval([v for values in apart for v in values], rng())
    assert across.high - across.low > 3


def test_the_probability_of_improvement_counts_ties_half():
    assert bootstrap.improvement([2.0, 3], [1.0, 0]) == 1 and bootstrap.improvement([1.0], [1.0]) == 0.5
    x, y = [1.0, 2, 3, 3], [0.0, 3, 3]
    by_hand = np.mean([(a > b) + 0.5 * (a == b) for a in x for b in y])
    assert bootstrap.improvement(x, y) == pytest.approx(by_hand)
    found = bootstrap.improvement_interval([x, [5.0, 6]], [y, [1.0, 2]], rng())
    assert found.mean == pytest.approx((by_hand + 1) / 2) and found.low <= found.mean <= found.high
    with pytest.raises(ValueError, match="2 strata and y has 1"):
        bootstrap.improvement_interval([x, x], [y], rng())


@pytest.mark.parametrize("n", [2, 3, 8])
def test_arms_that_do_not_overlap_have_a_probability_of_improvement_and_no_interval(n):
    """From two runs a side 1.0 [1.0, 1.0] would look as sure as from two hundred."""
    low, high = np.arange(n) * 1.0, 100.0 + np.arange(n)
    ahead = "every run of one arm is ahead: resampling says nothing of how sure that is"
    for x, y, chance in (([high], [low], 1), ([low], [high], 0), ([high, low], [low, high], 0.5)):
        found = bootstrap.improvement_interval(x, y, rng())
        assert found.mean == chance and np.isnan([found.low, found.high]).all() and found.reason == ahead
    constant = bootstrap.improvement_interval([[1.0] * n], [[0.5] * n], rng())
    assert np.isnan(constant.low) and constant.reason == ahead
    alike = bootstrap.improvement_interval([[0.5] * n], [[0.5] * n], rng())
    assert alike.mean == 0.5 and np.isnan(alike.low) and alike.reason.startswith("no run of either arm is ahead")


def test_one_pair_out_of_order_is_enough_for_an_interval():
    found = bootstrap.improvement_interval([[1.0, 2, 3, 4]], [[0.0, 0.1, 0.2, 1.5]], rng())
    assert found.low < found.mean < 1 and found.high <= 1 and not found.reason
    tie = bootstrap.improvement_interval([[1.0, 2, 3, 4]], [[0.0, 0.1, 0.2, 1.0]], rng())
    assert tie.low < tie.mean and not tie.reason


def covered(n, statistic, truth, sims, draws=600):
    own = rng(n)
    hits = 0
    for _ in range(sims):
        found = bootstrap.interval(own.normal(0.3, 1, n), own, statistic, draws=draws)
        hits += found.low < truth < found.high
    return hits / sims


@pytest.mark.slow
def test_the_nominal_95_percent_bootstrap_interval_covers_93_to_97_percent_from_20_runs_on():
    assert 0.93 < covered(20, np.mean, 0.3, 2500) < 0.97
    assert 0.92 < covered(20, bootstrap.iqm, 0.3, 2500) < 0.98


@pytest.mark.slow
def test_below_20_runs_it_falls_short_by_as_much_as_its_docstring_says():
    assert covered(5, np.mean, 0.3, 2500) == pytest.approx(0.92, abs=0.015)
    assert covered(10, np.mean, 0.3, 2500) == pytest.approx(0.94, abs=0.015)
    own, plain = rng(5), 0
    for _ in range(1500):
        values = own.normal(0.3, 1, 5)
        plainly = scipy_stats.bootstrap((values,), np.mean, n_resamples=600, method="percentile", rng=own)
        low, high = plainly.confidence_interval
        plain += low < 0.3 < high
    assert plain / 1500 == pytest.approx(0.82, abs=0.03)
