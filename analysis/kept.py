"""The tables of runs that a report keeps beside it, in results/<ablation>/data, so that a clone without the run folders
and without a store can make every number again.

runs.csv has one row per run. curves.parquet has one row per run and step and one column per metric, in full precision;
a metric that was not logged at a step is null there, one that was logged as NaN is NaN. Timings are rounded to
milliseconds.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.files import Unreadable, json_of
from analysis.raw import Points, Raw

FOLDER, RUNS, CURVES, FACTS, ANSWERS = "data", "runs.csv", "curves.parquet", "facts.json", "answers.csv"
EVALUATION = "evaluation.parquet"  # counted answers by problem, in a run's folder under the same name
OF_A_RUN = ("hash", "state", "reason", "folder", "commit", "commit_date", "infinite", "started", "arm", "seed", "base")


def there(ablation: Path) -> bool:
    return (ablation / FOLDER / RUNS).is_file() and (ablation / FOLDER / CURVES).is_file()


def write(ablation: Path, rows: pd.DataFrame, runs: pd.DataFrame, knobs: list[str]) -> list[Path]:
    """Write both tables of results/<ablation> -> their paths. The same frames give the same bytes."""
    import pyarrow
    from pyarrow import parquet

    folder = ablation / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    table = runs.astype(object).drop(columns="ablation")
    table.insert(0, "number", range(len(table)))
    table.to_csv(folder / RUNS, index=False, lineterminator="\n")
    run = rows.run.cat.set_categories(runs.run.astype(object)).cat.codes.to_numpy()
    at, row = np.unique(np.stack([run, rows.step.to_numpy()]), axis=1, return_inverse=True)
    columns = {"run": pyarrow.array(at[0], pyarrow.int16()), "step": pyarrow.array(at[1], pyarrow.int32())}
    metric, values = rows.metric.cat.codes.to_numpy(), rows.value.to_numpy()
    for code, name in enumerate(rows.metric.cat.categories):
        own = metric == code
        course, absent = np.zeros(at.shape[1]), np.ones(at.shape[1], dtype=bool)
        course[row[own]] = values[own].round(3) if name.startswith("seconds/") else values[own]
        absent[row[own]] = False
        columns[name] = pyarrow.array(course, mask=absent)
    parquet.write_table(pyarrow.table(columns), folder / CURVES, compression="zstd", compression_level=15)
    return [folder / RUNS, folder / CURVES]


def read(ablation: Path) -> Raw:
    """What an earlier report kept. Raises Unreadable."""
    folder = ablation / FOLDER
    table, curves = (_table(folder / file) for file in (RUNS, CURVES))
    knobs = [column for column in table.columns if column not in ("number", "run", *OF_A_RUN)]
    run, steps = curves["run"].to_numpy(), curves["step"].to_numpy().astype(np.int64)
    names = sorted(set(curves.column_names) - {"run", "step"})
    courses = {name: curves[name].combine_chunks() for name in names}
    absent = {name: np.asarray(course.is_null()) for name, course in courses.items()}
    numbers = {name: course.to_numpy(zero_copy_only=False) for name, course in courses.items()}

    def points(number: str) -> Points:
        own = np.flatnonzero(run == int(number))
        there_ = {name: own[~absent[name][own]] for name in names}
        logged = [name for name in names if len(there_[name])]
        return Points(
            logged,
            np.array([len(there_[name]) for name in logged], dtype=np.int64),
            np.concatenate([np.empty(0, np.int64), *(steps[there_[name]] for name in logged)]),
            np.concatenate([np.empty(0), *(numbers[name][there_[name]] for name in logged)]),
        )

    runs = [
        {
            "id": given["number"],
            "run": given["run"],
            "start": _milliseconds(given["started"]),
            "state": given["state"],
            "params": {key: given[key] for key in (*knobs, "hash") if given[key] != "unset"},
            "tags": {key: given[key] for key in OF_A_RUN},
        }
        for given in table.to_dict("records")
    ]
    return Raw(runs, points)


def _table(file: Path):
    from pyarrow import parquet

    try:
        return parquet.read_table(file) if file.name == CURVES else pd.read_csv(file, dtype=str, keep_default_na=False)
    except (ValueError, OSError) as error:
        raise Unreadable(file, error) from None


def _milliseconds(started: str) -> int:
    return int(pd.Timestamp(started).timestamp() * 1000) if started else 0


def write_facts(ablation: Path, facts: dict) -> None:
    """What the run folders say of configs and machines (analysis.facts)."""
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (ablation / FOLDER / FACTS).write_text(text + "\n", encoding="utf-8")


def read_facts(ablation: Path) -> dict | None:
    file = ablation / FOLDER / FACTS
    return json_of(file) if file.is_file() else None
