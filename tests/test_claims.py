"""Verdicts with known right answers: what a claim may conclude from which differences."""

import math

import numpy as np
import pandas as pd
import pytest
from synthetic import ACCURACY_CLAIM, LENGTH_CLAIM, Cell, crossing, write, write_question

from analysis import claims, matched, stats
from analysis.load import load

CLAIM = {
    "says": "a is longer than b",
    "metric": "m",
    "window": [10, 20],
    "compare": {"k": ["a", "b"]},
    "expect": "greater",
    "margin": 0.5,
}


def two_arms(differences, *, base="r", state="complete", at=(10, 15, 20), **others):
    """One pair per difference; the pair's own level moves with the seed, and steps outside the window hold nonsense."""
    cells = []
    for seed, difference in enumerate(differences):
        for arm, own in (("a", difference), ("b", 0.0)):
            points = {step: seed * 100 + own + (step - 15) for step in at} | {0: -1e6 * own, 9: 7e6 * own, 21: -1e6}
            cells.append(Cell({"k": arm, **others}, seed, {"m": points}, base, state))
    return cells


def judge(tmp_path, cells, *given, **more):
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    write(folder, "x", cells)
    write_question(folder, "x", list(given) or [CLAIM], **more)
    return claims.verdicts(load(folder, "x"), claims.read_question(folder, "x"))


def one(tmp_path, differences, **changes):
    return judge(tmp_path, two_arms(differences), CLAIM | changes).table.iloc[0]


CLEAR, TINY, NOISY = [2.0, 2.2, 1.9, 2.1, 2.3], [0.05, -0.04, 0.02, -0.03, 0.01], [3.0, -2.5, 1.0, -2.0, 2.0]
MIXED = [0.4, 0.45, 0.4, 0.42, 0.38]  # significant, and inside a margin of .5


@pytest.mark.parametrize(
    ("differences", "expect", "verdict"),
    [
        (CLEAR, "greater", "reproduced"),
        (CLEAR, "less", "reversed"),
        (np.negative(CLEAR), "less", "reproduced"),
        (np.negative(CLEAR), "greater", "reversed"),
        (TINY, "greater", "null"),
        (TINY, "less", "null"),
        (NOISY, "greater", "underpowered"),
        (TINY, "equal", "reproduced (equal)"),
        (NOISY, "equal", "underpowered"),
        (CLEAR, "equal", "reversed"),
        (np.negative(CLEAR), "equal", "reversed"),
        (MIXED, "equal", "reproduced (equal)"),
        ([0.4, 0.7, 0.8, 0.5, 0.6], "equal", "underpowered"),  # the mean is beyond the margin, the interval not
        ([0.3, 0.5, 0.6, 0.4, 0.5], "equal", "underpowered"),
        (CLEAR[:4], "greater", "no verdict"),
        (TINY[:4], "equal", "no verdict"),
    ],
)
def test_the_verdict_follows_from_the_differences(tmp_path, differences, expect, verdict):
    assert one(tmp_path, differences, expect=expect).verdict == verdict


def test_a_difference_without_margin_is_never_called_null(tmp_path):
    without = {key: CLAIM[key] for key in CLAIM if key != "margin"}
    assert judge(tmp_path, two_arms(TINY), without).table.verdict[0] == "underpowered"


def test_a_significant_difference_inside_the_margin_is_reproduced_and_called_small(tmp_path):
    row = one(tmp_path, MIXED)
    assert row.verdict == "reproduced" and "smaller than the margin of 0.5" in row.note


def test_arms_that_differ_but_perhaps_not_by_more_than_the_margin_are_undecided_and_said_to_differ(tmp_path):
    row = one(tmp_path, [0.3, 0.5, 0.6, 0.4, 0.5], expect="equal")
    assert row.verdict == "underpowered" and "the arms differ significantly" in row.note


def test_an_arm_without_a_number_keeps_its_knob_in_its_name():
    names = claims.arm_names(claims.claim(CLAIM | {"compare": {"beta": [None, 0.04]}}))
    assert names == ("beta=None", "beta=0.04")


def test_the_numbers_are_those_of_the_paired_differences(tmp_path):
    row = one(tmp_path, CLEAR)
    assert row.difference == pytest.approx(2.1) and (row.n, row.seeds) == (5, 5)
    assert (row.low, row.high) == pytest.approx(stats.t_interval(CLEAR)[1:3])
    assert (row.low90, row.high90) == pytest.approx(stats.t_interval(CLEAR, 0.9)[1:3])
    assert row.p == pytest.approx(stats.t_test(CLEAR)) and row.p_sign_flip == 2 / 32
    assert row.seeds_needed == stats.seeds_needed(2.1, np.std(CLEAR, ddof=1))
    assert row.mean_x - row.mean_y == pytest.approx(2.1)


