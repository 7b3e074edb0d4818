"""The MLflow store -> one tidy frame of metric points and one table of runs.

Read with read-only SQL: the client needs one request per run and metric (about 12 times slower on 50 runs), stops at
1,000 runs unless it is paged, and its search returns last values only. Nothing is cut here, and no run is left out
because of how it ended.
"""

import re
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

POINT = ["step", "metric", "value"]
RUN = ["run", "ablation", "arm"]
ABOUT = ["hash", "state", "reason", "folder", "commit", "commit_date", "infinite"]
STATES = ("complete", "running", "failed", "diverged")
UNSET = "unset"  # the value of a knob that this run did not set but another run did
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf")
FROM_MLFLOW = {
    "FINISHED": "complete",
    "RUNNING": "running",
    "SCHEDULED": "running",
    "FAILED": "failed",
    "KILLED": "failed",
}


class Absent(LookupError):
    """What was asked for is not in the store; the message says what is."""


class Stored(NamedTuple):
    """One ablation as it is in the store.

    rows: one row per (run, step, metric), columns run, ablation, arm, <knobs>, seed, base, step, metric, value.
    runs: one row per run, columns run, ablation, arm, <knobs>, seed, base, hash, state, reason, folder, commit,
    commit_date, infinite (which metrics were infinite, as the store cannot hold that).
    knobs: the swept keys besides seed and base, which are columns of both.
    superseded: earlier attempts at a run that the store also holds (the same hash); their points are not in rows.
    """

    rows: pd.DataFrame
    runs: pd.DataFrame
    knobs: list[str]
    superseded: pd.DataFrame


def load(results: Path | str, ablation: str) -> Stored:
    """Read an ablation from results/mlflow.db.

    Every text column is an ordered category, so that arms and knob values keep their order in tables and figures ("16"
    after "2") and a None arm (stored as the word "None") does not vanish in a groupby. When a step was logged twice, as
    happens when a run is resumed, the later point wins. NaN stays NaN; MLflow's stand-in for infinity becomes infinity
    again.

    Raises FileNotFoundError without a store, Absent for an ablation that is not in it.
    """
    store = Path(results).resolve() / "mlflow.db"
    if not store.is_file():
        raise FileNotFoundError(
            f"There is no MLflow store at {store}. Make one with `ablate ablation={ablation}`, or set "
            "ABLATIONS_RESULTS to the results folder that has it."
        )
    connection = sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, timeout=60)
    try:
        found, knobs = _runs(connection, ablation)
        runs = _settled(found)
        superseded = found.drop(runs.index).drop(columns="start")
        columns = [*RUN, *knobs, "seed", "base"]
        runs = _ordered(runs, knobs)
        rows = _rows(connection, runs, columns)
    finally:
        connection.close()
    return Stored(rows, runs[[*columns, *ABOUT]], knobs, superseded.reset_index(drop=True))


def within(stored: Stored, hashes: Iterable[str]) -> tuple[Stored, int]:
    """The runs with these hashes, and the number of runs left out: the store also holds what else was run under this
    name, for example trials at a smaller budget. A knob that none of the remaining runs set is no longer a column."""
    keep = stored.runs.hash.isin(list(hashes))
    runs = stored.runs[keep]
    idle = [knob for knob in stored.knobs if runs[knob].astype(object).eq(UNSET).all()]
    runs, rows = (
        frame.drop(columns=idle).reset_index(drop=True)
        for frame in (runs, stored.rows[stored.rows.run.isin(runs.run.astype(object))])
    )
    for frame in (runs, rows):
        for column in frame.select_dtypes("category"):
            frame[column] = frame[column].cat.remove_unused_categories()
    superseded = stored.superseded[stored.superseded.hash.isin(list(hashes))]
    knobs = [knob for knob in stored.knobs if knob not in idle]
    return Stored(rows, runs, knobs, superseded), int((~keep).sum())


def value(text: object) -> int | float | str:
    """A knob's value as a number where it is one, else as text: "16" -> 16, "1e-6" -> 1e-06, None, null -> "None", true
    -> "True"."""
    text = str(text).strip()
    if text.lower() in ("none", "null", "true", "false"):
        # `none` in lower case is the name of an option (scale=none) and stays; Python's None is an absent number
        return {"null": "None", "true": "True", "false": "False"}.get(text, text)
    if not NUMBER.fullmatch(text):
        return text
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def in_order(values: Iterable[int | float | str]) -> list:
    """Distinct values in the order a reader expects: None, numbers by size, words by alphabet, unset last."""

    def key(v):
        return (0 if v == "None" else 1 if not isinstance(v, str) else 3 if v == UNSET else 2, v)

    return sorted(dict.fromkeys(values), key=key)


