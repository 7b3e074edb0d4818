"""Arms side by side: where they end, how fast they were, how sure that is, and what a placebo would have given."""

import math

import pandas as pd
import pytest
from synthetic import LENGTH_CLAIM, Cell, write, write_answers, write_question

from analysis import answers, arms, bootstrap, claims, courses, look, stats
from analysis.load import load
from analysis.report import report

CLAIM = LENGTH_CLAIM | {"metric": "accuracy/heldout", "window": [20, 20], "margin": 0.01}


def course(end, step=10, seed=0):
    """From .2 at the start to `end`, there from `step` on."""
    return {0: 0.2, 10: end + 0.01 * seed if step <= 10 else 0.2, 20: end + 0.01 * seed}


def cells(ends=(("sequence_mean", 0.8, 10), ("constant", 0.6, 20)), seeds=5, **others):
    return [
        Cell({"aggregate": arm, **others}, seed, {"accuracy/heldout": course(end, step, seed)})
        for arm, end, step in ends
        for seed in range(seeds)
    ]


def measured(folder, given, claim=CLAIM, **more):
    write(folder, "x", given)
    write_question(folder, "x", [claim], **more)
    return arms.measured(load(folder, "x"), claims.read_question(folder, "x"))


def test_the_numbers_of_an_arm_are_those_of_its_runs(tmp_path):
    found = measured(tmp_path, cells())
    row = found.table.set_index("arm").loc["aggregate=sequence_mean"]
    ends = [0.8 + 0.01 * seed for seed in range(5)]
    assert (row["mean"], row.low, row.high, row.n) == pytest.approx(stats.t_interval(ends)[:4])
    assert row.iqm == pytest.approx(float(bootstrap.iqm(pd.Series(ends).to_numpy())))
    assert row.iqm_low < row.iqm < row.iqm_high
    data = load(tmp_path, "x")
    own = data.rows[data.rows.arm.eq("aggregate=sequence_mean")]
    assert row.area == pytest.approx(courses.area(own, "accuracy/heldout").value.mean())
    assert found.last == 20 and found.metric == "accuracy/heldout"


def test_the_level_lies_half_of_the_largest_rise_above_the_base_and_waits_are_until_it(tmp_path):
    found = measured(tmp_path, cells())
    assert found.level == pytest.approx(0.2 + (0.82 - 0.2) / 2)
    table = found.table.set_index("arm")
    assert table["median"].to_dict() == {"aggregate=constant": 20, "aggregate=sequence_mean": 10}


@pytest.mark.parametrize("gone", [1, 5])
def test_a_complete_run_that_logs_nan_at_the_end_is_not_in_n_of_either_table_and_the_report_says_so(
    tmp_path, monkeypatch, gone
):
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: [])
    given = cells()
    for cell in given[:gone]:
        cell.points["accuracy/heldout"].update(dict.fromkeys(range(15, 21), math.nan))
    row = measured(tmp_path, given).table.set_index("arm").loc["aggregate=sequence_mean"]
    assert (row.n, row.without) == (5 - gone, gone)
    report(tmp_path, "x")
    summary = pd.read_csv(tmp_path / "x/summary.csv")
    last = summary[summary.arm.eq("aggregate=sequence_mean") & summary.last_step.eq(20)].iloc[-1]
    assert last.n == 5 - gone and (gone == 5 or last["mean"] == pytest.approx(row["mean"], rel=1e-5))
    page = (tmp_path / "x/report.md").read_text()
    assert f"| aggregate=sequence_mean | ramble | {5 - gone} (without {gone}) |" in page


def test_a_run_that_broke_off_waits_on_and_is_in_no_mean(tmp_path):
    given = cells()
    given[0] = given[0]._replace(state="diverged", points={"accuracy/heldout": {0: 0.2}})
    row = measured(tmp_path, given).table.set_index("arm").loc["aggregate=sequence_mean"]
    assert (row.n, row.reached, row.waited) == (4, 4, 5)


def test_the_chance_of_ending_above_the_reference_is_against_the_second_arm_of_the_first_claim(tmp_path):
    found = measured(tmp_path, cells((("sequence_mean", 0.6, 10), ("constant", 0.6, 10))))
    table = found.table.set_index("arm")
    assert found.reference == "constant" and table.better["aggregate=sequence_mean"] == pytest.approx(0.5)
    assert math.isnan(table.better["aggregate=constant"])


def test_arms_that_do_not_overlap_are_reported_without_an_interval_and_with_the_reason(tmp_path):
    found = measured(tmp_path, cells())
    row = found.table.set_index("arm").loc["aggregate=sequence_mean"]
    assert row.better == 1 and math.isnan(row.better_low) and math.isnan(row.better_high)
    report(tmp_path, "x")
    text = (tmp_path / "x" / "report.md").read_text()
    assert "| 1.0 (no interval) |" in text
    assert "Where it has no interval, every run of one arm is ahead: resampling says nothing of how sure" in text


def test_gains_are_stated_over_the_placebo_where_there_is_one(tmp_path):
    given = cells((("constant", 0.8, 10),), reward="correctness") + cells((("constant", 0.3, 10),), reward="random")
    claim = CLAIM | {"compare": {"reward": ["correctness", "random"]}}
    found = measured(tmp_path, given, claim, placebo={"reward": "random"})
    table = found.table.set_index("arm")
    row = table.loc["aggregate=constant reward=correctness"]
    assert (row.gain, row.gain_n) == (pytest.approx(0.5), 5) and row.gain_low == pytest.approx(0.5)
    assert math.isnan(table.gain["aggregate=constant reward=random"]) and found.placebo == "reward=random"
    report(tmp_path, "x")
    text = (tmp_path / "x" / "report.md").read_text()
    assert "gain over reward=random" in text and "+0.500 [+0.500, +0.500]" in text


def test_without_an_accuracy_or_a_reward_there_is_no_such_table(tmp_path):
    write(tmp_path, "x", [Cell({"k": "a"}, 0, {"length/mean": {0: 1.0}})])
    write_question(tmp_path, "x", [])
    assert arms.measured(load(tmp_path, "x"), claims.read_question(tmp_path, "x")) is None


def test_answers_are_the_first_of_each_kind_of_the_run_with_the_lowest_seed(tmp_path):
    given = cells(seeds=2)
    write(tmp_path, "x", given)
    write_answers(tmp_path, "x", given, "wrong$")
    found = answers.chosen(tmp_path, "x", load(tmp_path, "x").runs)
    own = found[found.arm.eq("aggregate=constant") & found.step.eq(1)]
    assert own.text.tolist() == ["2$", "3$", "wrong$", "9$"] and set(found.seed) == {0}
    assert sorted(set(found.step)) == [1, 40]


def test_answers_that_a_report_kept_are_read_where_the_run_folders_are_gone(tmp_path):
    import shutil

    given = cells()
    write(tmp_path, "x", given)
    write_question(tmp_path, "x", [CLAIM])
    write_answers(tmp_path, "x", given, "null")
    report(tmp_path, "x")
    first = (tmp_path / "x" / "report.md").read_text()
    shutil.rmtree(tmp_path / "x" / "runs")
    report(tmp_path, "x")
    assert (tmp_path / "x" / "report.md").read_text() == first and "null" in first
