"""Runs as they lie in their folders, results/<ablation>/runs/*: the truth of which every store is a copy."""

import json
import math
from pathlib import Path

import numpy as np

from analysis.raw import Points, Raw, settled

FILES = ("journal.jsonl", "timing.jsonl")


def there(results: Path, ablation: str) -> bool:
    return next((results / ablation / "runs").glob("*/journal.jsonl"), None) is not None


def read(results: Path, ablation: str) -> Raw:
    """All runs that have a journal. A last line that a kill left half-written is no row."""
    folders = sorted(path.parent for path in (results / ablation / "runs").glob("*/journal.jsonl"))
    return Raw([_run(folder) for folder in folders], lambda folder: _points(Path(folder)))


def _run(folder: Path) -> dict:
    about = _json(folder / "mlflow.json") or {}
    status = _json(folder / "status.json") or {"state": "running", "reason": ""}
    config = folder / "config.yaml"
    place = "/".join(folder.parts[-3:])
    return {
        "id": str(folder),
        "run": folder.name,
        "start": int(config.stat().st_mtime * 1000) if config.is_file() else 0,
        "state": status["state"],
        "params": {**about.get("params", {}), "hash": about.get("hash", folder.name)},
        "tags": {**about.get("tags", {}), **status, "folder": place},
    }


def _json(file: Path) -> dict | None:
    return json.loads(file.read_text()) if file.is_file() else None


def _points(folder: Path) -> Points:
    names: dict[str, int] = {}
    metric, steps, values = [], [], []
    for file in FILES:
        path = folder / file
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON ({error}).") from None
            step = row.pop("step")
            metric += [names.setdefault(key, len(names)) for key in row]
            steps += [step] * len(row)
            values += [math.nan if value is None else value for value in row.values()]
    return settled(
        np.array(metric, dtype=np.int64),
        np.array(steps, dtype=np.int64),
        np.array(values, dtype=float),
        list(names),
    )
