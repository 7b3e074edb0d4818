"""Stored runs -> one tidy frame of metric points and one table of runs, wherever they are stored.

No run is left out because of how it ended, no point is cut, and what was logged twice is settled by one rule.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis import journals, kept, server, store
from analysis.raw import Absent, Raw

__all__ = ["Absent", "Stored", "export", "in_order", "load", "value", "within"]

POINT = ["step", "metric", "value"]
RUN = ["run", "ablation", "arm"]
ABOUT = ["hash", "state", "reason", "folder", "commit", "commit_date", "infinite", "started"]
STATES = ("complete", "running", "failed", "diverged")
UNSET = "unset"  # the value of a knob that this run did not set but another run did
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf")


class Stored(NamedTuple):
    """One ablation as it is in the store.

    rows: one row per (run, step, metric), columns run, ablation, arm, <knobs>, seed, base, step, metric, value.
    runs: one row per run, columns run, ablation, arm, <knobs>, seed, base, hash, state, reason, folder, commit,
    commit_date, infinite (which metrics were infinite, as the store cannot hold that), started (UTC, ISO 8601).
    knobs: the swept keys besides seed and base, which are columns of both.
    superseded: earlier attempts at a run that the store also holds (the same hash); their points are not in rows.
    """

    rows: pd.DataFrame
    runs: pd.DataFrame
    knobs: list[str]
    superseded: pd.DataFrame


def load(source: Path | str, ablation: str) -> Stored:
    """Read an ablation from wherever it is.

    source: a results folder, a SQLite store of MLflow (a file, or sqlite:///PATH), or the URI of a tracking server
    (http://host:5000). In a results folder the first of these that has the ablation: mlflow.db, the journals in
    <ablation>/runs, the tables in <ablation>/data that a report keeps beside it.

    Every text column is an ordered category, so that arms and knob values keep their order in tables and figures ("16"
    after "2") and a None arm (stored as the word "None") does not vanish in a groupby. When a step was logged twice, as
    happens when a run is resumed, the later point wins; of two attempts at a run (the same hash) the complete one, else
    the later. NaN stays NaN; MLflow's stand-in for infinity becomes infinity again.

    Raises FileNotFoundError without a store, Absent for an ablation that is not in it.
    """
    text = str(source)
    if "://" in text and not text.startswith("sqlite"):
        return _tidy(server.read(text, ablation), ablation)
    path = Path(text.removeprefix("sqlite:///")).resolve()
    if path.is_file():
        return _from_store(path, ablation)
    if (path / "mlflow.db").is_file() and _has(path / "mlflow.db", ablation):
        return _from_store(path / "mlflow.db", ablation)
    if journals.there(path, ablation):
        return _tidy(journals.read(path, ablation), ablation)
    if kept.there(path / ablation):
        return _tidy(kept.read(path / ablation), ablation)
    if (path / "mlflow.db").is_file():
        return _from_store(path / "mlflow.db", ablation)  # which says what it has
    raise FileNotFoundError(
        f"There is no MLflow store, no journal and no kept table of {ablation} in {path}. Make them with "
        f"`ablate ablation={ablation}`, or set ABLATIONS_RESULTS to the results folder that has them."
    )


def _has(path: Path, ablation: str) -> bool:
    with store.opened(path) as connection:
        return ablation in store.ablations(connection)


def _from_store(path: Path, ablation: str) -> Stored:
    with store.opened(path) as connection:
        return _tidy(store.read(connection, ablation), ablation)


def _tidy(raw: Raw, ablation: str) -> Stored:
    found, knobs = _runs(raw, ablation)
    runs = _settled(found)
    superseded = found.drop(runs.index).drop(columns=["start", "id"])
    columns = [*RUN, *knobs, "seed", "base"]
    runs = _ordered(runs, knobs)
    rows = _rows(raw, runs, columns)
    return Stored(rows, runs[[*columns, *ABOUT]], knobs, superseded.reset_index(drop=True))


def export(stored: Stored, folder: Path | str, *, wide: bool = False) -> list[Path]:
    """Write the tidy frame and the run table as parquet and as CSV -> paths: points.parquet, points.csv, runs.parquet,
    runs.csv.

    wide: one column per metric instead of one row per point. Categories become texts in the CSV files, and in the
    parquet files where their values are of several kinds, in the same order; floats keep all their digits. pandas takes
    the text None for a missing value: read the CSV files with keep_default_na=False, na_values=[""].
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    points = stored.rows
    if wide:
        keys = [column for column in points.columns if column not in ("metric", "value")]
        points = points.pivot(index=keys, columns="metric", values="value").reset_index()
        points.columns = [str(column) for column in points.columns]
    paths = []
    for name, frame in (("points", points), ("runs", stored.runs)):
        plain = frame.copy()
        for column in plain.select_dtypes("category"):
            if plain[column].cat.categories.dtype == object:  # parquet has no categories of mixed types
                plain[column] = plain[column].cat.rename_categories(str)
        plain.to_parquet(folder / f"{name}.parquet", index=False)
        frame.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
        paths += [folder / f"{name}.parquet", folder / f"{name}.csv"]
    return paths


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


def _runs(raw: Raw, ablation: str) -> tuple[pd.DataFrame, list[str]]:
    """All runs, typed, and the swept keys besides seed and base in alphabetical order."""
    swept = sorted({key for run in raw.runs for key in run["params"]} - {"seed", "base", "hash"})
    if clash := set(swept) & {*RUN, *ABOUT, *POINT}:
        raise ValueError(
            f"The swept keys {sorted(clash)} have the names of columns of the tidy frame; give those keys another name."
        )
    table = []
    for run in raw.runs:
        given = run["params"]
        tags = {k: text for k, text in run["tags"].items() if k in (*ABOUT, "arm", "seed", "base") and text != ""}
        started = pd.Timestamp(run["start"], unit="ms").isoformat(timespec="seconds") if run["start"] else ""
        table.append(
            {
                **dict.fromkeys(ABOUT, ""),
                "id": run["id"],
                "run": run["run"],
                "start": run["start"],
                "state": run["state"],
                "ablation": ablation,
                "hash": given.get("hash", run["id"]),
                "started": started,
                **tags,
                "seed": value(tags.get("seed", given.get("seed", UNSET))),
                "base": value(tags.get("base", given.get("base", UNSET))),
                **{key: value(given.get(key, UNSET)) for key in swept},
                "arm": tags.get("arm") or " ".join(f"{key}={given.get(key, UNSET)}" for key in swept) or "default",
            }
        )
    columns = ["id", "start", *RUN, *swept, "seed", "base", *ABOUT]
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


def _rows(raw: Raw, runs: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The points of these runs, sorted by run, metric and step."""
    pieces = [raw.points(run) for run in runs.id]
    alphabet = sorted({name for piece in pieces for name in piece.metrics})
    place = {name: number for number, name in enumerate(alphabet)}
    number_of_points = np.array([len(piece.steps) for piece in pieces], dtype=np.int64)
    metric = [np.repeat([place[name] for name in piece.metrics], piece.counts) for piece in pieces]
    which = np.repeat(np.arange(len(pieces), dtype=np.int32), number_of_points)
    rows = runs[columns].take(which).reset_index(drop=True)
    rows["step"] = np.concatenate([np.empty(0, np.int64), *(piece.steps for piece in pieces)])
    codes = np.concatenate([np.empty(0, np.int64), *metric]).astype(np.int32)
    rows["metric"] = pd.Categorical.from_codes(codes, categories=alphabet)
    rows["value"] = np.concatenate([np.empty(0), *(piece.values for piece in pieces)])
    return rows
