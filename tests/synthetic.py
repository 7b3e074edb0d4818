"""Stores with known content, for the tests of analysis: the same runs written by MLflow's client, or straight into its
tables (fast)."""

import json
import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from omegaconf import OmegaConf

# The columns of MLflow's tables that hold runs; a test compares a store made this way with one that MLflow made.
TABLES = """
CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name TEXT, lifecycle_stage TEXT);
CREATE TABLE runs (
    run_uuid TEXT PRIMARY KEY, name TEXT, status TEXT, start_time INT, lifecycle_stage TEXT, experiment_id INT);
CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT, PRIMARY KEY (key, run_uuid));
CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT, PRIMARY KEY (key, run_uuid));
CREATE TABLE metrics (key TEXT, value FLOAT, timestamp INT, run_uuid TEXT, step INT, is_nan INT);
CREATE INDEX by_run ON metrics (run_uuid);
"""
STATUS = {"complete": "FINISHED", "running": "RUNNING", "failed": "FAILED", "diverged": "FAILED"}


class Cell(NamedTuple):
    """One run. points: metric -> step -> value, or -> list of (step, value) where a step is logged more than once."""

    knobs: dict[str, str]
    seed: int
    points: dict[str, dict[int, float] | list[tuple[int, float]]]
    base: str = "ramble"
    state: str = "complete"
    reason: str = ""
    hash: str = ""

    @property
    def arm(self) -> str:
        return " ".join(f"{key}={self.knobs[key]}" for key in sorted(self.knobs))

    @property
    def slug(self) -> str:
        return f"{'-'.join(str(self.knobs[key]) for key in sorted(self.knobs))}-{self.base}-s{self.seed}"

    @property
    def id(self) -> str:
        return self.hash or f"{zlib.crc32(f'{self.arm} {self.seed} {self.base}'.encode()):08x}"

    def tags(self, ablation: str) -> dict[str, str]:
        return {
            "kind": "run",
            "ablation": ablation,
            "hash": self.id,
            "arm": self.arm,
            "seed": str(self.seed),
            "base": self.base,
            "state": self.state,
            "reason": self.reason,
            "folder": f"{ablation}/runs/{self.slug}-{self.id}",
            "commit": "c0ffee1",
        }

    def params(self) -> dict[str, str]:
        return {
            **{key: str(knob) for key, knob in self.knobs.items()},
            "seed": str(self.seed),
            "base": self.base,
            "hash": self.id,
        }

    def series(self) -> list[tuple[str, int, float]]:
        return [
            (metric, step, value)
            for metric, points in self.points.items()
            for step, value in (points.items() if isinstance(points, dict) else points)
        ]


def write(results: Path, ablation: str, cells: Iterable[Cell]) -> Path:
    """Straight into the tables. Returns results."""
    results.mkdir(parents=True, exist_ok=True)
    store = sqlite3.connect(results / "mlflow.db")
    if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone():
        store.executescript(TABLES)
    row = store.execute("SELECT experiment_id FROM experiments WHERE name = ?", (ablation,)).fetchone()
    experiment = (
        row[0]
        if row
        else store.execute(
            "INSERT INTO experiments (name, lifecycle_stage) VALUES (?, 'active')", (ablation,)
        ).lastrowid
    )
    started = store.execute("SELECT count(*) FROM runs").fetchone()[0]
    if not row:
        _row(store, experiment, f"{ablation}-parent", "parent", "FINISHED", 0, {"kind": "ablation"}, {}, [])
    for number, cell in enumerate(cells, start=started + 1):
        _row(
            store,
            experiment,
            f"{ablation}-{number}",
            f"{cell.slug}-{cell.id}",
            STATUS[cell.state],
            number,
            cell.tags(ablation) | {"mlflow.parentRunId": f"{ablation}-parent"},
            cell.params(),
            cell.series(),
        )
    store.commit()
    store.close()
    return results


def _row(store, experiment, uuid, name, status, start, tags, params, series):
    store.execute("INSERT INTO runs VALUES (?, ?, ?, ?, 'active', ?)", (uuid, name, status, start, experiment))
    store.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(k, v, uuid) for k, v in tags.items()])
    store.executemany("INSERT INTO params VALUES (?, ?, ?)", [(k, v, uuid) for k, v in params.items()])
    store.executemany(
        "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
        [
            (
                metric,
                0.0 if np.isnan(v) else max(min(v, 1.7976931348623157e308), -1.7976931348623157e308),
                at,
                uuid,
                step,
                int(np.isnan(v)),
            )
            for at, (metric, step, v) in enumerate(series)
        ],
    )


