"""Resume: a run that was disturbed equals its undisturbed twin, bit for bit; and what a damaged disk gives."""

import errno
import os
import signal
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from test_run import QUICK, base, composed  # noqa: F401  (base is a fixture)

from ablations import checkpoint, journal, rollout, run
from ablations.journal import Journal
from ablations.status import CHECKPOINTS, status
from ablations.tasks.problem import Problem
from ablations.tasks.prompt import Conversation

SETTINGS = {
    "plain": [],
    # several updates per rollout, and every knob that remembers something
    "stateful": ["update.epochs=2", "update.minibatches=2", "update.tokens_per_micro_batch=150", "entropy=adaptive",
                 "baseline=running_mean", "scale=none", "surrogate=clip_cov", "reward=random", "schedule=cosine"],
    "reference": ["beta=0.1", "reference=synchronised", "reference.sync_every=2", "keep=drop_and_retire",
                  "rollout.recompute_logp=true"],
}


class Disturbed(RuntimeError):
    """Something from outside stopped the run."""


@pytest.fixture
def go(base, results, monkeypatch):  # noqa: F811
    """Run 7 steps with a checkpoint every 2, and stop after journalling any of `stops` -> (state, folder)."""

    def started(*overrides, where, stop=None):
        monkeypatch.setenv("ABLATIONS_RESULTS", str(results / where))
        every = [*QUICK, "steps=7", "machine.checkpoint_every=2", f"base.folder={base}", *overrides]
        write = Journal.write

        def disturbed(self, row):
            write(self, row)
            if row["step"] == stop:
                raise Disturbed

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "write", disturbed)
            state = run.run(composed(*every), every)
        (folder,) = (results / where).glob("single/runs/*")
        return state, folder

    return started


