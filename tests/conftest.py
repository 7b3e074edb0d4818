"""What every test shares: one thread, no GPU, no network, and a results folder of its own."""

import os
import shutil

# Set before torch or transformers is imported, so that plain `pytest` measures the same numbers as `make test`.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
}.items():
    os.environ.setdefault(_name, _value)

import pytest  # noqa: E402
from filelock import FileLock  # noqa: E402

from ablations import client, tracking  # noqa: E402


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch):
    """Everything a command writes under results/ goes to a folder of this test; the checkout's own stays untouched."""
    folder = tmp_path / "results"
    monkeypatch.setenv("ABLATIONS_RESULTS", str(folder))
    # A store or run named in the developer's shell must not decide what a test sees.
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """An MLflow store without experiments. Laying out its tables takes seconds, so all workers copy one."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = shared / "empty-store" / "mlflow.db"
    with FileLock(shared / "empty-store.lock"):
        if not path.exists():
            client.ensure_store(tracking.store_uri(path.parent), "Default", path.parent)
    return path


@pytest.fixture
def store(results, empty_store):
    """The URI of a store in this test's results folder, ready to be written to."""
    results.mkdir(exist_ok=True)
    shutil.copy(empty_store, results / "mlflow.db")
    return tracking.store_uri(results)
