"""Runs from start to end: reproducible, finished once, and never lost without a word."""

import contextlib
import json
import re
import sqlite3
from pathlib import Path

import pytest
import torch
from composing import composed
from hydra.utils import instantiate

from ablations import run
from ablations.status import status

QUICK = ["steps=3", "rollout.prompts=4", "rollout.group_size=4", "evaluate.problems=20", "machine.tracking=none"]


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> str:
    """A base policy that has learnt to end its answers and little else."""
    cfg = composed("base.clean_steps=60", "base.noisy_steps=20", "base.solved=null", "base.record_problems=20")
    where = tmp_path_factory.mktemp("base")
    made = instantiate(cfg.base)(
        model=instantiate(cfg.model), task=instantiate(cfg.task), results=where, progress=False
    )
    return str(made)


@pytest.fixture
def go(base, results, monkeypatch):
    """Run with overrides in a results folder of its own name -> (state, folder of the run)."""

    def started(*overrides: str, where: str = "one") -> tuple[str, Path]:
        monkeypatch.setenv("ABLATIONS_RESULTS", str(results / where))
        overrides = [*QUICK, f"base.folder={base}", *overrides]
        state = run.run(composed(*overrides), overrides)
        (folder,) = (results / where).glob("single/runs/*") if where != "shared" else [None]
        return state, folder

    return started


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_the_same_config_and_seed_give_the_same_journal_bit_for_bit(go):
    first, second = go(where="one"), go(where="two")
    assert first[0] == second[0] == "complete"
    assert (first[1] / "journal.jsonl").read_bytes() == (second[1] / "journal.jsonl").read_bytes()


def test_another_seed_gives_other_answers(go):
    first, second = rows(go(where="one")[1]), rows(go("seed=1", where="two")[1])
    assert [row.get("surprisal/mean") for row in first] != [row.get("surprisal/mean") for row in second]


def test_evaluation_and_measuring_the_kl_do_not_move_the_training(go):
    often = rows(go("evaluate.every=1", "evaluate.measure_kl_every=1", where="one")[1])
    never = rows(go("evaluate.every=0", "evaluate.measure_kl_every=0", where="two")[1])
    trained = [{k: v for k, v in row.items() if not k.startswith(("accuracy/heldout", "kl/"))} for row in often]
    assert (
        trained[:-1] == [{k: v for k, v in row.items() if not k.startswith("accuracy/heldout")} for row in never][:-1]
    )
    assert "kl/k3" in often[1] and "kl/k3" not in never[1]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_learning_rate_of_zero_keeps_every_ratio_at_one_and_the_kl_at_zero(go, temperature):
    settings = ["optimizer.lr=0", f"rollout.temperature={temperature}", "beta=0.1", "update.epochs=2"]
    for row in rows(go(*settings)[1])[1:]:
        assert row["ratio/max"] == pytest.approx(1, abs=2e-5) and row["ratio/min"] == pytest.approx(1, abs=2e-5)
        assert row["ratio/first_update_deviation"] <= 2e-5
        assert row["kl/k1"] == pytest.approx(0, abs=2e-5) and row["kl/k3"] == pytest.approx(0, abs=1e-8)


def test_with_one_update_per_rollout_every_eps_gives_the_same_journal(go):
    wide, narrow = (
        rows(go(where="one")[1]),
        rows(go("surrogate.eps_low=0.01", "surrogate.eps_high=0.01", where="two")[1]),
    )
    assert wide == narrow


def test_with_several_updates_eps_matters_and_clips_are_counted(go):
    settings = ["update.epochs=4", "optimizer.lr=5e-3", "reward=random"]
    wide = rows(go(*settings, where="one")[1])
    narrow = rows(go(*settings, "surrogate.eps_low=0.01", "surrogate.eps_high=0.01", where="two")[1])
    assert wide[1]["gradient/norm"] != narrow[1]["gradient/norm"]
    assert narrow[1]["clip/outside"] > wide[1]["clip/outside"] >= 0
    assert narrow[1]["clip/outside"] >= narrow[1]["clip/binding_low"] + narrow[1]["clip/binding_high"] > 0


def test_a_complete_run_is_not_run_again(go):
    _, folder = go()
    written = (folder / "journal.jsonl").stat().st_mtime_ns
    assert go()[0] == "complete" and (folder / "journal.jsonl").stat().st_mtime_ns == written


