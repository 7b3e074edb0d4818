"""What a search will cost, before it starts."""

import statistics
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from ablations import identity
from ablations.journal import TIMING, read_rows
from ablations.search.plan import Plan

DECIDING = ("task", "model", "rollout", "update")  # what the time of a step depends on


def sentence(plan: Plan, done: int) -> str:
    """Trials x seeds x predicted seconds, and the runs on fresh seeds; or why that cannot be said."""
    left, per = plan.budget - done, len(plan.seeds)
    extra = len(plan.fresh) * (1 + plan.compare_default)
    what = f"{left} trials x {per} seeds"
    steps = plan.example["steps"]
    measured = step_seconds(plan, plan.example)
    if measured is None:
        return f"Budget: {what}, and {extra} runs on fresh seeds, of {steps} steps; no run like them was measured yet."
    one = measured[0] * steps
    total = one * (left * per + extra)
    return (
        f"Budget: {what} x {one:.3g} s, and {extra} runs on fresh seeds: {_spoken(total)} of one core, about "
        f"{_spoken(total / plan.workers)} with {plan.workers} workers (from {measured[1]} runs like these)."
    )


def step_seconds(plan: Plan, config: Mapping[str, Any]) -> tuple[float, int] | None:
    """(median seconds per step, number of runs it is from), or None if no run like this was measured."""
    wanted, means = _alike(config), []
    for timing in sorted(plan.results.rglob("runs/*/timing.jsonl")):
        stored = timing.with_name("config.yaml")
        rows = [row for row in read_rows(timing) if row["step"] > 0] if stored.is_file() else []
        if rows and _alike(OmegaConf.to_container(OmegaConf.load(stored))) == wanted:
            means.append(sum(v for row in rows for k, v in row.items() if k.startswith(TIMING)) / len(rows))
    return (statistics.median(means), len(means)) if means else None


def _alike(config: Mapping[str, Any]) -> Any:
    return identity.canonical({key: config.get(key) for key in DECIDING})


def _spoken(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