def weights(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "policy").iterdir())}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_stopped_twice_equals_its_undisturbed_twin_in_every_row_and_weight(go, setting, capsys):
    """E04: prompts, completions, weights, moments, learning rate, reference, step axis; the stops fall on, before and
    after a checkpoint."""
    state, whole = go(*SETTINGS[setting], where="whole")
    assert state == "complete"
    assert go(*SETTINGS[setting], where="cut", stop=3)[0] == "failed"
    assert go(*SETTINGS[setting], where="cut", stop=6)[0] == "failed"
    state, cut = go(*SETTINGS[setting], where="cut")
    told = capsys.readouterr().out
    assert state == "complete" and "goes on after step 2" in told and "goes on after step 4" in told
    for name in ("journal.jsonl", "rollouts.parquet"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name
    assert weights(cut) == weights(whole)
    assert not (cut / CHECKPOINTS).exists()


@pytest.mark.slow
def test_a_run_killed_twice_with_signal_9_equals_its_undisturbed_twin(go, base, results):  # noqa: F811
    _, whole = go(where="whole")
    worker = """
import os, signal, sys
sys.path.insert(0, "tests")
from composing import composed
from ablations import run
from ablations.journal import Journal
write, stop = Journal.write, int(sys.argv[1])
def disturbed(self, row):
    write(self, row)
    if row["step"] == stop:
        os.kill(os.getpid(), signal.SIGKILL)
Journal.write = disturbed
run.run(composed(*sys.argv[2:]), sys.argv[2:])
"""
    every = [*QUICK, "steps=7", "machine.checkpoint_every=2", f"base.folder={base}"]
    environment = {**os.environ, "ABLATIONS_RESULTS": str(results / "cut")}
    for stop in (3, 5):
        done = subprocess.run([sys.executable, "-c", worker, str(stop), *every], env=environment, check=False)
        assert done.returncode == -signal.SIGKILL
        (folder,) = (results / "cut").glob("single/runs/*")
        told = status(folder)
        assert told["state"] == "failed" and f"killed after step {stop}" in told["reason"]
    state, cut = go(where="cut")
    assert state == "complete"
    assert (cut / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()
    assert weights(cut) == weights(whole)


def test_a_damaged_checkpoint_is_refused_by_name_and_the_run_goes_on_from_the_one_before(go, capsys):
    _, whole = go(where="whole")
    _, cut = go(where="cut", stop=5)
    newest, before = checkpoint.newest_first(cut / CHECKPOINTS)
    content = bytearray(newest.read_bytes())
    content[-1000] ^= 1
    newest.write_bytes(content)
    state, _ = go(where="cut")
    said = capsys.readouterr()
    assert state == "complete" and str(newest) in said.err and "damaged" in said.err
    assert "goes on after step 2" in said.out and before.name == "step-000002.ckpt"
    assert (cut / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


def test_with_every_checkpoint_damaged_the_run_starts_from_the_beginning_and_says_so(go, capsys):
    _, whole = go(where="whole")
    _, cut = go(where="cut", stop=5)
    for number, path in enumerate(checkpoint.newest_first(cut / CHECKPOINTS)):
        path.write_bytes([b"", b"something else"][number])
    assert go(where="cut")[0] == "complete" and "starts from the beginning" in capsys.readouterr().out
    assert (cut / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


def test_a_damaged_journal_is_a_failed_run_that_names_the_line_and_stops_nothing(go):
    _, cut = go(where="cut", stop=5)
    (cut / "journal.jsonl").write_text("{\n{}\n")
    assert go(where="cut")[0] == "failed"
    assert "journal.jsonl, line 1 is not JSON" in status(cut)["reason"] and (cut / "traceback.txt").is_file()


def test_a_checkpoint_that_is_ahead_of_its_journal_is_not_used(go, capsys):
    _, whole = go(where="whole")
    _, cut = go(where="cut", stop=5)
    rows = (cut / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "journal.jsonl").write_bytes(b"".join(rows[:4]))  # up to step 3, one checkpoint is of step 4
    assert go(where="cut")[0] == "complete"
    said = capsys.readouterr()
    assert "step-000004.ckpt is not used: the journal lacks rows" in said.err and "goes on after step 2" in said.out
    assert (cut / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


def test_checkpoints_are_no_part_of_the_identity_and_move_no_number(go):
    _, often = go("machine.checkpoint_every=1", "machine.keep_checkpoints=true", where="often")
    _, never = go("machine.checkpoint_every=0", where="never")
    assert often.name == never.name
    assert (often / "journal.jsonl").read_bytes() == (never / "journal.jsonl").read_bytes()
    assert [path.name for path in checkpoint.newest_first(often / CHECKPOINTS)] == [
        "step-000006.ckpt", "step-000005.ckpt"]
    assert not (never / CHECKPOINTS).exists()


def test_a_full_disk_leaves_the_last_checkpoint_whole_and_the_error_names_the_file(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, {"a": torch.ones(3)})

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*step-000002\.ckpt"):
        checkpoint.save(tmp_path, 2, {"a": torch.zeros(3)})
    assert os.listdir(tmp_path) == ["step-000001.ckpt"]
    assert checkpoint.load(tmp_path / "step-000001.ckpt")["a"].tolist() == [1, 1, 1]


class Evil:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_checkpoint_that_could_not_be_read_back_is_refused_when_it_is_written(tmp_path):
    checkpoint.save(tmp_path, 1, {"a": 1})
    with pytest.raises(TypeError, match=r"step-000002\.ckpt cannot hold fractions\.Fraction: only tensors"):
        checkpoint.save(tmp_path, 2, {"a": [Fraction(1, 2)]})
    assert os.listdir(tmp_path) == ["step-000001.ckpt"]


def test_reading_a_checkpoint_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "get_unsafe_globals_in_checkpoint", lambda _: [])  # as somebody else writes it
    path = checkpoint.save(tmp_path, 1, {"a": Evil(tmp_path / "made")})
    with pytest.raises(checkpoint.Damaged, match=r"step-000001\.ckpt"):
        checkpoint.load(path)
    assert not (tmp_path / "made").exists()


def test_answers_to_prompts_and_with_golds_of_any_class_are_kept_as_text(tmp_path):
    """A prompt for a chat template is a class of text of its own, and a user's task may have numbers as answers."""
    asked = Problem("a", Conversation(("system", "Be brief."), ("user", "1/4+1/4")), Fraction(1, 2), 1)
    columns = {"problems": [asked], "texts": ["1/2"], "total": torch.ones(1)}
    kept = rollout.examples(columns | {"lengths": torch.tensor([3]), "truncated": torch.tensor([False])})
    read = checkpoint.load(checkpoint.save(tmp_path, 1, {"examples": kept}))["examples"]
    assert [(row["prompt"], row["gold"]) for row in read] == [("system: Be brief.\nuser: 1/4+1/4", "1/2")]
    journal.write_examples(tmp_path / "rollouts.parquet", read)
