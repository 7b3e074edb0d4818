"""pass@k: unbiased, and honest about what was measured."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from analysis import passk, stats
from analysis.passk import gain, gained_and_lost, pass_at_k


def counted(correct, samples=8):
    return pd.DataFrame({"problem": [f"p{i}" for i in range(len(correct))], "samples": samples, "correct": correct})


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (5, 0, 2), (5, 5, 1), (6, 4, 3), (4, 1, 4)])
def test_pass_at_k_is_the_share_of_all_draws_of_k_answers_that_hold_a_right_one(n, c, k):
    answers = [True] * c + [False] * (n - c)
    every = [any(chosen) for chosen in itertools.combinations(answers, k)]
    assert float(pass_at_k(n, c, k)) == pytest.approx(np.mean(every))


def test_it_is_unbiased_and_the_plug_in_estimate_is_not():
    n, k, p = 6, 3, 0.2
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    truth = 1 - (1 - p) ** k
    assert sum(w * float(pass_at_k(n, c, k)) for c, w in enumerate(chances)) == pytest.approx(truth)
    assert sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(chances)) < truth - 0.01


def test_many_answers_do_not_overflow_and_too_few_are_refused():
    assert float(pass_at_k(10_000, 3, 100)) == pytest.approx(1 - math.comb(9_997, 100) / math.comb(10_000, 100))
    with pytest.raises(ValueError, match="pass@9 needs 9 or more answers"):
        pass_at_k(8, 1, 9)
    with pytest.raises(ValueError, match="between 0 and"):
        pass_at_k(8, 9, 1)


def test_the_error_of_the_answers_is_the_spread_that_new_answers_show():
    rng = np.random.default_rng(0)
    p = rng.beta(1, 2, 60)
    draws = [rng.binomial(16, p) for _ in range(400)]
    for k in (1, 4):
        seen = np.std([pass_at_k(16, c, k).mean() for c in draws])
        stated = np.mean([passk.answers_error(np.full(60, 16), c, k) for c in draws[:50]])
        assert stated == pytest.approx(seen, rel=0.1)


def test_a_gain_over_the_base_holds_the_bases_own_error():
    """Eight seeds that agree exactly would give an interval of no width; the base was still measured only once."""
    base, trained = counted([4, 2, 0, 6] * 10), [counted([6, 4, 2, 8] * 10)] * 8
    found = gain(trained, base, 1)
    own = passk.answers_error(base.samples, base.correct, 1)
    assert found.mean == pytest.approx(0.25) and found.n == 8
    assert found.high - found.low == pytest.approx(2 * 1.959964 * own)


@pytest.mark.slow
def test_its_nominal_95_percent_interval_covers_93_to_97_percent_and_without_the_bases_error_far_less():
    rng, hits, naive, sims = np.random.default_rng(1), 0, 0, 1500
    for _ in range(sims):
        p = rng.uniform(0.2, 0.8, 40)
        base = counted(rng.binomial(8, p))
        seeds = [counted(rng.binomial(8, np.clip(p + 0.1 + rng.normal(0, 0.01), 0, 1))) for _ in range(6)]
        found = gain(seeds, base, 1)
        hits += found.low < 0.1 < found.high
        means = np.array([t.correct.sum() / 320 for t in seeds]) - base.correct.sum() / 320
        half = 2.5706 * means.std(ddof=1) / math.sqrt(6)
        naive += abs(means.mean() - 0.1) < half
    assert 0.93 < hits / sims < 0.97 and naive / sims < 0.75


def test_one_seed_has_no_interval_and_other_problems_are_refused():
    assert math.isnan(gain([counted([8])], counted([4]), 1).low)
    with pytest.raises(ValueError, match="same problems"):
        gain([counted([1, 2])] * 2, counted([1]), 1)


def test_problems_are_gained_and_lost_only_beyond_what_chance_does():
    before = counted([0, 8, 8, 0, 4, 3], samples=8)
    after = counted([8, 0, 8, 0, 5, 4], samples=8)
    table = gained_and_lost([before], [after])
    assert table.change.tolist() == ["gained", "lost", "solved", "unsolved", "undecided", "undecided"]
    assert table.correct_before.tolist() == [0, 8, 8, 0, 4, 3] and table.p[0] == pytest.approx(2 / math.comb(16, 8))


def test_two_draws_of_one_policy_gain_and_lose_next_to_nothing():
    rng, found = np.random.default_rng(0), 0
    p = rng.uniform(0, 1, 200)
    for _ in range(20):
        table = gained_and_lost([counted(rng.binomial(8, p))], [counted(rng.binomial(8, p))])
        found += table.change.isin(["gained", "lost"]).any()
    assert found <= 2


def test_counts_of_several_runs_add_up_by_problem_and_a_base_that_they_share_counts_once():
    before, after = [counted([1, 2])] * 2, [counted([3, 4]), counted([5, 6])]
    apart, shared = gained_and_lost(before, after), gained_and_lost(before, after, shared=True)
    assert apart.correct.tolist() == shared.correct.tolist() == [8, 10]
    assert apart.correct_before.tolist() == [2, 4] and apart.samples_before.tolist() == [16, 16]
    assert shared.correct_before.tolist() == [1, 2] and shared.samples_before.tolist() == [8, 8]


def test_the_answers_of_a_base_that_all_runs_share_make_a_change_no_surer_than_they_are():
    before, after = [counted([0], 4)] * 8, [counted([4], 4)] * 8
    apart, shared = (gained_and_lost(before, after, shared=is_shared).p[0] for is_shared in (False, True))
    assert shared == pytest.approx(1 / math.comb(12, 4)) and apart == pytest.approx(1 / math.comb(40, 8))


def test_a_change_needs_both_the_answers_and_the_runs():
    """Four answers of five runs leave the draw of the answers open; one lucky run of eight leaves that of the runs."""
    little = gained_and_lost([counted([1], 2)] * 5, [counted([2], 2)] * 5)
    assert little.p[0] > 0.05 and stats.t_test([0.5] * 5) == 0
    before, after = [counted([0], 16)] * 8, [counted([16], 16)] + [counted([0], 16)] * 7
    assert gained_and_lost(before, after).p[0] == pytest.approx(stats.t_test([1.0, *[0.0] * 7]))
    rates = [0.25, 0.5, 0.25, 0.5, 0.75, 0.25, 0.5, 0.25]
    spread = gained_and_lost([counted([0], 16)] * 8, [counted([int(16 * r)], 16) for r in rates])
    assert spread.p[0] >= stats.t_test(rates) > 0


@pytest.mark.parametrize("runs", [2, 4])
def test_two_to_four_runs_are_not_tested(runs):
    table = gained_and_lost([counted([0, 8, 0])] * runs, [counted([8, 8, 0])] * runs)
    assert table.p.isna().all() and table.change.tolist() == ["undecided", "solved", "unsolved"]


def test_a_problem_that_too_few_runs_have_answered_has_no_p_and_the_others_keep_theirs():
    before = [counted([0, 0])] * 4 + [counted([0])] * 4
    table = gained_and_lost(before, [counted([8, 8])] * 4 + [counted([8])] * 4)
    assert table.change.tolist() == ["gained", "undecided"] and math.isnan(table.p[1])


@pytest.mark.slow
@pytest.mark.parametrize("runs", [5, 8])
@pytest.mark.parametrize("odds", [0.5, 0.1])
def test_runs_that_solve_problems_always_or_never_gain_and_lose_nothing_where_the_mean_is_that_of_the_base(runs, odds):
    """Answers added up as if independent, 8 runs at even odds gained and lost 18 of 100 problems each."""
    rng, tables, wrong = np.random.default_rng(runs), 60, 0
    for _ in range(tables):
        before = [counted(rng.binomial(16, np.full(100, odds)), 16) for _ in range(runs)]
        after = [counted(16 * (rng.random(100) < odds), 16) for _ in range(runs)]
        wrong += gained_and_lost(before, after).change.isin(["gained", "lost"]).any()
    assert wrong <= 0.05 * tables


@pytest.mark.parametrize("runs", [5, 8])
def test_planted_changes_are_found_among_problems_that_runs_solve_always_or_never(runs):
    rng, planted, wrong, tables = np.random.default_rng(0), 5, 0, 10
    never, always = np.repeat([0, 16], planted), np.repeat([16, 0], planted)
    for _ in range(tables):
        before = [counted(np.append(never, rng.binomial(16, 0.5, 90)), 16) for _ in range(runs)]
        after = [counted(np.append(always, 16 * rng.integers(0, 2, 90)), 16) for _ in range(runs)]
        change = gained_and_lost(before, after).set_index("problem").change
        found = [change.pop(f"p{i}") for i in range(2 * planted)]
        assert found == ["gained"] * planted + ["lost"] * planted
        wrong += change.isin(["gained", "lost"]).sum()
    assert wrong <= 0.05 * (2 * planted * tables + wrong)
