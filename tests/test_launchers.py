"""The engines: README's commands, and a crossing with trouble in it on each of them."""

import json
import os
import re
import shlex
import signal
import time
from importlib.util import find_spec

import pytest
from crossings import ROOT, SMALL, ablate, finished, start, states, untrained
from mischief import ARGUMENTS, DIVERGES, KILLED, RAISES

from ablations.journal import read_rows

PLUGINS = {"ray": "hydra_plugins.hydra_ray_launcher", "slurm_local": "hydra_plugins.hydra_submitit_launcher"}
TWO = {"ray": ["hydra.launcher.ray.init.num_cpus=2"], "local": ["hydra.launcher.n_jobs=2"], "slurm_local": []}
pytestmark = [pytest.mark.slow, pytest.mark.extra]


def on(*engines: str):
    """For each of these engines, where its extra is installed."""

    def given(engine: str):
        absent = engine in PLUGINS and find_spec(PLUGINS[engine]) is None
        return pytest.param(engine, marks=pytest.mark.skipif(absent, reason=f"the extra for {engine} is not installed"))

    return pytest.mark.parametrize("engine", [given(engine) for engine in engines])


@pytest.fixture(scope="module")
def seedling(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("seedling") / "policy")


@on("local", "ray", "slurm_local")
def test_the_command_in_the_readme_runs_on_this_engine(engine, results, seedling):
    pattern = r"^ablate (-m \S+ \S+) {3,}#" if engine == "local" else rf"^ablate (-m .* hydra/launcher={engine})\s"
    line = re.findall(pattern, (ROOT / "README.md").read_text(), re.M)[0]
    line = re.sub(r"range\(0,\d\)", "range(0,1)", line)
    code, out, err = ablate(
        results, *shlex.split(line), *SMALL, *TWO[engine], f"base.folder={seedling}", "machine.tracking=none"
    )
    assert code == 0 and "2 of 2 runs are complete." in out, out + err


@on("ray", "slurm_local")
def test_on_this_engine_too_the_others_complete_and_the_same_command_runs_the_missing_ones(engine, results, seedling):
    launcher = [f"hydra/launcher={engine}", *TWO[engine]]
    command = ["-m", "seed=range(0,12)", *SMALL, *ARGUMENTS, f"base.folder={seedling}", "machine.tracking=none"]
    code, out, err = ablate(results, *command, *launcher)
    bad = {str(RAISES): "failed", str(DIVERGES): "diverged", str(KILLED): "failed"}
    assert code == 1, out + err
    assert states(results) == {str(seed): bad.get(str(seed), "complete") for seed in range(12)}
    assert "boom" in out and "SIGKILL" in out
    before = started(results)
    (results / "cure").touch()
    code, out, err = ablate(results, *command, *launcher)
    assert code == 0 and "12 runs, 9 complete already" in out and "12 of 12 runs are complete." in out, out + err
    assert {seed for seed, process in started(results).items() if process != before[seed]} == bad.keys()


@on("local", "ray", "slurm_local")
def test_a_killed_worker_costs_its_run_a_few_steps_and_the_crossing_goes_on_by_itself(engine, results, seedling):
    """All three engines end their whole batch when they lose a worker; the command starts them again for the rest."""
    command = ["-m", "seed=range(0,4)", *SMALL, "steps=60", f"base.folder={seedling}", "machine.tracking=none"]
    process = start(results, *command, f"hydra/launcher={engine}", *TWO[engine])
    folder = None
    while folder is None and process.poll() is None:
        time.sleep(0.2)
        running = [path.parents[1] for path in results.glob("single/runs/*/checkpoints/step-*.ckpt")]
        folder = running[0] if running else None
    assert folder, finished(process)
    killed = json.loads((folder / "environment.json").read_text())["process"]
    with open(f"/proc/{killed}/stat") as file:
        worker = int(file.read().rsplit(")", 1)[1].split()[1])  # the parent of the run's own process
    os.kill(worker, signal.SIGKILL)
    code, out, err = finished(process)
    assert "started again for the" in out, out + err
    assert code == 0 and "4 of 4 runs are complete." in out, out + err
    assert json.loads((folder / "environment.json").read_text())["resumed_after"][0]["step"] > 0
    assert [row["step"] for row in read_rows(folder / "journal.jsonl")] == list(range(61))


def started(results) -> dict[str, int]:
    """seed -> the process that ran it last."""
    found = {}
    for folder in (results / "single/runs").iterdir():
        overrides = (folder / "overrides.txt").read_text().splitlines()
        (seed,) = [override.removeprefix("seed=") for override in overrides if override.startswith("seed=")]
        found[seed] = json.loads((folder / "environment.json").read_text())["process"]
    return found
