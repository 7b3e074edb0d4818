"""A search that is killed goes on: the same trials, the same points, the same total."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import postgres
import pytest
from optuna.trial import TrialState
from searching import command, opened

from ablations import build

TRIALS, SEEDS = 40, 2


@pytest.fixture(scope="module")
def database():
    """A real server. In CI its absence is a failure."""
    if (programs := postgres.programs()) is None:
        assert not os.environ.get("CI"), "PostgreSQL's server is not installed (Debian: apt-get install postgresql)"
        pytest.skip("needs PostgreSQL's server: initdb and postgres are neither on PATH nor in /usr/lib/postgresql")
    with postgres.server(programs) as url:
        yield url


def interruptible() -> None:
    """Ctrl-C is ignored by what a shell has put into the background, and by its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(*arguments: str) -> subprocess.Popen:
    here = Path(build.PACKAGE).parent
    path = os.pathsep.join([str(here), str(here / "tests")])
    return subprocess.Popen(
        [sys.executable, "-m", "ablations.search.command", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=interruptible,
    )


def study_of(storage, name: str) -> optuna.Study | None:
    """Opened once and asked often: to connect to a database takes as long as several trials."""
    try:
        return optuna.load_study(study_name=name, storage=storage())
    except (KeyError, optuna.exceptions.StorageInternalError):  # not begun yet, or no tables yet
        return None


def settled(study: optuna.Study | None) -> int:
    return 0 if study is None else sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def wait_for(count: int, storage, name: str, process: subprocess.Popen) -> None:
    """Until the search of `process` has this many settled trials."""
    study = None
    while settled(study := study or study_of(storage, name)) < count:
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)


def killed_at(count: int, storage, name: str, arguments: list[str]) -> None:
    process = started(*arguments)
    try:
        wait_for(count, storage, name, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["journal", "postgresql"])
def test_forty_trials_killed_twice_end_at_forty_settled_trials_without_a_duplicate(where, results, request):
    url = "journal" if where == "journal" else request.getfixturevalue("database")
    name = f"killed_{where}"
    arguments = command(
        "slow", f"trials={TRIALS}", f"seeds={SEEDS}", "workers=2", f"storage={url}", f"name={name}", "search.grace=8"
    )

    def storage():
        return opened(url, results / name)

    for count in (10, 25):
        killed_at(count, storage, name, arguments)
    interrupted = settled(study_of(storage, name))
    assert 25 <= interrupted < TRIALS
    trials = optuna.load_study(study_name=name, storage=storage()).get_trials(deepcopy=False)
    open_ = [trial.number for trial in trials if not trial.state.is_finished()]

    process = started(*arguments)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert f"{interrupted} settled already" in said and "held-out accuracy" in said
    # A kill may also come when both workers are between two trials, and then there is none to go on with.
    assert f"goes on with {len(open_)} interrupted" in said if open_ else "goes on with" not in said
    assert "only" not in said.partition("postgresql://")[2][:60]  # the password

    trials = optuna.load_study(study_name=name, storage=storage()).get_trials()
    assert [trial.number for trial in trials] == list(range(TRIALS))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert len({trial.params["optimizer.lr"] for trial in trials}) == TRIALS
    assert all(len(trial.user_attrs["scores"]) == SEEDS for trial in trials)
    # Two workers, killed twice: at most four runs were in the middle, and no other was trained again.
    tries = Counter(len(path.read_text().splitlines()) for path in results.glob(f"{name}/runs/*/tries.txt"))
    assert sum(tries.values()) == TRIALS * SEEDS + 2 and sum(tries.values()) + 4 >= sum(k * v for k, v in tries.items())

    process = started(*arguments)  # and once more: nothing is left to do
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and f"{TRIALS} settled already" in said
    assert Counter(len(p.read_text().splitlines()) for p in results.glob(f"{name}/runs/*/tries.txt")) == tries


@pytest.mark.slow
def test_two_starts_at_once_are_one_search_and_both_come_to_its_end(results):
    """The third trial has one worker: the start that has nothing left to do waits for it, and is no failure."""
    both = [started(*command("slower", "trials=3", "seeds=1", "workers=1")) for _ in range(2)]
    told = [process.communicate(timeout=100)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert any("waiting for trial" in said for said in told)
    trials = opened("journal", results / "search_lr").get_all_trials(0)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3


@pytest.mark.slow
def test_ctrl_c_ends_every_worker_says_how_to_go_on_and_leaves_nothing_running(results):
    arguments = command("slow", "trials=40", "seeds=1", "workers=2")
    process = started(*arguments)
    wait_for(2, lambda: opened("journal", results / "search_lr"), "search_lr", process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 130 and "Traceback" not in said
    end = said.partition("Interrupted after")[2]
    assert "of 40 trials; the best so far is trial" in end and "ablate-search search=lr" in end and "trials=40" in end
    trials = optuna.load_study(study_name="search_lr", storage=opened("journal", results / "search_lr")).get_trials()
    assert not any(trial.state == TrialState.RUNNING for trial in trials)
    workers = {int(line) for path in results.glob("search_lr/runs/*/tries.txt") for line in path.read_text().split()}
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.slow
def test_the_jobs_of_a_launcher_are_workers_as_well(results):
    """Here joblib's, through the same door as Ray's and Slurm's: each job reads the search from its overrides."""
    arguments = command("synthetic", "trials=4", "seeds=1", "workers=2", "hydra/launcher=joblib")
    process = started(*arguments, "hydra.launcher.n_jobs=2")
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    trials = optuna.load_study(study_name="search_lr", storage=opened("journal", results / "search_lr")).get_trials()
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 4
    assert len({trial.params["optimizer.lr"] for trial in trials}) == 4 and "on 2 fresh seeds" in said
