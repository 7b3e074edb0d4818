"""A SQLite store of MLflow, read with read-only SQL.

MLflow's client needs one request per run and metric (about 12 times slower on 50 runs), stops at 1,000 runs unless it
is paged, and its search returns last values only. Nothing is cut here.
"""

import itertools
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from analysis.files import Unreadable
from analysis.raw import Absent, Points, Raw

FROM_MLFLOW = {
    "FINISHED": "complete",
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FAILED": "failed",
    "KILLED": "failed",
}


@contextmanager
def opened(store: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can read only, and waits for writers. Raises Unreadable for what is no such store."""
    connection = sqlite3.connect(f"{store.resolve().as_uri()}?mode=ro", uri=True, timeout=60, isolation_level=None)
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        raise Unreadable(store, error) from None
    finally:
        connection.close()


def ablations(connection: sqlite3.Connection) -> list[str]:
    """The experiments that have runs."""
    named = "SELECT DISTINCT e.name FROM experiments e JOIN runs r USING (experiment_id) ORDER BY e.name"
    return [name for (name,) in connection.execute(named)]


def read(connection: sqlite3.Connection, ablation: str) -> Raw:
    """All child runs of an experiment. Raises Absent for one that is not there."""
    if ablation not in (names := ablations(connection)):
        raise Absent(
            f"The store has no ablation {ablation!r}; it has {', '.join(names) or 'none'}. "
            f"Run it with `ablate ablation={ablation}`."
        )
    inside = (
        "FROM runs r JOIN experiments e USING (experiment_id) {} WHERE e.name = ? AND r.lifecycle_stage = 'active' "
        "AND EXISTS (SELECT 1 FROM tags k WHERE k.run_uuid = r.run_uuid AND k.key = 'kind' AND k.value = 'run')"
    )
    runs = {
        uuid: {"id": uuid, "run": name, "start": start or 0, "state": FROM_MLFLOW.get(status, status)}
        | {"params": {}, "tags": {}}
        for uuid, name, start, status in connection.execute(
            "SELECT r.run_uuid, r.name, r.start_time, r.status " + inside.format(""), (ablation,)
        )
    }
    for table in ("params", "tags"):
        found = connection.execute(
            "SELECT r.run_uuid, t.key, t.value " + inside.format(f"JOIN {table} t USING (run_uuid)"), (ablation,)
        )
        for uuid, key, text in found:
            runs[uuid][table][key] = text
    return Raw(list(runs.values()), lambda uuid: _points(connection, uuid))


def _points(connection: sqlite3.Connection, uuid: str) -> Points:
    """The points of a run, in the order of MLflow's own index, so that nothing has to be sorted; names are read once
    per metric and not once per point."""
    connection.execute("BEGIN")  # a run that is being written must not grow between the two questions
    try:
        named = connection.execute(
            "SELECT key, count(*) FROM metrics WHERE run_uuid = ? GROUP BY key ORDER BY key", (uuid,)
        ).fetchall()
        total = sum(count for _, count in named)
        cursor = connection.execute(
            "SELECT step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY key, step, timestamp, rowid", (uuid,)
        )
        flat = np.fromiter(itertools.chain.from_iterable(cursor), dtype=float, count=3 * total).reshape(-1, 3)
    finally:
        connection.execute("COMMIT")
    steps, values = flat[:, 0].astype(np.int64), flat[:, 1].copy()
    values[values >= sys.float_info.max], values[values <= -sys.float_info.max] = np.inf, -np.inf
    values[flat[:, 2] != 0] = np.nan
    counts = np.array([count for _, count in named], dtype=np.int64)
    metric = np.repeat(np.arange(len(counts)), counts)
    last = np.append((np.diff(metric) != 0) | (np.diff(steps) != 0), True) if total else np.empty(0, bool)
    if not last.all():
        steps, values, counts = steps[last], values[last], np.bincount(metric[last], minlength=len(counts))
    return Points([key for key, _ in named], counts, steps, values)
