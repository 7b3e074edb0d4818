"""What is said of runs from their folders alone, what may be removed, and what is copied to MLflow later."""

import json
import sqlite3

import pytest
import yaml
from filelock import FileLock

from ablations import run, status, track, tracking
from ablations.journal import Journal

CELLS = {  # hash -> arm, seed, state, reason
    "0" * 16: ("scale=none steps=2", 0, "complete", ""),
    "1" * 16: ("scale=none steps=2", 1, "diverged", "step 3: the loss is nan"),
    "2" * 16: ("scale=group_std steps=2", 0, "failed", "RuntimeError: boom"),
    "3" * 16: ("scale=group_std steps=2", 1, "running", ""),
    "4" * 16: ("scale=group_std steps=2", 2, None, ""),
}


@pytest.fixture
def runs(results):
    """An ablation `q` with one run of every state; of the one that was not started there is no folder."""
    cells = [{"hash": key, "arm": arm, "seed": str(seed)} for key, (arm, seed, *_) in CELLS.items()]
    (results / "q").mkdir(parents=True)
    (results / "q/ablation.yaml").write_text(yaml.safe_dump({"cells": cells}))
    for key, (arm, seed, state, reason) in CELLS.items():
        if state is None:
            continue
        folder = results / "q/runs" / f"cell-{key[:8]}"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints/step-000001.ckpt").write_bytes(bytes(500_000))
        journal = Journal(folder)
        for step in range(3):
            journal.write({"step": step, "reward/mean": 0.5})
        tracking._keep(tracking.Identity("q", key, {"seed": str(seed)}, {"arm": arm}), folder)
        status.write_status(folder, state, reason)
    return results / "q/runs"


def table(capsys, *arguments) -> tuple[int, list[str]]:
    with pytest.raises(SystemExit) as end:
        status.status_cli(list(arguments))
    return end.value.code, capsys.readouterr().out.splitlines()


def test_the_table_has_a_line_per_run_and_what_all_arms_share_stands_above_it(runs, capsys):
    code, lines = table(capsys, "q")
    assert code == 1
    assert [" ".join(line.split()) for line in lines] == [
        "all runs: steps=2",
        "arm seed state reason folder",
        "scale=none 0 complete cell-00000000",
        "scale=none 1 diverged step 3: the loss is nan cell-11111111",
        "scale=group_std 0 failed RuntimeError: boom cell-22222222",
        "scale=group_std 1 failed killed after step 2; the same command goes on from its last checkpoint cell-33333333",
        "scale=group_std 2 not started",
        "1 of 5 runs are complete, 1 diverged, 2 failed, 1 not started.",
    ]


def test_a_run_that_holds_its_lock_is_running_and_one_that_lost_it_was_killed(runs, capsys):
    with FileLock(runs / "cell-33333333" / status.LOCK):
        assert any("running" in line and "after step 2" in line for line in table(capsys, "q")[1])
    assert not any("running" in line for line in table(capsys, "q")[1])


@pytest.mark.parametrize("damaged", ["status.json", "journal.jsonl"])
def test_one_damaged_file_is_named_in_its_own_line_and_takes_the_table_from_no_other(runs, capsys, damaged):
    (runs / "cell-33333333" / damaged).write_text("{\n{")
    lines = table(capsys, "q")[1]
    (line,) = [line for line in lines if "cell-33333333" in line.split()[-1:]]
    assert "failed" in line and "cannot be read" in line.replace("...", "cannot be read")
    assert "cannot be read" in status.status(runs / "cell-33333333")["reason"]
    assert lines[-1] == "1 of 5 runs are complete, 1 diverged, 2 failed, 1 not started."


def test_a_killed_run_is_written_down_as_such_unless_another_launch_has_it(runs):
    folder = runs / "cell-33333333"
    with FileLock(folder / status.LOCK):
        status.settle(folder)
    assert json.loads((folder / "status.json").read_text())["state"] == "running"
    status.settle(folder)
    assert json.loads((folder / "status.json").read_text())["state"] == "failed"


def test_only_an_ablation_whose_runs_are_all_complete_gives_exit_code_0(runs, capsys):
    for folder in runs.iterdir():
        status.write_status(folder, "complete")
    assert table(capsys, "q")[0] == 1                      # one was not started
    record = runs.parent / "ablation.yaml"
    record.write_text(yaml.safe_dump({"cells": yaml.safe_load(record.read_text())["cells"][:4]}))
    assert table(capsys, "q")[0] == 0


