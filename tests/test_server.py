"""A real MLflow server on loopback: what it gets while it is there, and what it gets later of what it missed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from crossings import SMALL, ablate, finished, start, states, untrained

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(folder, port: int):
    """The server, with its whole family ended on the way out, -> its URI."""
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts")),
    ]
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=folder)
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read() == b"OK"
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                log = (folder / "server.log").read_text()
                assert process.poll() is None and time.monotonic() < deadline, log
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def stored(uri: str) -> dict[str, tuple[str, int, str]]:
    """run -> (status, steps, state) of the experiment `single`."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    (experiment,) = client.search_experiments(filter_string="name = 'single'")
    runs = client.search_runs([experiment.experiment_id])
    steps = {r.info.run_name: len(client.get_metric_history(r.info.run_id, "groups/zero_advantage")) for r in runs}
    return {r.info.run_name: (r.info.status, steps[r.info.run_name], r.data.tags.get("state")) for r in runs}


def test_a_server_gets_every_run_and_after_it_was_away_sync_brings_what_it_missed(tmp_path, results):
    folder, port = tmp_path / "server", free_port()
    folder.mkdir()
    command = ["-m", *SMALL, f"base.folder={untrained(tmp_path / 'seedling')}", f"machine.tracking=http://127.0.0.1:{port}"]
    with serving(folder, port) as uri:
        code, out, err = ablate(results, *command, "seed=0,1")
        assert code == 0 and "cannot be used" not in err, out + err
        first = stored(uri)
        assert sorted(state for _, _, state in first.values() if state) == ["complete", "complete"]
        assert [status for status, *_ in first.values()] == ["FINISHED"] * 3
    code, out, err = ablate(results, *command, "seed=2", "+unused=1")      # the server is away
    assert code == 1 and "unused" in out + err                             # a wrong key is told, server or not
    code, out, err = ablate(results, *command, "seed=2")
    assert code == 0 and "cannot be used" in err and set(states(results).values()) == {"complete"}, out + err
    with serving(folder, port) as uri:
        assert len(stored(uri)) == 3
        code, out, err = finished(start(results, "sync", f"uri={uri}", command="ablations.track:cli"))
        assert code == 0 and f"3 of 3 runs are whole in {uri}." in out, out + err
        third = stored(uri)
    assert len(third) == 4 and first.items() <= third.items()
    assert {steps for _, steps, state in third.values() if state} == {2}