def test_the_spread_between_seeds_does_not_matter_because_differences_are_paired(tmp_path):
    assert one(tmp_path, CLEAR).sd == pytest.approx(np.std(CLEAR, ddof=1))  # levels differ by 100 from seed to seed


def test_both_ends_of_the_window_count_and_nothing_outside(tmp_path):
    cells = [
        Cell(
            {"k": arm},
            seed,
            {"m": {9: 1e9 * (arm == "a"), 10: 3.0 * (arm == "a"), 20: 1.0 * (arm == "a"), 21: -1e9}},
            "r",
        )
        for seed in range(5)
        for arm in "ab"
    ]
    row = judge(tmp_path, cells).table.iloc[0]
    assert row.difference == 2 and row.fewest_steps == row.most_steps == 2


def test_a_window_that_no_run_came_to_the_end_of_is_said_to_be_one(tmp_path):
    whole, short = ({"m": {10: 3.0, 20: 1.0, 30: 5.0}}, {"m": {10: 3.0, 15: 1.0}})
    for place, points in enumerate((whole, short)):
        cells = [Cell({"k": arm}, seed, points, "r") for seed in range(5) for arm in "ab"]
        (folder := tmp_path / str(place)).mkdir()
        note = judge(folder, cells).table.note[0]
        assert ("the window goes to step 20, but the last one measured is 15" in note) == (points is short)


def test_a_step_at_which_one_run_lacks_the_metric_is_left_out_of_both_and_the_steps_are_counted(tmp_path):
    cells = two_arms(CLEAR)
    del cells[0].points["m"][20]  # its partner has it: without pairing steps this would cost 2.5 units
    del cells[3].points["m"][10]
    cells[4].points["m"][15] = math.nan
    verdict = judge(tmp_path, cells)
    assert verdict.pairs.difference.tolist() == pytest.approx(CLEAR)
    assert verdict.pairs.steps.tolist() == [2, 2, 2, 3, 3]
    assert (verdict.table.fewest_steps[0], verdict.table.most_steps[0]) == (2, 3)


def test_a_pair_without_a_common_step_is_no_pair_and_is_counted(tmp_path):
    cells = two_arms(CLEAR)
    cells[0].points["m"] = {10: 1.0}
    cells[1].points["m"] = {20: 1.0}
    row = judge(tmp_path, cells).table.iloc[0]
    assert (row.n, row.without_values) == (4, 1)
    assert "1 more pairs of complete runs have no step to be compared at" in row.note


@pytest.mark.parametrize("state", ["failed", "diverged", "running"])
def test_a_run_that_is_not_complete_takes_no_part_and_is_counted_beside(tmp_path, state):
    cells = two_arms([*CLEAR, 500.0])
    cells[10] = cells[10]._replace(state=state)
    row = judge(tmp_path, cells).table.iloc[0]
    assert row.n == 5 and row.difference == pytest.approx(2.1)
    assert row.left_out == f"a: 1 {state}" and f"a: 1 {state}" in row.note


def test_complete_runs_whose_partner_was_never_made_are_counted(tmp_path):
    pairs = two_arms([1.0, 1.2, 0.9, 1.1, 1.3, 1.0, 1.0, 0.8, 1.1, 1.0])
    there = [cell for cell in pairs if (cell.seed < 9 if cell.knobs["k"] == "a" else cell.seed >= 4)]
    row = judge(tmp_path, there).table.iloc[0]
    assert row.n == 5 and row.note == "5 complete runs have no partner with the same seed and base policy"
    failed = [cell._replace(state="failed") if cell.seed == 4 and cell.knobs["k"] == "a" else cell for cell in there]
    note = judge(tmp_path, failed).table.note[0]
    assert "a: 1 failed" in note and "5 complete runs have no partner" in note  # its partner is told by the failure


def test_two_runs_where_a_pair_needs_one_are_refused_with_the_claim(tmp_path):
    twice = two_arms([1.0] * 5)
    with pytest.raises(claims.BadClaim, match=r"Claim 1 \(.*\): Two runs of one arm share .*'seed': 0"):
        judge(tmp_path, [*twice, twice[0]._replace(hash="another")])


def test_a_filter_keeps_the_runs_it_names(tmp_path):
    cells = two_arms(CLEAR, scale="none") + two_arms(np.negative(CLEAR), scale="std")
    table = judge(tmp_path, cells, CLAIM | {"where": {"scale": "none"}}, CLAIM | {"where": {"scale": "std"}}).table
    assert table.verdict.tolist() == ["reproduced", "reversed"] and table.n.tolist() == [5, 5]