def _runs(connection: sqlite3.Connection, ablation: str) -> tuple[pd.DataFrame, list[str]]:
    """All child runs of the experiment, typed, and the swept keys besides seed and base in alphabetical order."""
    named = "SELECT DISTINCT e.name FROM experiments e JOIN runs r USING (experiment_id) ORDER BY e.name"
    names = [name for (name,) in connection.execute(named)]
    if ablation not in names:
        raise Absent(
            f"The store has no ablation {ablation!r}; it has {', '.join(names) or 'none'}. "
            f"Run it with `ablate ablation={ablation}`."
        )
    inside = (
        "FROM runs r JOIN experiments e USING (experiment_id) {} WHERE e.name = ? AND r.lifecycle_stage = 'active' "
        "AND EXISTS (SELECT 1 FROM tags k WHERE k.run_uuid = r.run_uuid AND k.key = 'kind' AND k.value = 'run')"
    )
    runs = {
        uuid: {"uuid": uuid, "run": name, "start": start, "state": FROM_MLFLOW.get(status, status)}
        for uuid, name, start, status in connection.execute(
            "SELECT r.run_uuid, r.name, r.start_time, r.status " + inside.format(""), (ablation,)
        )
    }
    params: dict[str, dict[str, str]] = {uuid: {} for uuid in runs}
    for uuid, key, text in connection.execute(
        "SELECT r.run_uuid, p.key, p.value " + inside.format("JOIN params p USING (run_uuid)"), (ablation,)
    ):
        params[uuid][key] = text
    for uuid, key, text in connection.execute(
        "SELECT r.run_uuid, t.key, t.value " + inside.format("JOIN tags t USING (run_uuid)"), (ablation,)
    ):
        if key in (*ABOUT, "ablation", "arm", "seed", "base") and text != "":
            runs[uuid][key] = text
    swept = sorted({key for given in params.values() for key in given} - {"seed", "base", "hash"})
    if clash := set(swept) & {*RUN, *ABOUT, *POINT}:
        raise ValueError(
            f"The swept keys {sorted(clash)} have the names of columns of the tidy frame; give those keys another name."
        )
    table = []
    for uuid, run in runs.items():
        given = params[uuid]
        table.append(
            {
                **dict.fromkeys(ABOUT, ""),
                "ablation": ablation,
                "hash": given.get("hash", uuid),
                **run,
                "seed": value(run.get("seed", given.get("seed", UNSET))),
                "base": value(run.get("base", given.get("base", UNSET))),
                **{key: value(given.get(key, UNSET)) for key in swept},
                "arm": run.get("arm") or " ".join(f"{key}={given.get(key, UNSET)}" for key in swept) or "default",
            }
        )
    columns = ["uuid", "start", *RUN, *swept, "seed", "base", *ABOUT]
    return pd.DataFrame(table, columns=columns), swept


def _settled(runs: pd.DataFrame) -> pd.DataFrame:
    """One run per hash: a complete one if there is one, else the one that started last."""
    ranked = runs.assign(rank=runs.state.eq("complete")).sort_values(["rank", "start"], kind="stable")
    return ranked.drop_duplicates("hash", keep="last").drop(columns="rank").sort_index()


def _ordered(runs: pd.DataFrame, knobs: list[str]) -> pd.DataFrame:
    """Sorted by knobs, base and seed, each an ordered category; arms in the order of their knobs."""
    runs = runs.copy()
    for column in (*knobs, "base", "seed"):
        runs[column] = pd.Categorical(runs[column], categories=in_order(runs[column]), ordered=True)
    runs = runs.sort_values([*knobs, "arm", "base", "seed"], kind="stable").reset_index(drop=True)
    for column in RUN:
        runs[column] = pd.Categorical(runs[column], categories=list(dict.fromkeys(runs[column])), ordered=True)
    return runs


def _rows(connection: sqlite3.Connection, runs: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The points of these runs, sorted by run, metric and step."""
    names: dict[str, int] = {}
    pieces = []
    for place, uuid in enumerate(runs.uuid):
        points = connection.execute(
            "SELECT key, step, CASE WHEN is_nan THEN NULL ELSE value END FROM metrics WHERE run_uuid = ? "
            "ORDER BY timestamp, rowid",
            (uuid,),
        ).fetchall()
        if not points:
            continue
        keys, steps, values = zip(*points, strict=True)
        codes = np.array([names.setdefault(key, len(names)) for key in keys])
        steps, values = np.array(steps, dtype=np.int64), np.array(values, dtype=float)
        order = np.lexsort((np.arange(len(codes)), steps, codes))  # the time of logging decides between equal steps
        last = np.append((np.diff(codes[order]) != 0) | (np.diff(steps[order]) != 0), True)
        keep = order[last]
        pieces.append((np.full(len(keep), place), steps[keep], codes[keep], values[keep]))
    place, step, metric, number = (
        (np.concatenate(part) for part in zip(*pieces, strict=True))
        if pieces
        else (np.empty(0, int), np.empty(0, np.int64), np.empty(0, int), np.empty(0))
    )
    number[number >= sys.float_info.max], number[number <= -sys.float_info.max] = np.inf, -np.inf
    alphabet = sorted(names)
    renamed = np.array([alphabet.index(name) for name in names], dtype=int)  # first-seen code -> alphabetical code
    rows = runs.loc[place, columns].reset_index(drop=True)
    rows["step"] = step
    rows["metric"] = pd.Categorical.from_codes(renamed[metric], categories=alphabet)
    rows["value"] = number
    return rows.iloc[np.lexsort((step, renamed[metric], place))].reset_index(drop=True)
