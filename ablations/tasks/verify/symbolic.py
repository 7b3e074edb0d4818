"""Mathematical equality through math-verify, in worker processes with real time limits.

The limits hold below a second, off the main thread and against code that no signal interrupts: a worker that does not
answer in time is ended and replaced, and the answer it had counts as timed out, not as wrong.
"""

import atexit
import functools
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ablations.tasks.problem import Outcome
from ablations.tasks.verify.check import UnreadableGold
from ablations.tasks.verify.number import number

START = 120.0  # seconds a worker may take to load sympy, on a busy machine
GRACE = 0.2  # seconds after the limit until a worker that its own timer could not stop is ended
LONGEST = 1000  # characters; a longer answer is not read: the parser's time grows faster than the text


@dataclass(frozen=True)
class Symbolic:
    """same(answer, gold) for task.same. limit: seconds per answer, fractions too; workers: processes, each for one
    answer at a time.

    A gold answer that is a plain number wants a plain number: `8*9` is not accepted for 72, since an expression that is
    still to be worked out is no answer. `x = 5` and `5` are the same on either side; `x = 5` and `y = 5` are not.
    """

    limit: float
    workers: int

    def __post_init__(self) -> None:
        if not self.limit > 0 or self.workers < 1:
            raise ValueError(
                f"the symbolic checker has limit {self.limit} s and {self.workers} workers; both must be above 0. Set "
                "task.same.limit=0.5 and task.same.workers=1, for example."
            )

    def __call__(self, answer: str, gold: str) -> Outcome | tuple[Outcome, str]:
        name, wanted = _named(gold)
        if wanted is not None:
            other, value = _named(answer)
            return Outcome.RIGHT if value == wanted and (name == other or not name or not other) else Outcome.WRONG
        if len(answer) > LONGEST:
            return Outcome.WRONG
        reply = self._ask(gold, answer)
        if reply.get("late"):
            return Outcome.TIMED_OUT
        if "failed" in reply:
            return Outcome.FAILED, reply["failed"]
        return Outcome.RIGHT if reply["equal"] else Outcome.WRONG

    def check_gold(self, gold: str) -> None:
        """Raises UnreadableGold for a text in which no mathematics is found."""
        if not gold.strip() or (_named(gold)[1] is None and not self._ask(gold, None, limit=10.0).get("read")):
            raise UnreadableGold(f"the gold answer {gold!r} is no mathematics that the checker can read; correct it.")

    def _ask(self, gold: str, answer: str | None, limit: float | None = None) -> dict[str, Any]:
        limit = limit or self.limit
        return pool(self.workers).ask({"gold": gold, "answer": answer, "limit": limit}, limit)


def _named(text: str) -> tuple[str, Fraction | None]:
    """`x = 5` -> ("x", 5), `5` -> ("", 5), anything else -> (..., None)."""
    before, sign, after = text.partition("=")
    name = before.strip().strip("$")
    if sign and len(name) == 1 and name.isalpha():
        return name, number(after.rstrip().rstrip("$"))
    return "", number(text)


@functools.cache
def _pool(workers: int, process: int) -> "Pool":
    return Pool(workers)


def pool(workers: int) -> "Pool":
    """The one pool of this size in this process; a forked child gets its own."""
    return _pool(workers, os.getpid())


class Pool:
    """Worker processes, started at the first question. Any thread may ask; a question waits for an idle worker."""

    def __init__(self, workers: int):
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)  # a place for a worker that is not started yet
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, question: dict[str, Any], limit: float) -> dict[str, Any]:
        """The worker's reply; {"late": true} after `limit` seconds, {"failed": reason} if the worker died."""
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker()
                with self._lock:
                    self._all.add(worker)
            reply = worker.ask(question, limit)
        except BaseException:
            self._drop(worker)
            worker = None
            raise
        else:
            if not worker.alive:
                self._drop(worker)
                worker = None
        finally:
            self._idle.put(worker)
        return reply

    def _drop(self, worker: "_Worker | None") -> None:
        if worker is not None:
            worker.close()
            with self._lock:
                self._all.discard(worker)

    def close(self) -> None:
        """End every worker; a later question starts new ones."""
        with self._lock:
            left, self._all = self._all, set()
        for worker in left:
            worker.close()


class _Worker:
    """One process; `alive` is False once it was ended or died."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ablations.tasks.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.alive, self._ready, self._buffer = True, False, b""

    def ask(self, question: dict[str, Any], limit: float) -> dict[str, Any]:
        if not self._ready:
            if self._line(START) != b"ready":
                self.alive = False
                raise RuntimeError(
                    "a worker of the symbolic checker did not start; `python -m ablations.tasks.verify.worker` says "
                    "why. It needs math-verify: pip install 'ablations[math]'."
                )
            self._ready = True
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self.alive = False
            return {"failed": f"the worker had ended with code {self.process.poll()}"}
        line = self._line(limit + GRACE)
        if line is None:
            self.alive = False
            return {"late": True}
        if not line:
            self.alive = False
            return {"failed": f"the worker ended with code {self.process.wait()}"}
        return json.loads(line)

    def _line(self, seconds: float) -> bytes | None:
        """The next line; None if none came in time, b"" if the process ended."""
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                piece = os.read(self.process.stdout.fileno(), 65536)
                if not piece:
                    return b""
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.alive = False
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
