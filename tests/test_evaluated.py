"""pass@k in the report: gains over the base with its error inside, and problems gained and lost."""

import numpy as np
import pandas as pd
import pytest
from synthetic import Cell, write, write_question

from analysis import by_arm, evaluated, passk, stats
from analysis.load import load
from analysis.page import markdown
from analysis.report import report


def counts(seed, step, p, samples=8):
    rng = np.random.default_rng([seed, step])
    return pd.DataFrame(
        {"step": step, "problem": [f"q{i}" for i in range(len(p))], "level": 1, "samples": samples}
        | {"correct": rng.binomial(samples, p)}
    )


@pytest.fixture
def reported(tmp_path):
    """Two arms of five seeds; one learns problem q0 and forgets q1 -> the results folder."""
    p = np.array([0.0, 1.0, *np.linspace(0.2, 0.8, 18)])
    cells = [
        Cell({"k": arm}, seed, {"accuracy/heldout": {0: 0.5, 9: 0.6}, "accuracy/heldout/pass_at_4": {0: 0.5, 9: 0.6}})
        for seed in range(5)
        for arm in ("a", "b")
    ]
    write(tmp_path, "x", cells)
    write_question(tmp_path, "x", [])
    for cell in cells:
        folder = tmp_path / "x" / "runs" / f"{cell.slug}-{cell.id}"
        folder.mkdir(parents=True)
        after = p.copy()
        if cell.knobs["k"] == "a":
            after[:2] = 1.0, 0.0
        place = 2 * cell.seed + (cell.knobs["k"] == "a")
        both = [counts(place, 0, p), counts(place, 9, after)]
        pd.concat(both).to_parquet(folder / "evaluation.parquet")
    report(tmp_path, "x")
    return tmp_path


def test_a_gain_is_the_paired_difference_of_each_run_to_its_own_base(reported):
    stored = load(reported, "x")
    counted = evaluated.read(reported, "x", stored.runs)
    row = evaluated.gains(counted, [4]).iloc[0]
    own = [run for _, run in counted[counted.arm.eq("k=a")].groupby("seed")]
    per_run = [
        [passk.pass_at_k(s.samples, s.correct, 4).mean() for s in (run[run.step.eq(0)], run[run.step.eq(9)])]
        for run in own
    ]
    expected = stats.t_interval([after - before for before, after in per_run])
    assert (row.gain, row.low, row.high, row.n) == pytest.approx(expected[:4])


def test_where_all_runs_share_one_evaluation_of_the_base_its_error_is_added():
    p = np.linspace(0.2, 0.8, 20)
    shared = counts(0, 0, p)
    runs = [pd.concat([shared, counts(s, 9, p)]).assign(arm="a", base="b", seed=s) for s in range(1, 6)]
    row = evaluated.gains(pd.concat(runs), [1]).iloc[0]
    after = [run[run.step.eq(9)] for run in runs]
    assert (row.low, row.high) == pytest.approx(passk.gain(after, shared, 1)[1:3])
    narrow = stats.t_interval([(t.correct / 8).mean() - (shared.correct / 8).mean() for t in after])
    assert row.high - row.low > narrow.high - narrow.low


def test_the_report_names_the_problems_gained_and_lost(reported):
    text = (reported / "x" / "report.md").read_text()
    part = text.split("## pass@k, and the problems gained and lost")[1].split("\n## ")[0]
    assert "| k=a | ramble | q0 | gained | 0 of 40 | 40 of 40 | &lt; 0.001 |" in part
    assert "| k=a | ramble | q1 | lost | 40 of 40 | 0 of 40 | &lt; 0.001 |" in part
    assert "| k=a | ramble | 5 | 1 | 1 |" in part and "| k=b | ramble | 5 | 0 | 0 |" in part
    assert "the paired t test over the runs" in part and "(–)" not in part and "that one policy" not in part


def learns_q0(seed, last=10, rows=20, base=None):
    """The evaluations of one run, which learns problem q0 and leaves the others."""
    p = np.array([0.0, *np.linspace(0.2, 0.8, rows - 1)])
    before = counts(seed, 0, p) if base is None else base
    return pd.concat([before, counts(seed, last, np.append(1.0, p[1:]))]).assign(arm="a", base="b", seed=seed)


def test_a_run_evaluated_at_another_last_step_drops_no_answers_of_the_others():
    table = evaluated.changes(pd.concat([learns_q0(seed, 20 if seed == 3 else 10) for seed in range(6)]))
    row = table.set_index("problem").loc["q0"]
    assert (row.change, row.samples, row.correct, row.samples_before, row.runs) == ("gained", 48, 48, 48, 6)


def test_a_run_that_was_evaluated_once_only_is_not_counted_and_neither_are_ungraded_answers():
    runs = [learns_q0(seed) for seed in range(6)]
    runs[0] = runs[0][runs[0].step.eq(0)]
    hidden = runs[1].problem.eq("q4") & runs[1].step.eq(10)
    runs[1].loc[hidden, ["samples", "correct"]] = 0
    table = evaluated.changes(pd.concat(runs)).set_index("problem")
    assert (table.runs == 5).all() and table.samples["q0"] == 40
    assert table.samples["q4"] == table.samples_before["q4"] == 32 and np.isnan(table.p["q4"])


def test_a_base_that_all_runs_share_is_counted_once_among_the_problems_gained_and_lost():
    base = counts(0, 0, np.array([0.0, *np.linspace(0.2, 0.8, 19)]))
    table = evaluated.changes(pd.concat([learns_q0(seed, base=base) for seed in range(1, 7)]))
    assert (table.samples_before == 8).all() and (table.samples == 48).all()


@pytest.mark.parametrize(
    ("seeds", "line", "why"),
    [
        (1, "| a | b | 1 | 1 | 0 |", "With one run p is Fisher's over its answers"),
        (3, "| a | b | 3 | – | – |", "Fewer than 5 runs are not tested (–)"),
        (5, "| a | b | 5 | 1 | 0 |", "the paired t test over the runs"),
    ],
)
def test_the_report_says_what_the_table_rests_on_with_so_many_runs(seeds, line, why):
    counted = pd.concat([learns_q0(seed) for seed in range(seeds)])
    blocks = by_arm.passes(evaluated.gains(counted, [4]), evaluated.changes(counted))
    text = markdown(blocks)
    assert line in text and why in text


def test_where_no_run_was_evaluated_twice_no_problem_is_gained_or_lost():
    once = pd.concat([learns_q0(seed) for seed in range(2)]).query("step == 0")
    assert not len(evaluated.changes(once))


def test_a_clone_without_run_folders_says_the_same(reported, tmp_path_factory):
    clone = tmp_path_factory.mktemp("clone")
    (clone / "x").mkdir()
    import shutil

    shutil.copytree(reported / "x" / "data", clone / "x" / "data")
    shutil.copy(reported / "x" / "ablation.yaml", clone / "x" / "ablation.yaml")
    report(clone, "x")
    for name in ("report.md", "summary.csv", "claims.csv"):
        assert (clone / "x" / name).read_bytes() == (reported / "x" / name).read_bytes()


def test_where_pass_at_k_was_not_measured_the_report_has_no_such_section(tmp_path):
    write(tmp_path, "x", [Cell({"k": "a"}, 0, {"m": {0: 1.0, 1: 2.0}})])
    write_question(tmp_path, "x", [])
    report(tmp_path, "x")
    assert "pass@k" not in (tmp_path / "x" / "report.md").read_text()