def write_through_mlflow(results: Path, ablation: str, cells: Iterable[Cell]) -> Path:
    """The same through MLflow's client, as training does it. Returns results."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    results.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(f"sqlite:///{results.resolve() / 'mlflow.db'}")
    experiment = client.create_experiment(ablation)
    parent = client.create_run(experiment, run_name=ablation, tags={"kind": "ablation"})
    for cell in cells:
        tags = cell.tags(ablation) | {"mlflow.parentRunId": parent.info.run_id}
        run = client.create_run(experiment, run_name=f"{cell.slug}-{cell.id}")
        points = [Metric(metric, value, 1000 + at, step) for at, (metric, step, value) in enumerate(cell.series())]
        for first in range(0, max(len(points), 1), 1000):
            client.log_batch(
                run.info.run_id,
                metrics=points[first : first + 1000],
                tags=[RunTag(k, v) for k, v in tags.items()] if first == 0 else [],
                params=[Param(k, v) for k, v in cell.params().items()] if first == 0 else [],
            )
        if cell.state != "running":
            client.set_terminated(run.info.run_id, STATUS[cell.state])
    client.set_terminated(parent.info.run_id)
    return results


def crossing(
    *,
    arms=("sequence_mean", "constant"),
    scales=("none",),
    seeds=5,
    bases=("ramble",),
    steps=40,
    effect=4.0,
    noise=1.0,
    knob="aggregate",
) -> list[Cell]:
    """A crossing that looks like a length ablation: the first arm's incorrect answers end up `effect` tokens longer
    than the others'.

    Seeds shift both arms of a pair alike (2 tokens), so pairing matters; the difference of a pair has spread of about
    `noise`. Held-out accuracy is logged every 10th step and has no effect in it. Length of incorrect answers is absent
    at a few steps.
    """
    cells = []
    at = np.arange(steps + 1)
    for place, arm in enumerate(arms):
        for scale in scales:
            for base in bases:
                for seed in range(seeds):
                    own = np.random.default_rng([seed, place, len(scale), len(base)])
                    shift = 2 * np.random.default_rng([seed, 99]).normal()
                    grows = 1 - np.exp(-at / 12)
                    reward = 0.3 + 0.62 * grows + 0.02 * own.normal() + 0.015 * own.normal(size=steps + 1)
                    wrong = (
                        18
                        + shift
                        + (effect * (place == 0) + noise * own.normal() / 2**0.5) * grows
                        + 0.5 * own.normal(size=steps + 1)
                    )
                    right = 13 + 0.3 * shift - grows + 0.2 * own.normal(size=steps + 1)
                    accuracy = 0.3 + 0.6 * grows + 0.01 * own.normal() + 0.004 * own.normal(size=steps + 1)
                    curves = {
                        "reward/mean": reward,
                        "length/incorrect": wrong,
                        "length/correct": right,
                        "length/mean": reward * right + (1 - reward) * wrong,
                        "length/gap": wrong - right,
                        "entropy/mean": 0.9 * np.exp(-at / 20)
                        + 0.1
                        + 0.02 * own.normal()
                        + 0.01 * own.normal(size=steps + 1),
                        "groups/zero_advantage": 0.1 + 0.5 * grows + 0.03 * own.normal(size=steps + 1),
                        "accuracy/heldout": accuracy,
                    }
                    points = {
                        metric: dict(zip(at.tolist(), curve.tolist(), strict=True)) for metric, curve in curves.items()
                    }
                    points["accuracy/heldout"] = {
                        step: v for step, v in points["accuracy/heldout"].items() if step % 10 == 0
                    }
                    for step in (steps - 3 - seed,):
                        points["length/incorrect"].pop(step, None)
                    cells.append(Cell({knob: arm, "scale": scale}, seed, points, base))
    return cells


def rich(cells: list[Cell]) -> list[Cell]:
    """These runs with the further metrics that a real one logs: KL, accuracy by difficulty, predicted shares, costs."""
    for number, cell in enumerate(cells):
        own = np.random.default_rng([number, 7])
        accuracy, dead = cell.points["accuracy/heldout"], cell.points["groups/zero_advantage"]
        slow = 1.0 + 0.4 * (cell.knobs.get("aggregate") == "constant")
        last = max(dead)
        cell.points["kl/k3"] = {
            step: float(0.3 * slow * (1 - np.exp(-step / 20)) * (1 + 0.1 * own.normal())) for step in range(0, last, 5)
        }
        cell.points["accuracy/train"] = {step: v - 0.02 for step, v in cell.points["reward/mean"].items()}
        for level in range(1, 4):
            cell.points[f"accuracy/heldout/level_{level}"] = {
                step: float(np.clip(v + 0.1 - 0.05 * level + 0.01 * own.normal(), 0, 1)) for step, v in accuracy.items()
            }
        cell.points["groups/zero_advantage_predicted"] = {
            step: v + 0.02 * float(own.normal()) for step, v in dead.items()
        }
        cell.points["samples/generated"] = {step: 128.0 for step in dead if step}
        cell.points["seconds/update"] = {step: 0.1 for step in dead if step}
        cell.points["learning_rate"] = {step: 5e-4 for step in dead if step}
    return cells


def write_answers(results: Path, ablation: str, cells: Iterable[Cell], text: str) -> None:
    """Sampled answers in the run folders; `text` is one of the wrong ones."""
    import pandas as pd

    for cell in cells:
        folder = results / ablation / "runs" / f"{cell.slug}-{cell.id}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [
            {"step": step, "prompt": f"{k}+1=", "gold": str(k + 1), "level": 1, "text": said, "reward": reward}
            | {"length": len(said), "truncated": False}
            for step in (1, 40)
            for k, said, reward in ((1, "2$", 1.0), (2, "3$", 1.0), (3, "4$", 1.0), (1, text, 0.0), (2, "9$", 0.0))
        ]
        pd.DataFrame(rows).to_parquet(folder / "rollouts.parquet")


def write_question(
    results: Path, ablation: str, /, claims: list[dict], cells: Iterable[Cell] | None = None, **more
) -> Path:
    """results/<ablation>/ablation.yaml, as a crossing leaves it. Returns the file."""
    folder = results / ablation
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "question": "Does dividing by the answer's own length make wrong answers longer?",
        "claims": claims,
        **more,
    }
    if cells is not None:
        content["cells"] = [{"hash": cell.id, "arm": cell.arm, "seed": cell.seed, **cell.knobs} for cell in cells]
    file = folder / "ablation.yaml"
    OmegaConf.save(OmegaConf.create(content), file)
    return file


def write_folders(results: Path, ablation: str, cells: Iterable[Cell]) -> None:
    """The run folders' config, command, environment and status."""
    for cell in cells:
        folder = results / ablation / "runs" / f"{cell.slug}-{cell.id}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}:\n  _target_: ablations.knobs.{key}.{knob}" for key, knob in cell.knobs.items()]
        folder.joinpath("config.yaml").write_text(
            "\n".join(
                [
                    *lines,
                    "beta: 0.0",
                    "learning_rate: 5e-4",
                    "rollout:\n  prompts: 16\n  group_size: 8",
                    f"seed: {cell.seed}",
                    f"base:\n  name: {cell.base}",
                    "results: /somewhere/on/this/machine",
                    "",
                ]
            )
        )
        folder.joinpath("command.txt").write_text(f"/opt/venv/bin/ablate ablation={ablation}\n")
        folder.joinpath("environment.json").write_text(
            json.dumps(
                {
                    "python": "3.11.9",
                    "commit": "c0ffee1",
                    "versions": {"torch": "2.13.0", "mlflow": "3.17.2"},
                    "cpu": "Example CPU",
                    "host": "my-desk",
                    "process": 4242,
                }
            )
        )
        folder.joinpath("status.json").write_text(json.dumps({"state": cell.state, "reason": cell.reason}))