def test_other_swept_knobs_are_averaged_within_a_seed_so_that_they_add_no_evidence(tmp_path):
    cells = two_arms(CLEAR, scale="none") + two_arms(np.add(CLEAR, 1), scale="std")
    row = judge(tmp_path, cells).table.iloc[0]
    assert row.n == 5 and row.difference == pytest.approx(2.6)


def test_bases_are_further_pairs_but_not_further_seeds(tmp_path):
    cells = two_arms(CLEAR[:3], base="r") + two_arms(CLEAR[:3], base="s")
    row = judge(tmp_path, cells).table.iloc[0]
    assert (row.n, row.seeds, row.verdict) == (6, 3, "no verdict")


def test_the_bases_themselves_can_be_compared(tmp_path):
    cells = [cell for cell in two_arms(CLEAR, base="r") + two_arms([0.0] * 5, base="s") if cell.knobs["k"] == "a"]
    row = judge(tmp_path, cells, CLAIM | {"compare": {"base": ["r", "s"]}}).table.iloc[0]
    assert row.n == 5 and row.difference == pytest.approx(2.1)


def test_arms_that_differ_in_two_knobs_can_be_compared(tmp_path):
    cells = [
        cell._replace(knobs={"k": cell.knobs["k"], "scale": "s" if cell.knobs["k"] == "a" else "t"})
        for cell in two_arms(CLEAR)
    ]
    row = judge(tmp_path, cells, CLAIM | {"compare": {"k": ["a", "b"], "scale": ["s", "t"]}}).table.iloc[0]
    assert row.difference == pytest.approx(2.1) and (row.x, row.y) == ("k=a scale=s", "k=b scale=t")


def test_numbers_and_null_in_a_claim_meet_the_typed_knob_values(tmp_path):
    cells = [cell._replace(knobs={"beta": "None" if cell.knobs["k"] == "a" else "4e-2"}) for cell in two_arms(CLEAR)]
    assert judge(tmp_path, cells, CLAIM | {"compare": {"beta": [None, 0.04]}}).table.n[0] == 5


def test_holm_is_over_the_claims_that_can_have_a_verdict(tmp_path):
    weak = [1.2, 0.2, 1.0, 0.1, 0.9]  # p = .04 alone, .08 beside another test
    cells = two_arms(weak, scale="none") + two_arms(NOISY, scale="std") + two_arms(CLEAR[:3], scale="few")
    given = [CLAIM | {"where": {"scale": scale}} for scale in ("none", "std", "few")]
    table = judge(tmp_path, cells, *given).table
    assert table.p[0] < 0.05 < table.p_holm[0] == pytest.approx(2 * table.p[0])
    assert math.isnan(table.p_holm[2]) and table.verdict.tolist() == ["underpowered", "underpowered", "no verdict"]
    assert judge(tmp_path, cells, given[0]).table.verdict[0] == "reproduced"


def test_arms_that_agree_exactly_are_null_and_say_so(tmp_path):
    row = one(tmp_path, [0.0] * 5)
    assert row.verdict == "null" and row.p == 1 and "exactly 0" in row.note


def test_a_realistic_ablation_gets_the_verdicts_that_were_planted(tmp_path):
    table = judge(tmp_path, crossing(seeds=8), LENGTH_CLAIM, ACCURACY_CLAIM).table
    assert table.verdict.tolist() == ["reproduced", "reproduced (equal)"]
    assert table.most_steps[0] == 20 > table.fewest_steps[0] - 1 and table.most_steps[1] == 3


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"metric": "length/incorect"}, "no run logged length/incorect; there are m"),
        ({"compare": {"k": ["a", "c"]}}, "no run has k=c; there are a, b"),
        ({"compare": {"kk": ["a", "b"]}}, "nothing called kk was swept; the swept keys are k, seed, base"),
        ({"where": {"base": "z"}}, "no run has base=z; there are r"),
    ],
)
def test_a_claim_about_what_is_not_there_is_an_error_that_lists_what_is(tmp_path, change, answer):
    with pytest.raises(LookupError, match=answer):
        judge(tmp_path, two_arms(CLEAR), CLAIM | change)


def test_at_a_smaller_budget_a_claim_about_arms_that_were_not_run_gets_no_verdict(tmp_path):
    given = [CLAIM, CLAIM | {"where": {"k2": "zzz"}}, CLAIM | {"compare": {"k": ["a", "c"]}}]
    table = judge(tmp_path, two_arms(CLEAR), *given, budget="demo").table
    assert table.verdict.tolist() == ["reproduced", "no verdict", "no verdict"]
    assert "not part of this crossing: no run has k=c" in table.note[2] and table.p_holm[0] == table.p[0]


