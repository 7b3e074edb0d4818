"""Runs on a tracking server, read through MLflow's client: one request per run and metric, several at a time.

The only file of the analysis that imports mlflow, and only when a server is read: an import costs 1.5 s and 165 MB.
"""

import itertools
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from analysis.raw import Absent, Points, Raw, settled
from analysis.store import FROM_MLFLOW

AT_A_TIME = 8
PAGE = 1000  # runs or experiments per answer, the server's limit at most


def client(uri: str):
    """MLflow's client for a server or a database that is not SQLite. Nothing is sent to anyone else."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def read(uri: str, ablation: str) -> Raw:
    """All child runs of an experiment. Raises Absent for one that is not there, ConnectionError with the URI."""
    from mlflow.exceptions import MlflowException

    asked = client(uri)
    try:
        experiment = asked.get_experiment_by_name(ablation)
        if experiment is None:
            names = sorted(each.name for each in _pages(asked.search_experiments, max_results=PAGE))
            raise Absent(f"{uri} has no ablation {ablation!r}; it has {', '.join(names) or 'none'}.")
        found = _pages(
            asked.search_runs, experiment_ids=[experiment.experiment_id], filter_string="tags.kind = 'run'",
            max_results=PAGE,
        )
    except MlflowException as error:
        raise ConnectionError(f"{uri} cannot be read: {str(error).splitlines()[0]}") from error
    runs = [
        {
            "id": run.info.run_id,
            "run": run.info.run_name,
            "start": run.info.start_time or 0,
            "state": FROM_MLFLOW.get(run.info.status, run.info.status),
            "params": dict(run.data.params),
            "tags": dict(run.data.tags),
        }
        for run in found
    ]
    metrics = {run.info.run_id: sorted(run.data.metrics) for run in found}
    return Raw(runs, lambda run: _points(asked, run, metrics[run]))


def _pages(search, **arguments) -> list:
    """Every page of a search: without this it stops at 1,000."""
    found, token = [], None
    while token != "":
        page = search(**arguments, page_token=token)
        found += page
        token = page.token or ""
    return found


def _points(asked, run: str, names: list[str]) -> Points:
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        histories = list(pool.map(lambda name: asked.get_metric_history(run, name), names))
    for history in histories:
        history.sort(key=lambda point: point.timestamp)
    every = list(itertools.chain.from_iterable(histories))
    values = np.array([point.value for point in every], dtype=float)
    values[values >= sys.float_info.max], values[values <= -sys.float_info.max] = np.inf, -np.inf
    return settled(
        np.repeat(np.arange(len(names)), [len(history) for history in histories]),
        np.array([point.step for point in every], dtype=np.int64),
        values,
        names,
    )