def write_journals(results: Path, ablation: str, cells: Iterable[Cell]) -> None:
    """The run folders' journals and what they say of themselves, as a run without a store leaves them."""
    cells = list(cells)
    write_folders(results, ablation, cells)
    for cell in cells:
        folder = results / ablation / "runs" / f"{cell.slug}-{cell.id}"
        about = {"experiment": ablation, "hash": cell.id, "params": cell.params(), "tags": cell.tags(ablation)}
        folder.joinpath("mlflow.json").write_text(json.dumps(about))
        lines: dict[str, dict[int, dict]] = {"journal.jsonl": {}, "timing.jsonl": {}}
        for metric, step, value in cell.series():
            file = "timing.jsonl" if metric.startswith("seconds/") else "journal.jsonl"
            lines[file].setdefault(step, {"step": step})[metric] = value
        for file, by_step in lines.items():
            folder.joinpath(file).write_text("".join(json.dumps(by_step[step]) + "\n" for step in sorted(by_step)))


LENGTH_CLAIM = {
    "says": "sequence_mean leaves incorrect answers longer than a constant normaliser (arXiv:2503.20783, fig. 5)",
    "metric": "length/incorrect",
    "window": [20, 40],
    "compare": {"aggregate": ["sequence_mean", "constant"]},
    "expect": "greater",
    "margin": 0.5,
    "paper": "arXiv:2503.20783",
}
ACCURACY_CLAIM = {
    "says": "held-out accuracy does not depend on the normaliser",
    "metric": "accuracy/heldout",
    "window": [20, 40],
    "compare": {"aggregate": ["sequence_mean", "constant"]},
    "expect": "equal",
    "margin": 0.05,
    "paper": "arXiv:2503.20783",
}
