"""Runs as they lie in their folders, results/<ablation>/runs/*: the truth of which every store is a copy."""

import json
import math
from contextlib import suppress
from pathlib import Path

import numpy as np

from analysis.files import Unreadable, json_of, yaml_of
from analysis.raw import Points, Raw, settled

FILES = ("journal.jsonl", "timing.jsonl")


def there(results: Path, ablation: str) -> bool:
    return next((results / ablation / "runs").glob("*/journal.jsonl"), None) is not None


def read(results: Path, ablation: str) -> Raw:
    """All runs that have a journal. A last line that a kill left half-written is no row.

    A run with a file that cannot be read has failed, with that as its reason, and has no points: a part of a journal
    would look like a whole one.
    """
    folders = sorted(path.parent for path in (results / ablation / "runs").glob("*/journal.jsonl"))
    found = {str(folder): _run(folder) for folder in folders}
    return Raw([run for run, _ in found.values()], lambda folder: found[folder][1])


def _run(folder: Path) -> tuple[dict, Points]:
    parts, damage = {}, []
    for part in (_about, _status, _points):
        try:
            parts[part] = part(folder)
        except Unreadable as error:
            damage.append(str(error))
    about = parts.get(_about) or _as_planned(folder)
    status = {"state": "failed", "reason": "; ".join(damage)} if damage else parts[_status]
    config = folder / "config.yaml"
    run = {
        "id": str(folder),
        "run": folder.name,
        "start": int(config.stat().st_mtime * 1000) if config.is_file() else 0,
        "state": status["state"],
        "params": {**about.get("params", {}), "hash": about.get("hash", folder.name)},
        "tags": {**about.get("tags", {}), **status, "folder": "/".join(folder.parts[-3:])},
    }
    return run, _points_of([]) if damage else parts[_points]


def _about(folder: Path) -> dict:
    """What a run says of itself."""
    about = _json(folder / "mlflow.json") or {}
    for part in ("params", "tags"):
        if not isinstance(about.get(part, {}), dict):
            raise Unreadable("mlflow.json", f"its {part} are {about[part]!r}, not names with values")
    return about


def _status(folder: Path) -> dict:
    """What became of a run; one that has not said how it ended is running."""
    status = _json(folder / "status.json")
    if status is None:
        return {"state": "running", "reason": ""}
    if not isinstance(status.get("state"), str):
        raise Unreadable("status.json", f"its state is {status.get('state')!r}")
    return status


def _json(file: Path) -> dict | None:
    return json_of(file, file.name) if file.is_file() else None


def _as_planned(folder: Path) -> dict:
    """What ablation.yaml and config.yaml say of a run that does not tell itself; its folder's name ends with the first
    digits of its hash."""
    try:
        cells = yaml_of(folder.parent.parent / "ablation.yaml").get("cells") or []
        cell = next(cell for cell in cells if folder.name.endswith(f"-{str(cell['hash'])[:8]}"))
    except (Unreadable, StopIteration, KeyError, TypeError):
        return {}
    params = {key: str(text) for key, text in cell.items() if key not in ("hash", "arm")}
    tags = {key: str(cell[key]) for key in ("arm", "seed") if key in cell}
    with suppress(Unreadable, KeyError, TypeError):
        tags["base"] = str(params.get("base") or yaml_of(folder / "config.yaml")["base"]["name"])
    return {"hash": str(cell["hash"]), "params": params, "tags": tags}


def _points(folder: Path) -> Points:
    try:
        return _points_of([(name, *row) for name in FILES for row in enumerate(_lines(folder / name), start=1)])
    except OSError as error:
        raise Unreadable("journal.jsonl or timing.jsonl", error.strerror) from None


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().split(b"\n")[:-1] if file.is_file() else []


def _points_of(lines: list[tuple[str, int, bytes]]) -> Points:
    """lines: (file, number of the line, its text)."""
    names: dict[str, int] = {}
    metric, steps, values = [], [], []
    for file, number, line in lines:
        row = _row(line, file, number)
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


def _row(line: bytes, file: str, number: int) -> dict:
    """A line of a journal: `step`, a whole number, and metrics, numbers or null."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unreadable(file, f"line {number} is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise Unreadable(file, f"line {number} is a {type(row).__name__}, not a step with its metrics")
    step = row.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < 2**63:
        raise Unreadable(file, f"line {number} has the step {step!r}, not a whole number")
    for key, value in row.items():
        if not isinstance(value, int | float | None) or (isinstance(value, int) and abs(value) > 2**1000):
            raise Unreadable(file, f"line {number} has {value!r:.40} as {key}, not a number")
    return row
