"""What a crossing will cost, from the step times of runs like it that are on disk."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ablations import checkpoint
from ablations.identity import canonical
from ablations.journal import TIMING, read_rows
from ablations.status import CHECKPOINTS

# What the time of a step depends on; runs that agree in these are alike, whatever their rewards and losses are.
DECIDING = ("task", "model", "rollout", "update", "evaluate")


def step_seconds(results: Path, config: Mapping[str, Any]) -> tuple[float, int] | None:
    """(median seconds per step, number of runs it is from), or None if no run like this was measured.

    A run counts with its own mean over its steps after step 0, the evaluations among them included.
    """
    wanted, means = _alike(config), []
    for timing in sorted(results.glob("*/runs/*/timing.jsonl")):
        stored = timing.with_name("config.yaml")
        if not stored.is_file() or _alike(OmegaConf.to_container(OmegaConf.load(stored))) != wanted:
            continue
        rows = [row for row in read_rows(timing) if row["step"] > 0]
        if rows:
            seconds = sum(value for row in rows for key, value in row.items() if key.startswith(TIMING))
            means.append(seconds / len(rows))
    return (statistics.median(means), len(means)) if means else None


def sentence(results: Path, runs: Sequence[tuple[Mapping[str, Any], Path]], processes: int | None) -> str:
    """The predicted cost of what is left of runs, (config, folder) each, `processes` at a time; None: nobody knows how
    many there is room for. A run goes on from its last checkpoint."""
    if not runs:
        return "Nothing is left to run."
    total, sources, saved = 0.0, 0, 0
    for key, group in _grouped(runs).items():
        measured = step_seconds(results, group[0][0])
        if measured is None:
            return (
                f"The cost of {len(runs)} runs cannot be predicted: no run like them ({', '.join(json.loads(key))}) "
                "was measured yet. Let one of them run, and ask again."
            )
        done = [checkpoint.saved_step(folder / CHECKPOINTS) for _, folder in group]
        total += measured[0] * sum(config["steps"] - step for (config, _), step in zip(group, done, strict=True))
        sources += measured[1]
        saved += sum(step > 0 for step in done)
    begun = f" ({saved} of them from a checkpoint)" if saved else ""
    at_once = f", {spoken(total / min(processes, len(runs)))} with {processes} at a time" if processes else ""
    return (
        f"Predicted: {spoken(total)} of one core for {len(runs)} runs{begun}{at_once} "
        f"(from the step times of {sources} runs like these; base policies and start-up not counted)."
    )


def processes(launcher: Mapping[str, Any]) -> int | None:
    """How many runs a launcher of `conf/hydra/launcher` starts at a time, as far as its settings say: Slurm its
    array_parallelism, a local Ray as many as have cores, joblib its n_jobs or one for every core. None: it asks a
    cluster, which alone knows."""
    cores = os.cpu_count() or 1
    if "array_parallelism" in launcher:
        return launcher["array_parallelism"]
    if ray := launcher.get("ray"):
        if ray["init"].get("address"):
            return None
        return max(1, int((ray["init"].get("num_cpus") or cores) / (ray["remote"].get("num_cpus") or 1)))
    given = launcher.get("n_jobs") or -1
    return given if given > 0 else cores


def _grouped(runs: Sequence[tuple[Mapping[str, Any], Path]]) -> dict[str, list[tuple[Mapping[str, Any], Path]]]:
    groups: dict[str, list[tuple[Mapping[str, Any], Path]]] = {}
    for config, folder in runs:
        groups.setdefault(json.dumps(_alike(config), sort_keys=True), []).append((config, folder))
    return groups


def _alike(config: Mapping[str, Any]) -> Any:
    return canonical({key: config.get(key) for key in DECIDING})


def spoken(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
