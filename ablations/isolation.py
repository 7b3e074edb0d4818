"""A run in a process of its own: one that is killed (out of memory, `kill -9`, a crash in C) is then one failed run.

The workers of joblib, Ray and Slurm live on: joblib, for one, ends a whole batch if it loses a worker. The process is
a fork, which shares what is imported already and starts in milliseconds. That is safe as long as the worker itself
never computes: it has no thread pools and no GPU that a fork would break. Where forking is not safe (macOS, Windows)
the run stays in the worker.
"""

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

POSSIBLE = sys.platform == "linux"
PR_SET_PDEATHSIG = 1  # prctl(2)


class Killed(RuntimeError):
    """The process ended without an answer; the message says by which signal or code."""


def apart(function: Callable[[], Any]) -> Any:
    """function() in a forked process -> what it returns. Raises what it raises, or Killed."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(function, writing, parent)
    os.close(writing)
    try:
        with open(reading, "rb") as pipe:
            content = pipe.read()
    except BaseException:  # Ctrl-C while it runs: nothing goes on behind the user's back
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise Killed(f"killed by signal {-code} ({signal.Signals(-code).name})")
    if not content:
        raise Killed(f"ended with exit code {code}")
    raised, value = pickle.loads(content)
    if raised:
        raise value
    return value


def end_with(parent: int) -> None:
    """Have this process killed when `parent`, which forked it, ends, or now if it has ended. Linux only."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _answer(function: Callable[[], Any], writing: int, parent: int) -> None:
    """Compute and write to the pipe; never return. No atexit handler runs: they belong to the worker."""
    code = 1
    try:
        end_with(parent)  # a worker that is killed takes its run along
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Slurm tells the whole group of a time limit, and it is the worker that puts its job back into the queue.
        for told in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
            signal.signal(told, signal.SIG_IGN)
        try:
            content = pickle.dumps((False, function()))
        except BaseException as error:
            content = pickle.dumps((True, error))
        with open(writing, "wb") as pipe:
            pipe.write(content)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
