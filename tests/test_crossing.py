"""Crossings: what one cell does to the others, and what the same command does afterwards."""

import json
import os
import signal
import sqlite3
import time

import pytest
from composing import composed
from crossings import SMALL, ablate, finished, start, states, untrained
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from mischief import ARGUMENTS, DIVERGES, KILLED, RAISES

from ablations import build, crossing, identity, status
from ablations.contradictions import Refused

pytestmark = pytest.mark.slow
TWELVE = ["-m", "seed=range(0,12)", *SMALL, *ARGUMENTS]


@pytest.fixture(scope="session")
def seedling(tmp_path_factory):
    return untrained(tmp_path_factory.mktemp("seedling") / "policy")


@pytest.fixture(scope="module")
def twelve(tmp_path_factory, seedling):
    """A crossing of 12 cells, of which one raises, one diverges and one is killed -> (results, command, outcome)."""
    results = tmp_path_factory.mktemp("twelve")
    command = [*TWELVE, f"base.folder={seedling}"]
    return results, command, ablate(results, *command)


def test_one_raising_one_diverging_and_one_killed_cell_stop_no_other_and_are_named_with_their_reasons(twelve):
    """C01, C02: 12 cells, 9 complete, three named, exit code 1; and then the same command runs exactly the three."""
    results, command, (code, out, err) = twelve
    bad = {str(RAISES): "failed", str(DIVERGES): "diverged", str(KILLED): "failed"}
    assert code == 1, out + err
    assert states(results) == {str(seed): bad.get(str(seed), "complete") for seed in range(12)}
    assert "9 of 12 runs are complete, 2 failed, 1 diverged." in out
    table = [line for line in out.splitlines() if "  failed  " in line or "  diverged  " in line]
    assert len(table) == 3, out
    assert sum("RuntimeError: boom" in line for line in table) == 1
    assert sum("killed by signal 9 (SIGKILL) after step 0" in line for line in table) == 1
    assert sum("step 1: the" in line for line in table) == 1
    (raised,) = [path for path in (results / "single/runs").glob("*/traceback.txt")]
    assert "RuntimeError: boom" in raised.read_text()
    # the same command, once the trouble is over
    journals = {path: path.stat().st_mtime_ns for path in (results / "single/runs").glob("*/journal.jsonl")}
    (results / "cure").touch()
    code, out, err = ablate(results, *command)
    assert code == 0, out + err
    assert "12 runs, 9 complete already" in out and "12 of 12 runs are complete." in out
    again = {path for path, written in journals.items() if path.stat().st_mtime_ns != written}
    assert len(again) == 3 and len(journals) == 12


def test_more_seeds_later_run_only_what_is_new(twelve, seedling):
    """C04."""
    results, command, _ = twelve
    (results / "cure").touch()
    ablate(results, *command)
    before = {path: path.stat().st_mtime_ns for path in (results / "single/runs").glob("*/journal.jsonl")}
    code, out, err = ablate(results, *command[:1], "seed=range(0,13)", *command[2:])
    assert code == 0, out + err
    assert "complete already: " not in out  # none of the complete ones is launched to find that out
    after = {path: path.stat().st_mtime_ns for path in (results / "single/runs").glob("*/journal.jsonl")}
    assert len(after) == 13 and before.items() <= after.items()


def test_two_launches_at_once_run_no_cell_twice_and_status_tells_from_another_process(results, seedling):
    """C09: the second finds a cell locked or complete. A journal that two wrote would have a step twice."""
    command = ["-m", "seed=range(0,3)", *SMALL, "steps=6", f"base.folder={seedling}", "machine.tracking=none"]
    one, other = start(results, *command), start(results, *command)
    seen = set()
    while one.poll() is None or other.poll() is None:
        if (results / "single/ablation.yaml").is_file():
            seen |= {status.status(line.folder)["state"] for line in status.lines(results, "single") if line.folder}
        time.sleep(0.2)
    outs = [finished(process) for process in (one, other)]
    assert "running" in seen and seen <= {"not started", "running", "complete"}
    assert set(states(results).values()) == {"complete"} and len(states(results)) == 3
    trained = sum(out.count("\ncomplete: ") + out.startswith("complete: ") for _, out, _ in outs)
    assert trained <= 3
    for journal in (results / "single/runs").glob("*/journal.jsonl"):
        assert [json.loads(line)["step"] for line in journal.read_text().splitlines()] == list(range(7))


def test_eight_commands_that_start_at_once_in_an_empty_folder_all_succeed_in_one_experiment(results, seedling):
    """B07, B12: eight single runs, one store that is not there yet; without its lock seven die."""
    command = [*SMALL, f"base.folder={seedling}"]
    processes = [start(results, f"seed={seed}", *command) for seed in range(8)]
    outcomes = [finished(process) for process in processes]
    assert [code for code, *_ in outcomes] == [0] * 8, outcomes
    assert set(states(results).values()) == {"complete"} and len(states(results)) == 8
    with sqlite3.connect(results / "mlflow.db") as store:
        kinds = [kind for (kind,) in store.execute("SELECT value FROM tags WHERE key = 'kind'")]
        parents = store.execute("SELECT DISTINCT value FROM tags WHERE key = 'mlflow.parentRunId'").fetchall()
        assert len(store.execute("SELECT * FROM experiments WHERE name = 'single'").fetchall()) == 1
        assert sorted(kinds) == ["ablation"] + ["run"] * 8 and len(parents) == 1


