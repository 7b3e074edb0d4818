"""One ablation, four places it can be read from: the same frame."""

import json
import math
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pandas as pd
import pytest
from synthetic import Cell, crossing, write, write_journals, write_through_mlflow

from analysis import kept
from analysis.load import Absent, export, load

ODD = Cell(
    {"aggregate": "constant", "scale": "none"},
    7,
    {"loss/total": [(0, math.nan), (1, 0.1 + 0.2), (3, math.nan)], "seconds/update": {0: 0.123}},
    state="diverged",
    reason="loss is NaN at step 3, <b>",
)


def same(one, other, but=("started",)):
    assert one.knobs == other.knobs
    pd.testing.assert_frame_equal(one.rows, other.rows)
    pd.testing.assert_frame_equal(one.runs.drop(columns=list(but)), other.runs.drop(columns=list(but)))


def cells():
    return crossing(seeds=2, steps=4) + [ODD]


def test_journals_without_any_store_read_as_the_store_of_the_same_runs(tmp_path):
    write_journals(tmp_path / "folders", "x", cells())
    same(load(tmp_path / "folders", "x"), load(write(tmp_path / "store", "x", cells()), "x"))


def test_the_kept_tables_read_as_what_they_were_made_from_to_the_last_bit(tmp_path):
    data = load(write(tmp_path, "x", cells()), "x")
    kept.write(tmp_path / "clone" / "x", data.rows, data.runs, data.knobs)
    same(load(tmp_path / "clone", "x"), data, but=())
    nan = load(tmp_path / "clone", "x").rows
    assert nan.value[nan.metric.eq("loss/total")].isna().tolist() == [True, False, True]


def test_the_kept_tables_are_the_same_bytes_twice_and_small(tmp_path):
    data = load(write(tmp_path, "x", crossing(seeds=8, steps=60)), "x")
    files = [kept.write(tmp_path / name / "x", data.rows, data.runs, data.knobs) for name in ("one", "two")]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    assert sum(file.stat().st_size for file in files[0]) < 12 * len(data.rows)


def test_a_results_folder_prefers_its_store_and_falls_back_where_the_store_lacks_the_ablation(tmp_path):
    write(tmp_path, "other", [ODD])
    write_journals(tmp_path, "x", [ODD])
    assert len(load(tmp_path, "x").runs) == 1
    write(tmp_path, "x", [ODD, ODD._replace(seed=8)])
    assert len(load(tmp_path, "x").runs) == 2


def test_a_store_can_be_named_as_a_file_and_as_a_uri(tmp_path):
    write(tmp_path, "x", [ODD])
    same(load(tmp_path / "mlflow.db", "x"), load(f"sqlite:///{tmp_path / 'mlflow.db'}", "x"), but=())


def test_a_half_written_last_line_is_no_row_and_a_broken_one_is_named(tmp_path):
    write_journals(tmp_path, "x", [ODD])
    journal = next(tmp_path.glob("x/runs/*/journal.jsonl"))
    with journal.open("a") as file:
        file.write('{"step": 4, "loss/total": 1')
    assert load(tmp_path, "x").rows.step.max() == 3
    journal.write_text('{"step": 0}\nnonsense\n')
    (broken,) = load(tmp_path, "x").runs.astype(object).itertuples()
    assert broken.state == "failed" and "journal.jsonl cannot be read (line 2 is not JSON" in broken.reason


def test_export_keeps_every_point_in_both_formats(tmp_path):
    data = load(write(tmp_path, "x", [*cells(), Cell({"aggregate": "16", "scale": "None"}, 0, {"m": {0: 1.5}})]), "x")
    paths = export(data, tmp_path / "out")
    assert [path.name for path in paths] == ["points.parquet", "points.csv", "runs.parquet", "runs.csv"]
    for table in (pd.read_parquet(paths[0]), pd.read_csv(paths[1], keep_default_na=False)):
        assert len(table) == len(data.rows) and list(table.columns) == list(data.rows.columns)
        numbers = pd.to_numeric(table.value, errors="coerce").to_numpy()
        np.testing.assert_array_equal(numbers, data.rows.value.to_numpy())
        assert "None" in set(table.scale.astype(str)) and "16" in set(table["aggregate"].astype(str))
    assert pd.read_csv(paths[3]).reason.tolist().count(ODD.reason) == 1


def test_a_wide_export_has_a_column_per_metric(tmp_path):
    data = load(write(tmp_path, "x", cells()), "x")
    wide = pd.read_parquet(export(data, tmp_path / "out", wide=True)[0])
    assert wide["reward/mean"].notna().sum() == data.rows.metric.eq("reward/mean").sum()
    assert not wide.duplicated(["run", "step"]).any()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A tracking server on this machine with one ablation, and the store that it serves."""
    folder = tmp_path_factory.mktemp("served")
    long = Cell({"aggregate": "constant", "scale": "none"}, 9, {"m": dict.fromkeys(range(2_500), 0.5)})
    twice = Cell({"aggregate": "constant", "scale": "none"}, 10, {"m": [(0, 0.1), (1, 0.2), (1, 0.9)]})
    write_through_mlflow(folder, "x", [*cells(), long, twice])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--artifacts-destination", str(folder)]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        for _ in range(240):
            time.sleep(0.5)
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}", folder
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.slow
def test_a_tracking_server_reads_as_the_store_behind_it(served):
    uri, folder = served
    by_client = load(uri, "x")
    same(by_client, load(folder, "x"), but=())
    assert by_client.rows.seed.eq(9).sum() == 2_500 and by_client.rows.value[by_client.rows.seed.eq(10)].tolist() == [
        0.1,
        0.9,
    ]
    with pytest.raises(Absent, match="no ablation 'y'; it has Default, x"):
        load(uri, "y")


@pytest.mark.slow
def test_more_than_a_thousand_runs_come_from_a_server_whole(served, monkeypatch):
    """mlflow#22218: an export that stops at 1,000 runs. Pages of three do the same to seven runs."""
    from analysis import server

    monkeypatch.setattr(server, "PAGE", 3)
    assert len(load(served[0], "x").runs) == 7


def test_a_server_that_is_not_there_is_named_in_one_sentence(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConnectionError, match="http://127.0.0.1:9 cannot be read"):
        load("http://127.0.0.1:9", "x")


def test_journals_say_what_the_status_file_says(tmp_path):
    write_journals(tmp_path, "x", [ODD])
    folder = next(tmp_path.glob("x/runs/*"))
    folder.joinpath("status.json").write_text(json.dumps({"state": "failed", "reason": "disk full"}))
    assert load(tmp_path, "x").runs[["state", "reason"]].values.tolist() == [["failed", "disk full"]]
    folder.joinpath("status.json").unlink()
    assert load(tmp_path, "x").runs.state.tolist() == ["running"]
