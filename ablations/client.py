"""The client of an MLflow store, and the store made ready for it.

mlflow is imported here and by the mirror (ablations/tracking.py), and only when a store is used: it costs 1.5 s and
165 MB.
"""

import functools
import logging
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock

from ablations.spelling import checksum, name
from ablations.store import sqlite_file

LOCK_SECONDS = 300.0  # laying out a new SQLite store takes seconds, and processes queue for it

# Read by MLflow at its import. Its own patience with a server, 7 tries of 2 minutes, would hold up the training.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def ensure_store(uri: str, experiment: str, results: Path | str) -> str:
    """Make the store and the experiment if they are not there -> experiment id.

    An experiment that was deleted in MLflow comes back. Artifacts of a SQLite store lie in results/mlartifacts.
    """
    client = client_of(uri)
    with _lock(uri):
        found = client.get_experiment_by_name(experiment)
        if found is None:
            folder = Path(results).absolute() / "mlartifacts" / name(experiment)
            return client.create_experiment(experiment, folder.as_uri() if uri.startswith("sqlite") else None)
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return found.experiment_id


def parent_run(uri: str, experiment: str) -> str:
    """The run under which an ablation's cells hang, made once -> run id. The experiment has to be there.

    It is no process, so it is finished from the start and nothing has to end it.
    """
    client = client_of(uri)
    with _lock(uri):
        inside = client.get_experiment_by_name(experiment).experiment_id
        oldest = {"max_results": 1, "order_by": ["attributes.start_time ASC"]}
        if found := client.search_runs([inside], "tags.kind = 'ablation'", **oldest):
            return found[0].info.run_id
        made = client.create_run(inside, tags={"kind": "ablation", "ablation": experiment}, run_name=experiment)
        client.set_terminated(made.info.run_id, "FINISHED")
        return made.info.run_id


def _lock(uri: str) -> FileLock:
    path = sqlite_file(uri) or Path(tempfile.gettempdir()) / f"mlflow-{checksum(uri)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{path}.lock", timeout=LOCK_SECONDS)


@functools.cache
def client_of(uri: str) -> Any:
    """The MlflowClient of a store, one for a process; a SQLite store that is not there is made."""
    warm(uri)
    from mlflow.tracking import MlflowClient

    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    with _lock(uri):
        if (path := sqlite_file(uri)) is not None and not path.exists():
            _lay_out(path)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _lay_out(path: Path) -> None:
    """Make a SQLite store; in the caller's lock, because of processes that do it at once all but one die.

    Aside and then renamed: a kill leaves no half a store, and nothing has to wait for the disk after each of the
    hundred changes that MLflow makes to its tables (on a busy disk 4 seconds instead of 13).
    """
    from mlflow.tracking import MlflowClient
    from sqlalchemy import Engine, event

    def hasty(connection, _) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    aside = path.with_name(f"{path.name}.new")
    for left in path.parent.glob(f"{aside.name}*"):
        left.unlink()
    event.listen(Engine, "connect", hasty)
    try:
        MlflowClient(tracking_uri=f"sqlite:///{aside}")
    finally:
        event.remove(Engine, "connect", hasty)
    with open(aside, "rb") as file:
        os.fsync(file.fileno())
    aside.replace(path)


def warm(tracking: str) -> None:
    """Import MLflow now, if it is going to be used: processes that are forked later then need not."""
    if tracking != "none":
        for key, value in ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        import mlflow.tracking  # noqa: F401

        if not tracking.startswith("http"):  # a database: its tables' classes are made ready once, too
            from mlflow.store.tracking import sqlalchemy_store  # noqa: F401
            from sqlalchemy.orm import configure_mappers

            configure_mappers()


def unusable() -> tuple[type[Exception], ...]:
    """What a store raises that cannot be used. Anything else is a fault of this project and is not hidden."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    # OSError: connections, full disks, a lock not had in time
    return MlflowException, SQLAlchemyError, sqlite3.Error, OSError