def test_an_arm_that_is_planned_but_has_no_run_yet_is_no_error(tmp_path):
    cells = [cell for cell in two_arms(CLEAR) if cell.knobs["k"] == "a"]
    folder = tmp_path / "planned"
    write(folder, "x", cells)
    file = write_question(folder, "x", [CLAIM], budget="paper")
    file.write_text(file.read_text() + "cells: [{hash: h, arm: k=b, seed: '0', k: b}]\n")
    row = claims.verdicts(load(folder, "x"), claims.read_question(folder, "x")).table.iloc[0]
    assert row.verdict == "no verdict" and row.note == "no pair of complete runs has this metric in the window"


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"window": [20, 10]}, r"window is \[20, 10\]"),
        ({"window": 20}, "first, last"),
        ({"expect": "more"}, "greater, less, equal"),
        ({"marign": 1}, "marign is not part"),
        ({"compare": {"k": ["a"]}}, "name the two arms"),
        ({"margin": -1}, "above 0"),
        ({"expect": "equal", "margin": None}, "needs one"),
        ({"compare": {"k": ["a", "a"]}}, "two arms that differ"),
        ({"compare": {"seed": [0, 1]}}, "other than the seed"),
        ({"margin": "0.05"}, "margin is '0.05'; it must be a number above 0"),
        ({"margin": True}, "margin is True"),
        ({"window": [False, True]}, r"window is \[False, True\]; it must be \[first, last\]"),
        ({"at": {"m": ["low", "up"]}}, "must name bands"),
        ({"at": ["m"]}, "must name bands"),
    ],
)
def test_a_malformed_claim_is_refused_with_its_file_and_number(tmp_path, change, answer):
    write_question(tmp_path, "x", [CLAIM, CLAIM | change])
    with pytest.raises(ValueError, match=rf"ablation.yaml, claim 2: .*{answer}"):
        claims.read_question(tmp_path, "x")


def test_a_claim_without_its_parts_is_refused_by_name():
    with pytest.raises(ValueError, match="it has no window, expect"):
        claims.claim({key: CLAIM[key] for key in ("says", "metric", "compare")})


def test_an_ablation_without_claims_has_an_empty_table(tmp_path):
    write(tmp_path, "x", two_arms(CLEAR))
    write_question(tmp_path, "x", [])
    table, pairs = claims.verdicts(load(tmp_path, "x"), claims.read_question(tmp_path, "x"))
    assert len(table) == len(pairs) == 0


def test_the_same_runs_give_the_same_table_twice(tmp_path):
    many = two_arms(np.random.default_rng(0).normal(0.5, 1, 20))
    first, second = (judge(tmp_path, many).table for _ in range(2))
    assert first.equals(second) and 0 < first.p_sign_flip[0] < 1


@pytest.mark.slow
def test_without_any_effect_at_most_one_ablation_in_twenty_claims_one():
    """Three claims on noise, judged by the rule itself: the family-wise error of either verdict stays at .05."""
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(4000):
        draws = rng.normal(0, 1, (3, 6))
        adjusted = stats.holm([stats.t_test(draw) for draw in draws])
        rows = [
            {"expect": "greater", "difference": draw.mean(), "p_holm": p, "p_equal": math.nan}
            for draw, p in zip(draws, adjusted, strict=True)
        ]
        wrong += any(claims.decide(row) in ("reproduced", "reversed") for row in rows)
    assert 0.03 < wrong / 4000 < 0.06


def test_at_matched_accuracy_a_difference_that_is_only_progress_disappears():
    """Length falls with accuracy alike in both arms; one learns twice as fast. Raw it looks like an effect."""
    rows = []
    for arm, speed in (("slow", 1), ("fast", 2)):
        for seed in range(5):
            for step in range(1, 41):
                accuracy = min(0.3 + 0.01 * speed * step, 0.95)
                shared = {"run": f"{arm}{seed}", "arm": arm, "seed": seed, "step": step}
                rows += [{**shared, "metric": "accuracy", "value": accuracy}]
                rows += [{**shared, "metric": "length", "value": 20 - 10 * accuracy}]
    rows = pd.DataFrame(rows)
    inside = matched.per_run(matched.within(rows, "length", {"accuracy": (0.4, 0.6)}))
    means = inside.groupby("arm").value.mean()
    assert abs(means["slow"] - means["fast"]) < 0.15
    raw = rows[rows.metric.eq("length")].groupby("arm").value.mean()
    assert raw["slow"] - raw["fast"] > 1.5
    assert (
        inside.set_index("run").used.filter(like="slow") > inside.set_index("run").used.filter(like="fast").max()
    ).all()


def test_a_run_that_never_was_inside_the_band_makes_no_pair():
    rows = pd.DataFrame(
        {"run": "a", "metric": ["accuracy", "length"] * 3, "step": [1, 1, 2, 2, 3, 3], "value": [0.1, 9] * 3}
    )
    assert not len(matched.within(rows, "length", {"accuracy": (0.4, 0.6)}))
