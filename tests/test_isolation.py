"""A run in a process of its own: what it hands back, and whose end is whose."""

import os
import signal
import time

import pytest

from ablations import isolation

pytestmark = pytest.mark.skipif(not isolation.POSSIBLE, reason="runs are forked on Linux only")


def test_the_answer_and_the_error_come_back():
    assert isolation.apart(lambda: {"a": [1, 2.5]}) == {"a": [1, 2.5]}
    with pytest.raises(KeyError, match="missing"):
        isolation.apart(lambda: {}["missing"])


@pytest.mark.parametrize(("end", "told"), [
    (lambda: os.kill(os.getpid(), signal.SIGKILL), r"killed by signal 9 \(SIGKILL\)"),
    (lambda: os._exit(7), "exit code 7"),
])
def test_a_process_that_ends_without_an_answer_is_told_by_its_signal_or_code(end, told):
    with pytest.raises(isolation.Killed, match=told):
        isolation.apart(end)


def test_a_signal_to_the_whole_group_is_the_workers_to_answer_and_the_run_goes_on(monkeypatch):
    """Slurm announces a time limit to every process of a job; only one of them may put the job back into the queue."""
    answered = []
    before = signal.signal(signal.SIGUSR2, lambda *_: answered.append(os.getpid()))

    def run() -> list[int]:
        for told in (signal.SIGUSR2, signal.SIGCONT):
            os.kill(os.getpid(), told)
            os.kill(os.getppid(), told)
        time.sleep(0.1)
        return list(answered)

    try:
        assert isolation.apart(run) == []
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert answered == [os.getpid()]
