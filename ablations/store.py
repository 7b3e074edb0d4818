"""Where the MLflow store of a results folder is, and points for the default one, without importing mlflow."""

import contextlib
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

# MLflow's tables of numbers, as its versions since 1.0 have laid them out.
METRICS = ("key", "value", "timestamp", "run_uuid", "step", "is_nan")
LATEST = ("key", "value", "timestamp", "step", "is_nan", "run_uuid")
BUSY = 60.0  # seconds that a writer waits for the others


class Point(NamedTuple):
    """One number on its way to the store."""

    name: str
    step: int
    value: float
    time: int  # ms since 1970


def store_uri(results: Path | str, tracking: str = "sqlite") -> str | None:
    """Where MLflow writes: `sqlite` is results/mlflow.db at its absolute path, `none` is nowhere, a URI is itself.

    Raises ValueError for a URI that MLflow refuses (a folder), or whose place depends on where a run is started.
    """
    if tracking == "none":
        return None
    if tracking == "sqlite":
        return f"sqlite:///{Path(results).absolute() / 'mlflow.db'}"
    scheme, found, rest = tracking.partition("://")
    if not found or scheme == "file":
        raise ValueError(
            f"machine.tracking is {tracking}; it can be sqlite (one store under results/), none, or the URI of a "
            "tracking server or a database, such as http://host:5000. MLflow writes to plain folders no more."
        )
    if scheme.startswith("sqlite") and not rest.startswith("//"):
        raise ValueError(
            f"machine.tracking is {tracking}, a file relative to wherever each run is started. Give its path from the "
            "root, sqlite:////folder/mlflow.db, or say sqlite for one store under results/."
        )
    return tracking


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store, or None for any other."""
    return Path(uri.partition("://")[2][1:]) if uri.startswith("sqlite") else None


def append(file: Path, run: str, points: Sequence[Point]) -> bool:
    """Add points to a run of a SQLite store, in one transaction, and note the latest of each name -> whether that was
    possible; if the file's tables are others than this knows, nothing is done.

    What MLflow's own log_batch leaves, but that takes .15 ms of CPU for a point, which was 7 % of a short run. A point
    that is there already stays as it is. Raises sqlite3.Error, and then nothing was added.
    """
    with contextlib.closing(sqlite3.connect(file, timeout=BUSY)) as database, database:
        for table, known in (("metrics", METRICS), ("latest_metrics", LATEST)):
            if tuple(name for (name,) in database.execute("SELECT name FROM pragma_table_info(?)", (table,))) != known:
                return False
        rows = [
            (p.name, 0.0 if math.isnan(p.value) else p.value, p.time, run, p.step, math.isnan(p.value)) for p in points
        ]
        database.executemany("INSERT OR IGNORE INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
        latest = {row[0]: row for row in sorted(rows, key=lambda row: (row[4], row[2], row[1]))}
        database.executemany(
            "INSERT INTO latest_metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value, timestamp = excluded.timestamp, "
            "step = excluded.step, is_nan = excluded.is_nan "
            "WHERE (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)",
            list(latest.values()),
        )
    return True
