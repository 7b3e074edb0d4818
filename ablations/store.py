"""Where the MLflow store of a results folder is, asked without importing mlflow, which would cost 1.5 s."""

from pathlib import Path


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