@pytest.mark.parametrize(("command", "arguments", "answer"), [
    (status.status_cli, ["other"], "there is no ablation other in .*, only q"),
    (status.status_cli, [], "0 names given; it takes: ablate-status NAME"),
    (status.clean_cli, ["q", "all=true"], r"all=true given; it takes: ablate-clean NAME \[failed=true\] \[yes=true\]"),
    (status.clean_cli, ["q", "--yes"], "--yes given"),
    (status.clean_cli, ["..", "yes=true"], "no runs of .. in .*, only of q"),
    (status.clean_cli, ["../results/q", "yes=true"], "no runs of ../results/q in .*, only of q"),
    (track.cli, ["q"], "q was given; it takes: ablate-track sync"),
    (track.cli, ["sync", "uri=mlruns"], "machine.tracking is mlruns; it can be sqlite"),
    (track.cli, ["sync", "other"], "no runs of other"),
])
def test_a_wrong_command_line_is_answered_with_the_right_one_and_removes_nothing(runs, command, arguments, answer):
    before = sorted(runs.rglob("*"))
    with pytest.raises(SystemExit, match=answer):
        command(arguments)
    assert sorted(runs.rglob("*")) == before


def test_clean_lists_what_can_go_with_its_size_and_removes_it_only_when_told_to(runs, capsys):
    status.clean_cli(["q"])
    out = capsys.readouterr().out
    assert "0.5 MB  complete  cell-00000000/checkpoints" in out and "0.5 MB in 1 places can go" in out
    assert "`ablate-clean q yes=true`" in out and (runs / "cell-00000000/checkpoints").is_dir()
    status.clean_cli(["q", "yes=true"])
    assert "removed 1 of 1 (0.5 MB in 1 places)" in capsys.readouterr().out
    assert not (runs / "cell-00000000/checkpoints").exists() and (runs / "cell-00000000/journal.jsonl").is_file()
    assert (runs / "cell-33333333/checkpoints").is_dir()   # somebody will want to go on from them


def test_clean_removes_whole_failed_runs_only_when_asked_and_never_one_that_is_running(runs, capsys):
    with FileLock(runs / "cell-33333333" / status.LOCK):
        status.clean_cli(["q", "failed=true", "yes=true"])
    assert sorted(path.name for path in runs.iterdir()) == ["cell-00000000", "cell-33333333"]
    status.clean_cli(["q", "failed=true", "yes=true"])
    assert [path.name for path in runs.iterdir()] == ["cell-00000000"]


def stored(path) -> dict[str, tuple[str, int]]:
    """run -> (status, number of points) in a SQLite store."""
    query = "SELECT name, status, (SELECT count(*) FROM metrics m WHERE m.run_uuid = r.run_uuid) FROM runs r"
    with sqlite3.connect(path) as store:
        return {name: (state, points) for name, state, points in store.execute(query)}


def sync(*arguments) -> int:
    with pytest.raises(SystemExit) as end:
        track.cli(["sync", *arguments])
    return end.value.code


def test_sync_copies_to_a_lost_store_and_to_another_one_what_they_miss(runs, store, results, tmp_path, capsys):
    whole = {"q": ("FINISHED", 0), "cell-00000000": ("FINISHED", 3), "cell-11111111": ("FAILED", 3),
             "cell-22222222": ("FAILED", 3), "cell-33333333": ("RUNNING", 3)}
    assert sync() == 0 and "4 of 4 runs are whole" in capsys.readouterr().out
    assert stored(results / "mlflow.db") == whole
    assert sync("q") == 0 and stored(results / "mlflow.db") == whole           # nothing twice
    other = tmp_path / "other" / "mlflow.db"
    other.parent.mkdir()
    other.write_bytes((results / "mlflow.db").read_bytes())
    with sqlite3.connect(other) as lost:                                       # what is known of two runs is gone
        lost.execute("DELETE FROM runs WHERE name LIKE 'cell-_0%' OR name LIKE 'cell-2%'")
        lost.execute("DELETE FROM metrics WHERE step = 2")
    assert sync(f"uri=sqlite:///{other}") == 0 and stored(other) == whole


def test_sync_names_the_runs_that_a_store_which_is_away_still_lacks(runs, capsys):
    assert sync("q", "uri=http://127.0.0.1:9") == 1
    out = capsys.readouterr().out
    assert "0 of 4 runs are whole" in out and out.count("\nnot: ") == 4
    assert json.loads((runs / "cell-00000000/status.json").read_text())["state"] == "complete"


@pytest.mark.parametrize(
    ("file", "content"),
    [("status.json", ""), ("status.json", "[]"), ("journal.jsonl", "{\n"), ("mlflow.json", ""), ("mlflow.json", "[]")],
)
def test_one_damaged_file_keeps_no_other_run_from_the_store_and_stops_no_command(runs, results, capsys, file, content):
    assert sync("q") == 0
    (runs / "cell-00000000" / file).write_text(content)
    if file != "status.json":
        assert sync("q") == 1 and "3 of 4 runs are whole" in capsys.readouterr().out
    else:
        assert status.status(runs / "cell-00000000")["state"] == "failed"
        sync("q")
    status.settle(runs / "cell-00000000")
    tracking.catch_up(results, "sqlite", "q")
    status.clean_cli(["q", "failed=true", "yes=true"])


def test_a_run_whose_description_a_kill_left_half_written_is_described_again(tmp_path):
    (tmp_path / "environment.json").write_text('{"python": ')
    run.describe(tmp_path, {"seed": 0}, ["seed=0"], resumed_after=1)
    assert len(json.loads((tmp_path / "environment.json").read_text())["resumed_after"]) == 1
