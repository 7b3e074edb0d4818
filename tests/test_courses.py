"""Area under a course, steps until a level, and what censoring does to both."""

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from analysis import courses


def rows(**runs):
    points = [(run, step, "m", v) for run, course in runs.items() for step, v in course.items()]
    return pd.DataFrame(points, columns=["run", "step", "metric", "value"])


def test_the_area_reads_as_the_mean_height_whatever_the_steps():
    found = courses.area(rows(a={0: 0.0, 10: 1.0}, b={0: 0.5, 2: 0.5, 10: 0.5}), "m").set_index("run")
    assert found.value.to_dict() == {"a": 0.5, "b": 0.5} and found.points.to_dict() == {"a": 2, "b": 3}
    uneven = courses.area(rows(a={0: 0.0, 9: 0.0, 10: 1.0}), "m").value[0]
    assert uneven == pytest.approx(0.05)


def test_a_course_that_stops_early_or_breaks_has_no_area_and_is_still_in_the_table():
    found = courses.area(rows(a={0: 1, 10: 1}, b={0: 1, 5: 1}, c={0: 1, 5: math.nan, 10: 1}), "m").set_index("run")
    assert found.value["a"] == 1 and found.value[["b", "c"]].isna().all()
    assert courses.area(rows(a={0: 0, 5: 1, 10: 1}), "m", (5, 10)).value[0] == 1


def test_the_first_step_at_the_level_counts_and_a_run_that_never_was_there_is_censored():
    found = courses.steps_to(rows(a={0: 0.1, 5: 0.8, 9: 0.7}, b={0: 0.1, 7: 0.5}), "m", 0.8).set_index("run")
    assert found.step.to_dict() == {"a": 5, "b": 7} and found.reached.to_dict() == {"a": True, "b": False}
    assert courses.steps_to(rows(a={0: 2.0, 1: 1.0}), "m", 1.0, falling=True).step[0] == 1


def test_a_lucky_point_does_not_reach_the_level_of_a_smoothed_course():
    course = {step: 0.1 for step in range(10)} | {3: 0.9} | {step: 0.9 for step in range(8, 12)}
    assert courses.steps_to(rows(a=course), "m", 0.8).step[0] == 3
    assert courses.steps_to(rows(a=course), "m", 0.8, smooth=3).step[0] == 9


def test_the_median_wait_counts_those_who_never_arrived():
    """Two of five arrive, at 10 and 20. The median of those who arrived is 15; half of all have not arrived at 60."""
    found = courses.waiting([10, 20, 60, 60, 60], [True, True, False, False, False])
    assert found.median == math.inf and (found.reached, found.n) == (2, 5) and found.low <= 60
    assert courses.waiting([10, 20, 30, 60, 60], [True, True, True, False, False]).median == 30
    assert courses.waiting([60, 60], [False, False]).median == math.inf


def exact_median(steps, reached):
    """Kaplan and Meier's by whole numbers: the first step at which at most half are still waiting."""
    left = Fraction(1)
    for step in sorted(set(steps)):
        waiting = sum(other >= step for other in steps)
        left *= 1 - Fraction(sum(r for other, r in zip(steps, reached, strict=True) if other == step), waiting)
        if left <= Fraction(1, 2):
            return step
    return math.inf


def test_the_median_wait_is_that_of_exact_arithmetic_where_exactly_half_have_arrived():
    assert courses.waiting([*range(1, 13), *[100] * 12], [True] * 12 + [False] * 12).median == 12
    reached = [True, True, True, True, False, False, True, True, False, True]
    assert courses.waiting([2, 4, 3, 7, 3, 7, 1, 2, 6, 1], reached).median == 3
    rng = np.random.default_rng(0)
    for _ in range(400):
        n = int(rng.integers(1, 25))
        steps, reached = rng.integers(1, 9, n).tolist(), (rng.random(n) < 0.7).tolist()
        found = courses.waiting(steps, reached)
        assert found.median == exact_median(steps, reached) and not found.low > min(found.median, max(steps))
        assert found.high >= found.median


def test_where_all_arrive_at_one_step_nothing_is_known_of_the_lower_end():
    for n in (1, 5):
        found = courses.waiting([3] * n, [True] * n)
        assert found.median == 3 and math.isnan(found.low) and found.high == math.inf


def test_a_median_that_was_never_seen_may_lie_right_behind_the_last_step():
    assert courses.waiting([3] + [100] * 19, [True] + [False] * 19)[:3] == (math.inf, 100, math.inf)


def test_without_censoring_the_median_is_the_ordinary_one_and_inside_its_interval():
    steps = np.random.default_rng(0).permutation(21) + 1
    found = courses.waiting(steps, [True] * 21)
    assert found.median == 11 and found.low <= 11 <= found.high


@pytest.mark.slow
def test_the_nominal_95_percent_interval_of_the_median_wait_covers_at_least_93_percent_under_censoring():
    rng, hits, sims = np.random.default_rng(0), 0, 1500
    truth = 30 * math.log(2)
    for _ in range(sims):
        wait, end = rng.exponential(30, 20), rng.uniform(30, 80, 20)
        found = courses.waiting(np.minimum(wait, end), wait <= end)
        hits += found.low <= truth <= found.high
    assert 0.93 < hits / sims < 0.99


def test_the_test_of_two_arms_is_scipys_log_rank():
    x = pd.DataFrame({"step": [5, 8, 12, 60], "reached": [True, True, True, False]})
    y = pd.DataFrame({"step": [30, 40, 60, 60], "reached": [True, True, False, False]})
    oracle = scipy_stats.logrank(
        scipy_stats.CensoredData(uncensored=[5, 8, 12], right=[60]),
        scipy_stats.CensoredData(uncensored=[30, 40], right=[60, 60]),
    ).pvalue
    assert courses.faster(x, y) == pytest.approx(oracle)
    assert math.isnan(courses.faster(x.assign(reached=False), y.assign(reached=False)))
