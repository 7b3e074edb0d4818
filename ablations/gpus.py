"""Which GPU a run gets when several runs share a machine: the one with the fewest runs on it.

Ray and Slurm hand out GPUs themselves and show a job no other; joblib does not, and then this does.
"""

import contextlib
import getpass
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

DEVICES = Path("/dev")


def visible() -> list[str]:
    """The names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES gives them, else 0, 1, ... for all.

    Counted by their device files, whose own numbers are not CUDA's: asking CUDA would start it, and a process that has
    done so cannot be forked.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(DEVICES.glob("nvidia[0-9]*"))]


@contextlib.contextmanager
def one(places: Path | None = None) -> Iterator[str | None]:
    """Leave one GPU visible to this process while inside -> its name; None, and nothing done, if there is no choice.

    Runs of one user on one machine find each other by locks in `places` (default: a folder for temporary files); a
    lock goes with its process, so a run that is killed keeps no GPU.
    """
    names = visible()
    if len(names) < 2:
        yield None
        return
    folder = places or Path(tempfile.gettempdir()) / f"ablations-gpus-{getpass.getuser()}"
    folder.mkdir(parents=True, exist_ok=True)
    for turn in itertools.count():  # the first run on each, then the second on each
        name = names[turn % len(names)]
        lock = FileLock(folder / f"{name.replace('/', '-')}-{turn // len(names)}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        break
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = name
    try:
        yield name
    finally:
        lock.release()
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