def test_a_crossing_that_is_killed_as_a_whole_keeps_what_is_complete_and_the_same_command_does_the_rest(
    results, seedling
):
    """C04: 10 cells, killed during the sixth."""
    command = ["-m", "seed=range(0,10)", *SMALL, f"base.folder={seedling}", "machine.tracking=none"]
    process = start(results, *command, "hydra/launcher=basic", start_new_session=True)
    journals = results / "single/runs"
    while len(list(journals.glob("*/journal.jsonl"))) < 6 and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    finished(process)
    kept = {path.parent: path.stat().st_mtime_ns for path in journals.glob("*/status.json")}
    kept = {folder: written for folder, written in kept.items() if status.status(folder)["state"] == "complete"}
    assert 5 <= len(kept) < 10
    code, out, err = ablate(results, *command)
    assert code == 0 and f"10 runs, {len(kept)} complete already" in out, out + err
    assert set(states(results).values()) == {"complete"} and len(states(results)) == 10
    assert all((folder / "status.json").stat().st_mtime_ns == written for folder, written in kept.items())


def test_dry_run_prints_cells_and_cost_and_starts_nothing(results, seedling):
    command = ["-m", "seed=0,1", *SMALL, f"base.folder={seedling}", "machine.tracking=none"]
    code, out, _ = ablate(results, *command, "dry_run=true")
    assert code == 0 and "0 of 2 runs are complete, 2 not started." in out and "cannot be predicted" in out
    assert not (results / "single").exists()
    ablate(results, *command)
    code, out, _ = ablate(results, *command[:1], "seed=0,1,2", *command[2:], "dry_run=true")
    assert code == 0 and "2 of 3 runs are complete, 1 not started." in out and "Predicted: " in out
    assert "from the step times of 2 runs like these" in out and len(states(results)) == 2


@pytest.fixture
def swept():
    """The cells of sweep overrides, without Hydra's command line."""

    def cells(*arguments: str):
        lists = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(list(arguments)), None)[0]
        with initialize_config_dir(str(build.CONF), version_base=None):
            return list(crossing.composed(lists))

    return cells


def test_two_spellings_of_a_value_are_one_cell_in_one_folder(swept, results):
    """C13: x=1,1.0 makes two jobs in Hydra."""
    for sweep, arm in [("beta=1,1.0", "beta=1"), ("optimizer.lr=1e-3,0.001", "optimizer.lr=0.001")]:
        cells = [crossing.cell_of(config, overrides, results) for overrides, config in swept(sweep, "seed=0,1")]
        assert len(cells) == 4
        assert len({cell.hash for cell in cells}) == len({cell.folder for cell in cells}) == 2
        assert {cell.arm for cell in cells} == {arm}


def test_a_cell_composed_once_for_all_seeds_is_what_hydra_would_compose(swept):
    for overrides, config in swept("seed=1,2", "scale=none,group_std", "optimizer.lr=1e-4"):
        alone = build.plain(composed(*overrides))
        assert config == alone and identity.config_hash(config) == identity.config_hash(alone)


def test_a_launcher_that_an_ablation_file_names_takes_effect(tmp_path):
    """C11."""
    (tmp_path / "ablation").mkdir()
    (tmp_path / "ablation/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /hydra/launcher: basic\n"
    )
    search = f"hydra.searchpath=[{tmp_path.as_uri()}]"
    with initialize_config_dir(str(build.CONF), version_base=None):
        cfg = compose("config", [search, "ablation=mine"], return_hydra_config=True)
    assert cfg.hydra.launcher._target_ == "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def test_what_belongs_to_the_crossing_cannot_be_swept(swept):
    """C11: a launcher that is chosen cell by cell comes too late, and Hydra says nothing."""
    for sweep in ("hydra/launcher=local,basic", "name=a,b", "machine.threads=1,2"):
        with pytest.raises(Refused, match=sweep.split("=")[0]):
            swept(sweep, "seed=0")


@pytest.mark.parametrize(("arguments", "told"), [
    (["seed=range(0,0)"], "The crossing has no cells"),
    (["seed=0,1", "machine.tracking=mlruns"], "machine.tracking is mlruns; it can be sqlite"),
])
def test_a_crossing_that_cannot_start_says_so_and_gives_an_exit_code(results, seedling, arguments, told):
    code, out, err = ablate(results, "-m", *SMALL, f"base.folder={seedling}", *arguments)
    assert code == 1 and told in err and "Traceback" not in err, out + err
    assert not list(results.glob("single/runs/*"))


def test_a_wrong_arm_name_lists_the_right_ones_before_anything_starts(results, seedling):
    """C13."""
    code, out, err = ablate(results, "-m", "scale=none,nothing", *SMALL, f"base.folder={seedling}")
    assert code != 0 and "group_std" in out + err and not list(results.glob("single/runs/*"))
