"""Claims that leave nothing to chance, claims about a number, one arm against itself, and when a claim was written."""

import sqlite3

import numpy as np
import pytest
from scipy import stats as scipy_stats
from synthetic import Cell, write, write_question
from test_claims import CLEAR, MIXED, judge, one, two_arms

from analysis import identical, same_arm
from analysis.load import load
from analysis.report import report


def twins(seeds=5, *, changed=None):
    """Two arms with the same numbers to the last bit; `changed` is (seed, step, by how much)."""
    cells = []
    for seed in range(seeds):
        for arm in ("a", "b"):
            points = {step: np.sqrt(seed + step) for step in (0, 10, 15, 20)}
            if changed and arm == "a" and seed == changed[0]:
                points[changed[1]] += changed[2]
            cells.append(Cell({"k": arm}, seed, {"m": points, "seconds/update": {10: float(arm == "a")}}))
    return cells


def test_arms_that_agree_bit_by_bit_are_identical_whatever_they_cost(tmp_path):
    row = judge(tmp_path, twins(), _hard()).table.iloc[0]
    assert row.verdict == "reproduced (equal)" and "bit by bit" in row.note and np.isnan(row.p_holm)


def _hard(**changes):
    given = {"says": "the clip does nothing", "metric": "m", "window": [10, 20], "compare": {"k": ["a", "b"]}}
    return given | {"expect": "identical"} | changes


@pytest.mark.parametrize("step", [0, 15])
def test_one_differing_bit_at_any_step_reverses_a_hard_null_and_is_found(tmp_path, step):
    """Inside the window or not: a run that differs anywhere is another run."""
    row = judge(tmp_path, twins(changed=(3, step, 1e-15)), _hard()).table.iloc[0]
    assert row.verdict == "reversed" and f"first m at step {step} of seed 3" in row.note
    assert "1 of 20 numbers" in row.note


def test_a_hard_null_needs_five_seeds_to_stand_and_one_to_fall(tmp_path):
    assert judge(tmp_path, twins(3), _hard()).table.verdict[0] == "no verdict"
    assert judge(tmp_path, twins(3, changed=(0, 10, 1e-12)), _hard()).table.verdict[0] == "reversed"


def test_a_hard_null_takes_no_share_of_the_level_of_the_others(tmp_path):
    soft = {"says": "s", "metric": "m", "window": [10, 20], "compare": {"k": ["a", "b"]}, "expect": "greater"}
    table = judge(tmp_path, two_arms(CLEAR), soft, _hard()).table
    assert table.p_holm[0] == pytest.approx(table.p[0]) and table.verdict.tolist() == ["reproduced", "reversed"]


def test_a_metric_that_only_one_arm_logs_is_a_difference(tmp_path):
    cells = twins()
    cells[0].points["other"] = {10: 1.0}
    row = judge(tmp_path, cells, _hard()).table.iloc[0]
    assert "logged in one of them only" in row.note


def test_arms_that_are_equal_by_construction_are_checked_and_the_report_says_so(tmp_path):
    same = [{"arms": ["k=a", "k=b"], "why": "one update per rollout"}]
    for name, cells in (("good", twins()), ("bad", twins(changed=(1, 10, 1e-9)))):
        write(tmp_path, name, cells)
        write_question(tmp_path, name, [_hard()], equal_by_construction=same)
        report(tmp_path, name)
    good, bad = ((tmp_path / name / "report.md").read_text() for name in ("good", "bad"))
    begins = "**Equal by construction**: k=a and k=b, because one update per rollout; "
    assert begins + "and every metric but timings" in good
    assert begins + "but the arms are not identical: 1 of 20" in bad


def test_nan_is_identical_to_nan_and_a_run_without_partner_is_no_difference(tmp_path):
    cells = twins()
    for cell in cells:
        cell.points["gone"] = {10: float("nan")}
    stored = load(write(tmp_path, "x", cells[:-1]), "x")
    assert identical.arms_apart(stored, "k=a", "k=b") == ""


@pytest.mark.parametrize(("expect", "verdict"), [(0.4, "reproduced (equal)"), (2.0, "reversed"), (0.6, "underpowered")])
def test_a_number_can_be_expected_with_a_margin_around_it(tmp_path, expect, verdict):
    """The differences are .38 to .45: within .1 of .4, far from 2, and neither for sure of .6 with a margin of .2."""
    row = one(tmp_path, MIXED, expect=expect, margin=0.2 if expect == 0.6 else 0.1)
    assert row.verdict == verdict and row.target == expect
    assert row.p == pytest.approx(scipy_stats.ttest_1samp(np.array(MIXED) - expect, 0).pvalue, rel=1e-6)


def test_halves_of_one_arm_differ_significantly_in_one_split_of_twenty():
    rng = np.random.default_rng(0)
    shares = [same_arm.halves(rng.normal(size=12), rng, 200)[0] for _ in range(60)]
    assert 0.03 < np.mean(shares) < 0.07


def test_the_halves_distance_is_that_of_chance_and_bases_do_not_add_to_it(tmp_path):
    apart, far = same_arm.halves(np.random.default_rng(0).normal(size=400), np.random.default_rng(1))[1:]
    assert apart == pytest.approx(0.6745 * 0.1, rel=0.1) and far == pytest.approx(1.96 * 0.1, rel=0.1)
    cells = [
        Cell({"k": "a"}, seed, {"m": {10: level + 0.01 * seed}}, base)
        for seed in range(6)
        for base, level in (("r", 0.0), ("s", 100.0))
    ]
    write(tmp_path, "x", cells)
    write_question(tmp_path, "x", [_hard() | {"expect": "greater"}])
    from analysis.claims import read_question

    table = same_arm.check(load(tmp_path, "x"), read_question(tmp_path, "x"))
    assert table.far.max() < 0.05 and table.n.tolist() == [6]


WRITTEN = {"commit": "abc" * 14, "date": "2026-03-01T10:00:00+01:00"}


@pytest.mark.parametrize(
    ("written", "started", "said", "late"),
    [
        (WRITTEN, 1_800_000_000_000, "got its present form at commit abcabcabcabc of 2026-03-01", False),
        (WRITTEN, 1_700_000_000_000, "The first run started on 2023-11-14", True),
        (None, 1_800_000_000_000, "is not recorded", False),
        ({"commit": "", "date": ""}, 1_800_000_000_000, "is not recorded", False),
    ],
)
def test_the_report_says_whether_a_claim_stood_before_the_runs(tmp_path, written, started, said, late):
    write(tmp_path, "x", two_arms(CLEAR))
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.execute("UPDATE runs SET start_time = ?", (started,))
    given = _hard(expect="greater") | ({"written": written} if written else {})
    write_question(tmp_path, "x", [given])
    report(tmp_path, "x")
    text = (tmp_path / "x" / "report.md").read_text()
    assert said in text and ("not known to have stood before the runs" in text) == late


def test_a_claim_that_was_changed_since_its_commit_is_said_to_be_exploration(tmp_path):
    write(tmp_path, "x", two_arms(CLEAR))
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.execute("UPDATE runs SET start_time = 1800000000000")
    given = [_hard(expect="greater", written=WRITTEN), _hard(expect="less", written={"commit": "", "date": ""})]
    write_question(tmp_path, "x", given)
    report(tmp_path, "x")
    text = (tmp_path / "x" / "report.md").read_text()
    assert "Claim 2 got its present form at no commit" in text
    assert text.count("Claim 2 not known to have stood before the runs: read as exploration.") == 1
