"""What a crossing will cost, from the step times of runs like it that are on disk."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ablations.identity import canonical
from ablations.journal import TIMING, read_rows

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


def sentence(results: Path, configs: Sequence[Mapping[str, Any]], processes: int) -> str:
    """The predicted cost of runs with these configs, `processes` at a time."""
    if not configs:
        return "Nothing is left to run."
    total, sources = 0.0, 0
    for key, group in _grouped(configs).items():
        measured = step_seconds(results, group[0])
        if measured is None:
            return (
                f"The cost of {len(configs)} runs cannot be predicted: no run like them ({', '.join(json.loads(key))}) "
                "was measured yet. Let one of them run, and ask again."
            )
        total += measured[0] * sum(config["steps"] for config in group)
        sources += measured[1]
    wall = total / min(processes, len(configs))
    return (
        f"Predicted: {spoken(total)} of one core for {len(configs)} runs, {spoken(wall)} with {processes} at a time "
        f"(from the step times of {sources} runs like these; base policies and start-up not counted)."
    )


def _grouped(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for config in configs:
        groups.setdefault(json.dumps(_alike(config), sort_keys=True), []).append(config)
    return groups


def _alike(config: Mapping[str, Any]) -> Any:
    return canonical({key: config.get(key) for key in DECIDING})


def spoken(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
