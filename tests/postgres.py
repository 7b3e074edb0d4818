"""A PostgreSQL server of a test's own: in a temporary folder, on loopback, with a password, gone at the end."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER, PASSWORD = "search", "only for this test"


def programs() -> Path | None:
    """The folder of initdb and postgres: on PATH, or where Debian puts them; None if there is no server."""
    found = [Path(there).resolve().parent for there in [shutil.which("initdb")] if there]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "initdb").is_file() and (folder / "postgres").is_file()), None)


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """The URL of an empty database. The server refuses to run as root, so root starts it as nobody."""
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if user:
        shutil.chown(folder, "nobody", "nogroup")
        shutil.chown(secret, "nobody", "nogroup")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": folder, **user}
    data = folder / "data"
    initialise = [programs / "initdb", "-D", data, "-U", USER, f"--pwfile={secret}", "-A", "scram-sha-256", "-N"]
    subprocess.run(initialise, check=True, timeout=120, **quiet)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "log"
    with open(log, "wb") as output:
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", folder, "-F"]
        process = subprocess.Popen(
            [programs / "postgres", "-D", data, *options], stdout=output, stderr=output, cwd=folder, **user
        )
        try:
            _wait(process, port, log)
            yield f"postgresql://{USER}:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # at once: SIGTERM waits for clients to leave
            process.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen, port: int, log: Path) -> None:
    for _ in range(300):
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
    raise TimeoutError(log.read_text())
