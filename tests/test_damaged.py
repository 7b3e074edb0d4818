"""Files that a kill or a full disk left damaged: one run's cost that run, an ablation's are told in a sentence."""

import pytest
from synthetic import LENGTH_CLAIM, Cell, write_journals, write_question

from analysis import look, plot
from analysis.facts import of_runs
from analysis.load import load
from analysis.report import cli, report

CLAIM = LENGTH_CLAIM | {"metric": "m", "window": [10, 20]}


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: [])


@pytest.fixture
def runs(results):
    """Six pairs as folders; the folder of a run of sequence_mean with seed 3."""
    cells = [
        Cell({"aggregate": arm}, seed, {"m": {0: 1.0, 10: seed + own, 20: seed + own}, "seconds/update": {10: 0.1}})
        for seed, own_x in enumerate((2.0, 2.2, 1.9, 2.1, 2.3, 2.0))
        for arm, own in (("sequence_mean", own_x), ("constant", 0.0))
    ]
    write_journals(results, "x", cells)
    write_question(results, "x", [CLAIM], cells)
    cell = next(cell for cell in cells if (cell.seed, cell.arm) == (3, "aggregate=sequence_mean"))
    return results / "x/runs" / f"{cell.slug}-{cell.id}"


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("status.json", '{"state":', "Expecting value"),
        ("status.json", "{}", "its state is None"),
        ("mlflow.json", "", "Expecting value"),
        ("mlflow.json", "[]", "it holds a list"),
        ("mlflow.json", '{"params": 3}', "its params are 3"),
        ("journal.jsonl", '{"step": 0, "m": 1}\n{"step": 10, "m"\n{"step": 20, "m": 1}\n', "line 2 is not JSON"),
        ("journal.jsonl", '{"m": 1}\n', "line 1 has the step None, not a whole number"),
        ("journal.jsonl", '{"step": 0.5, "m": 1}\n', "line 1 has the step 0.5"),
        ("journal.jsonl", '{"step": 0, "m": "1"}\n', "line 1 has '1' as m, not a number"),
        ("journal.jsonl", "[1]\n", "line 1 is a list"),
        ("timing.jsonl", '{"step": 10\n', "line 1 is not JSON"),
    ],
)
def test_a_run_with_a_damaged_file_has_failed_with_it_as_the_reason_and_has_no_rows(runs, file, content, why):
    (runs / file).write_text(content)
    stored = load(runs.parents[2], "x")
    run = stored.runs[stored.runs.run.eq(runs.name)].astype(object).iloc[0]
    assert (run.state, run.arm, run.seed) == ("failed", "aggregate=sequence_mean", 3)
    assert run.reason.startswith(f"{file} cannot be read (") and why in run.reason
    assert stored.rows.run.nunique() == 11 and runs.name not in set(stored.rows.run)


def test_one_damaged_run_is_counted_in_the_report_and_the_others_are_judged(runs):
    (runs / "mlflow.json").write_text("")
    (runs / "journal.jsonl").write_text('{"step": 0\n')
    with pytest.raises(SystemExit, match="11 of 12 runs are complete, 1 failed; .*seed 3: failed"):
        cli(["x"])
    assert "5 " in report(runs.parents[2], "x", allow_missing=True)
    page = (runs.parents[1] / "report.md").read_text()
    assert "11 of 12 runs are complete, 1 failed" in page and "sequence_mean: 1 failed" in page
    assert "mlflow.json cannot be read" in page and "journal.jsonl cannot be read" in page and "unset" not in page


def test_a_damaged_config_or_environment_is_not_among_those_that_were_read_and_costs_no_run(runs):
    (runs / "config.yaml").write_text("a: [")
    (runs / "environment.json").write_text('{"a"')
    stored = load(runs.parents[2], "x")
    assert of_runs(runs.parents[2], "x", stored.runs).read == 11 and stored.runs.state.eq("complete").all()


@pytest.mark.parametrize("content", ["a: [", "- 1", "", "claims: 3", "cells: [3]", "question: ${a}", "claims: [3]"])
def test_a_damaged_ablation_yaml_ends_the_commands_with_one_sentence(runs, content):
    (runs.parents[1] / "ablation.yaml").write_text(content)
    for command in (lambda: cli(["x"]), lambda: plot.cli(["x", "y=m"])):
        with pytest.raises(SystemExit, match=r"^ablate-\w+: .*ablation.yaml(, claim 1: it is 3| cannot be read)"):
            command()


@pytest.mark.parametrize("file", ["runs.csv", "curves.parquet", "facts.json"])
def test_a_damaged_table_that_a_report_kept_ends_the_command_with_one_sentence(runs, file):
    report(runs.parents[2], "x")
    runs.parent.rename(runs.parents[1] / "elsewhere")
    (runs.parents[1] / "data" / file).write_bytes(b'"\xff')
    with pytest.raises(SystemExit, match=f"^ablate-report: .*{file} cannot be read"):
        cli(["x"])


@pytest.mark.parametrize(("file", "content"), [("w.yaml", "a: ["), ("w.yaml", "- 1"), ("w.csv", "a,b\n1,2\n")])
def test_a_damaged_prediction_ends_the_command_with_one_sentence(runs, file, content):
    write_question(runs.parents[2], "x", [CLAIM], predictions={"w": {"says": "w"}})
    folder = runs.parents[1] / "predictions"
    folder.mkdir()
    (folder / "w.yaml").write_text("says: w\n")
    (folder / "w.csv").write_text("x,holds\n")
    (folder / file).write_text(content)
    with pytest.raises(SystemExit, match=f"^ablate-report: .*{file} cannot be read"):
        cli(["x"])


@pytest.mark.parametrize("file", ["mlflow.db", "rollouts.parquet", "evaluation.parquet"])
def test_a_damaged_store_or_file_of_answers_ends_the_command_with_one_sentence(runs, file):
    answers = next(runs.parent.glob("sequence_mean-*-s0-*"))
    (answers if file.endswith(".parquet") else runs.parents[2]).joinpath(file).write_bytes(b"PAR1 and no more")
    with pytest.raises(SystemExit, match=f"^ablate-report: .*{file} cannot be read"):
        cli(["x"])
