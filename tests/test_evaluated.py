"""pass@k in the report: gains over the base with its error inside, and problems gained and lost."""

import numpy as np
import pandas as pd
import pytest
from synthetic import Cell, write, write_question

from analysis import evaluated, passk, stats
from analysis.load import load
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
    assert "| k=b | ramble | 0 | 0 |" in part


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
