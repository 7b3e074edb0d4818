"""The engines: README's commands, and a crossing with trouble in it on each of them."""

import re
import shlex
from importlib.util import find_spec

import pytest
from crossings import ROOT, SMALL, ablate, states, untrained
from mischief import ARGUMENTS, DIVERGES, KILLED, RAISES

ENGINES = {"ray": "hydra_plugins.hydra_ray_launcher", "slurm_local": "hydra_plugins.hydra_submitit_launcher"}
pytestmark = [pytest.mark.slow, pytest.mark.extra]


def engines():
    for launcher, plugin in ENGINES.items():
        extra = launcher.split("_")[0]
        absent = pytest.mark.skipif(find_spec(plugin) is None, reason=f"the extra {extra} is not installed")
        yield pytest.param(launcher, marks=absent)


@pytest.fixture(scope="module")
def seedling(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("seedling") / "policy")


@pytest.mark.parametrize("launcher", engines())
def test_the_command_in_the_readme_runs_on_this_engine(launcher, results, seedling):
    (line,) = re.findall(rf"^ablate (-m .* hydra/launcher={launcher})\s", (ROOT / "README.md").read_text(), re.M)
    cpus = ["hydra.launcher.ray.init.num_cpus=2"] if launcher == "ray" else []
    arguments = [*shlex.split(line.replace("range(0,8)", "range(0,1)")), *SMALL, f"base.folder={seedling}", *cpus]
    code, out, err = ablate(results, *arguments, "machine.tracking=none")
    assert code == 0 and "2 of 2 runs are complete." in out, out + err


@pytest.mark.parametrize("launcher", engines())
def test_on_this_engine_too_the_others_complete_and_the_same_command_runs_the_missing_ones(
    launcher, results, seedling
):
    cpus = ["hydra.launcher.ray.init.num_cpus=2"] if launcher == "ray" else []
    command = ["-m", "seed=range(0,12)", *SMALL, *ARGUMENTS, f"base.folder={seedling}", "machine.tracking=none"]
    code, out, err = ablate(results, *command, f"hydra/launcher={launcher}", *cpus)
    bad = {str(RAISES): "failed", str(DIVERGES): "diverged", str(KILLED): "failed"}
    assert code == 1, out + err
    assert states(results) == {str(seed): bad.get(str(seed), "complete") for seed in range(12)}
    assert "boom" in out and "SIGKILL" in out
    (results / "cure").touch()
    code, out, err = ablate(results, *command, f"hydra/launcher={launcher}", *cpus)
    assert code == 0 and "12 runs, 9 complete already" in out and "12 of 12 runs are complete." in out, out + err