def test_a_run_that_failed_is_run_again_by_the_same_command(go):
    _, folder = go()
    before = (folder / "journal.jsonl").read_bytes()
    (folder / "status.json").write_text('{"state": "failed", "reason": "test"}')
    (folder / "journal.jsonl").write_text("")
    assert go()[0] == "complete" and (folder / "journal.jsonl").read_bytes() == before


def test_a_gradient_that_is_no_number_stops_the_run_as_diverged_and_keeps_the_batch(go):
    state, folder = go("optimizer.lr=1e30", "reward=random", "steps=5")
    assert state == "diverged"
    told = status(folder)
    assert told["state"] == "diverged" and "step 2" in told["reason"] and "diverged_batch.pt" in told["reason"]
    assert "ids" in torch.load(folder / "diverged_batch.pt", weights_only=True)


def test_a_raising_run_leaves_its_traceback_and_its_reason(go):
    state, folder = go("task.levels=[9]")
    assert state == "failed"
    assert "levels" in status(folder)["reason"]
    assert "Traceback" in (folder / "traceback.txt").read_text()


def test_an_interrupted_run_has_failed_in_the_store_as_well_and_goes_on_by_the_same_command(
    base, store, results, monkeypatch
):
    monkeypatch.setenv("ABLATIONS_RESULTS", str(results))
    overrides = [*QUICK[:-1], f"base.folder={base}"]

    def stopped(row) -> None:
        if row["step"] == 2:
            raise KeyboardInterrupt

    def in_store() -> list[tuple[str, str]]:
        with contextlib.closing(sqlite3.connect(results / "mlflow.db")) as store:
            reasons = dict(store.execute("SELECT run_uuid, value FROM tags WHERE key = 'reason'"))
            runs = store.execute("SELECT run_uuid, status FROM runs").fetchall()
        return [(ended, reasons[uuid]) for uuid, ended in runs if uuid in reasons]

    with pytest.raises(KeyboardInterrupt):
        run.run(composed(*overrides), overrides, watch=stopped)
    (folder,) = results.glob("single/runs/*")
    assert status(folder)["state"] == "failed"
    assert in_store() == [("FAILED", status(folder)["reason"])]
    assert run.run(composed(*overrides), overrides) == "complete" and in_store() == [("FINISHED", "")]


def test_a_run_records_what_it_was(go):
    _, folder = go("scale=none")
    assert "scale=none\n" in (folder / "overrides.txt").read_text()
    assert (folder / "command.txt").read_text().startswith("ablate ")
    assert json.loads((folder / "environment.json").read_text())["threads"] == 1
    assert (folder / "policy" / "config.json").is_file() and (folder / "rollouts.parquet").is_file()


def test_arms_that_cannot_differ_are_named(go):
    from ablations import build, inert

    plain = {
        text: build.plain(composed(*text.split()))
        for text in ("surrogate.eps_high=0.3", "surrogate=cispo", "scale=none")
    }
    ((one, other, why),) = inert.equal_by_construction(plain)
    assert {one, other} == {"surrogate.eps_high=0.3", "surrogate=cispo"} and "one update per rollout" in why
    several = {arm: cfg | {"update": {"epochs": 2, "minibatches": 1}} for arm, cfg in plain.items()}
    assert not inert.equal_by_construction(several)


INFINITE = ["+reward.mine.weight=1", "+reward.mine.part._target_=mischief.infinite", "+reward.mine.part._partial_=true"]


@pytest.mark.parametrize(("overrides", "step", "reason"), [
    (INFINITE, 1, "the rewards of 1 answers are infinite"),
    (["optimizer.lr=1e30", "clipping=none"], 2, "the (loss|gradient norm) is (nan|inf)"),
], ids=["infinite reward", "exploding weights"])
def test_a_run_whose_numbers_are_not_finite_stops_as_diverged_with_its_step_and_its_batch(go, overrides, step, reason):
    state, folder = go(*overrides)
    told = status(folder)
    assert state == told["state"] == "diverged"
    assert re.match(rf"step {step}: {reason}; its batch is saved in diverged_batch.pt$", told["reason"]), told["reason"]
    assert [row["step"] for row in rows(folder)] == list(range(step))
    batch = torch.load(folder / "diverged_batch.pt", weights_only=True)
    assert {"ids", "mask", "advantages", "logp_old"} <= batch.keys()
    assert not (folder / "policy").exists()
