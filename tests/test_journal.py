"""The journal: what is on disk after a step, and after an attempt that did not end."""

import math
import os
import subprocess

import pytest
import torch

from ablations import journal
from ablations.journal import Journal, merged_rows, read_rows, write_examples

AWKWARD = [0.1 + 0.2, 1e-320, -0.0, 2.0**-1074, 1.7976931348623157e308, math.inf, 3]


def test_floats_read_back_bit_for_bit(tmp_path):
    Journal(tmp_path).write({"step": 0, **{f"m/{i}": value for i, value in enumerate(AWKWARD)}})
    (row,) = read_rows(tmp_path / "journal.jsonl")
    assert [repr(row[f"m/{i}"]) for i in range(len(AWKWARD))] == [repr(value) for value in AWKWARD]


def test_a_row_is_the_same_bytes_in_whatever_order_its_metrics_were_measured(tmp_path):
    for folder, row in {"a": {"step": 1, "b": 2.0, "a": 1.0}, "b": {"a": 1.0, "b": 2.0, "step": 1}}.items():
        (tmp_path / folder).mkdir()
        Journal(tmp_path / folder).write(row)
    assert (tmp_path / "a/journal.jsonl").read_bytes() == (tmp_path / "b/journal.jsonl").read_bytes()
    assert (tmp_path / "a/journal.jsonl").read_text() == '{"step":1,"a":1.0,"b":2.0}\n'


def test_a_step_is_on_disk_when_write_returns(tmp_path):
    Journal(tmp_path).write({"step": 0, "a": 1.0})      # neither closed nor flushed by the caller
    assert subprocess.check_output(["cat", tmp_path / "journal.jsonl"], text=True) == '{"step":0,"a":1.0}\n'


def test_seconds_are_kept_out_of_the_journal_and_come_back_merged(tmp_path):
    opened = Journal(tmp_path)
    opened.write({"step": 0, "a": 1.0})
    opened.write({"step": 1, "a": 2.0, "seconds/sample": 0.25})
    assert opened.rows() == [{"step": 0, "a": 1.0}, {"step": 1, "a": 2.0}]
    assert read_rows(tmp_path / "timing.jsonl") == [{"step": 1, "seconds/sample": 0.25}]
    assert merged_rows(tmp_path)[1] == {"step": 1, "a": 2.0, "seconds/sample": 0.25}


def test_a_resumed_run_writes_the_same_file_as_an_undisturbed_one(tmp_path):
    rows = [{"step": step, "a": step / 3, "seconds/sample": 1.0} for step in range(6)]
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    whole, killed = Journal(tmp_path / "whole"), Journal(tmp_path / "killed")
    for row in rows:
        whole.write(row)
    for row in rows[:5]:
        killed.write(row)
    with open(tmp_path / "killed/journal.jsonl", "ab") as file:
        file.write(b'{"step":5,"a":1.66')
    resumed = Journal(tmp_path / "killed", start=3)          # its checkpoint is older than its journal
    assert [row["step"] for row in resumed.rows()] == [0, 1, 2]
    for row in rows[3:]:
        resumed.write(row)
    for name in ("journal.jsonl", "timing.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(os.listdir(tmp_path / "killed")) == ["journal.jsonl", "timing.jsonl"]


def test_a_half_written_last_line_is_no_row_and_a_broken_line_before_it_is_an_error_with_its_number(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step":0}\n{"step":1')
    assert read_rows(path) == [{"step": 0}]
    path.write_text('{"step":0}\n{"st\n{"step":2}\n')
    with pytest.raises(ValueError, match=r"journal\.jsonl, line 2 is not JSON"):
        read_rows(path)


def test_a_step_that_does_not_come_after_the_last_is_refused(tmp_path):
    opened = Journal(tmp_path)
    opened.write({"step": 4})
    with pytest.raises(ValueError, match="step 4 comes after step 4"):
        opened.write({"step": 4})
    assert len(opened.rows()) == 1


def test_a_tensor_in_a_row_is_refused_by_name_and_leaves_no_trace(tmp_path):
    with pytest.raises(TypeError, match="loss/total is a Tensor"):
        Journal(tmp_path).write({"step": 0, "loss/total": torch.tensor(1.0)})
    assert read_rows(tmp_path / "journal.jsonl") == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_reported_with_the_file(tmp_path):
    opened = Journal(tmp_path)
    opened.path.unlink()
    opened.path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device.*journal\.jsonl"):
        opened.write({"step": 0})


def test_examples_keep_every_key_that_any_row_has(tmp_path):
    import pandas as pd

    write_examples(tmp_path / "rollouts.parquet", [{"step": 0, "text": "#3"}, {"step": 1, "text": "é", "reward": 1.0}])
    frame = pd.read_parquet(tmp_path / "rollouts.parquet")
    assert list(frame.columns) == ["step", "text", "reward"]
    assert frame.reward.isna().tolist() == [True, False] and frame.text.tolist() == ["#3", "é"]
    assert os.listdir(tmp_path) == ["rollouts.parquet"]


def test_the_commit_says_whether_tracked_files_differ_from_it(tmp_path):
    assert journal.git_commit(tmp_path) == journal.git_commit_date(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    clean = journal.git_commit(tmp_path)
    (tmp_path / "file").write_text("2")
    assert len(clean) == 40 and journal.git_commit(tmp_path) == f"{clean}+changes"
    assert journal.git_commit_date(tmp_path).startswith("20")
