"""Searches that survive and do not fool: reported faults of sweeps, each with its input and the right result."""

import csv
import json
import re
import sqlite3
from pathlib import Path

import optuna
import pytest
from hydra import initialize_config_dir
from omegaconf import OmegaConf
from optuna.trial import TrialState
from searching import GRID, ZERO, command, opened

from ablations import build
from ablations.search import plan as plans
from ablations.search import study as studies
from ablations.search import workers
from ablations.search.command import cli

FOUR = ["sampler=grid", "search.space.lr.points=4", "trials=4", "seeds=1"]


@pytest.fixture
def run(capfd):
    """Give a command -> (exit code, what it said)."""

    def go(*arguments: str) -> tuple[int | str, str]:
        with pytest.raises(SystemExit) as end:
            cli(list(arguments))
        return end.value.code, capfd.readouterr().out

    return go


@pytest.fixture
def planned():
    """A command line -> its plan."""

    def read(*arguments: str) -> plans.Plan:
        build.register_resolvers()
        with initialize_config_dir(str(build.CONF), version_base=None):
            return plans.read(list(arguments))[0]

    return read


def killed_worker(plan: plans.Plan) -> None:
    """Let a worker begin a search that kills it."""
    studies.begin(plan)
    with initialize_config_dir(str(build.CONF), version_base=None):
        worker = workers.started(workers.do, workers.SEARCH, plan, 0)
        worker.join()
    assert worker.exitcode == -9


def stored(folder: Path, url: str = "journal") -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=folder.name, storage=opened(url, folder)).get_trials()


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def tries(folder: Path) -> list[int]:
    return [len(path.read_text().splitlines()) for path in folder.glob("runs/*/tries.txt")]


# --- a trial that has no result ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "why"), [("nan", "the score is nan"), ("infinite", "the score is inf")])
def test_a_trial_without_a_finite_score_fails_and_the_others_run(runner, why, run, results):
    """hydra#2237, #3451: four learning rates, one diverges. Optuna itself takes infinity for the best of all."""
    code, said = run(*command(runner, *FOUR))
    assert code == 1 and "1 of 4 trials failed" in said and why in said
    trials = stored(results / "search_lr")
    assert sorted(trial.state.name for trial in trials) == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"]
    (failed,) = (trial for trial in trials if trial.state == TrialState.FAIL)
    assert failed.params["optimizer.lr"] == GRID[1]
    assert OmegaConf.load(results / "search_lr" / "best.yaml").point["optimizer.lr"] != GRID[1]
    (row,) = (row for row in table(results / "search_lr" / "trials.csv") if row["state"] == "failed")
    assert why in row["reason"] and row["score"] == ""


def test_if_all_trials_fail_that_is_said_without_a_traceback(run):
    """hydra#3333: "no trials are completed"."""
    code, said = run(*command("nothing_but_nan", *FOUR))
    end = said.rpartition("None of the 4 trials is complete")[2]
    assert code == 1 and end.count("the score is nan") == 4 and "Traceback" not in said


def test_runs_that_raise_leave_traceback_and_status_and_are_all_listed(run, results):
    """hydra#1513, #2284: two of four raise."""
    code, said = run(*command("raising", *FOUR))
    assert code == 1 and "2 of 4 trials failed" in said and said.count("ZeroDivisionError: lr") >= 2
    failed = [path.parent for path in results.glob("search_lr/runs/*/traceback.txt")]
    assert len(failed) == 2
    for folder in failed:
        assert "Traceback" in (folder / "traceback.txt").read_text()
        assert json.loads((folder / "status.json").read_text())["state"] == "failed"


@pytest.mark.slow
def test_a_point_that_kills_its_workers_fails_after_three_and_the_others_run(run, results):
    code, said = run(*command("always_killing", *FOUR, "workers=1"))
    assert code == 1 and "1 of 4 trials failed" in said and "its worker died 3 times" in said
    assert [trial.state.name for trial in stored(results / "search_lr")].count("COMPLETE") == 3


# --- storages and restarts --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_database_that_is_not_there_yet_serves_two_workers(run, results, tmp_path):
    """hydra#2162: any SQLite storage failed; and of several processes on a missing file all but one died."""
    url = f"sqlite:///{tmp_path}/study.db"
    code, said = run(*command("synthetic", "trials=4", "seeds=1", f"storage={url}"))
    assert code == 0, said
    trials = stored(results / "search_lr", url)
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4
    assert not (results / "search_lr" / "study.journal").exists()


@pytest.mark.slow
def test_a_grid_of_ten_that_is_killed_at_the_sixth_cell_keeps_five_and_ends_with_ten(planned, run, results):
    """hydra#1407, #1679: no resume. Cells are known by the hash of their config."""
    grid = command("killing", "sampler=grid", "search.space.lr.points=10", "trials=10", "seeds=1", "workers=1")
    plan = planned(*grid)
    killed_worker(plan)
    before = stored(plan.folder)
    assert [trial.state.name for trial in before] == ["COMPLETE"] * 5 + ["RUNNING"]
    code, said = run(*grid)
    assert code == 0 and "5 settled already" in said and "goes on with 1 interrupted: trial 5" in said
    after = stored(plan.folder)
    assert [trial.number for trial in after] == list(range(10))
    assert {trial.state for trial in after} == {TrialState.COMPLETE}
    assert [trial.params for trial in after[:6]] == [trial.params for trial in before]
    assert len({trial.params["optimizer.lr"] for trial in after}) == 10
    assert sorted(tries(plan.folder)) == [1] * 11 + [2]  # 10 cells, the sixth twice, and 2 runs on fresh seeds


@pytest.mark.slow
def test_seeds_that_an_interrupted_trial_had_completed_are_found_again(planned, run, results):
    """Two seeds per point: the sixth run is the second seed of trial 2; its first is not trained again."""
    two = command("killing", "trials=4", "seeds=2", "workers=1")
    plan = planned(*two)
    killed_worker(plan)
    assert [t.state.name for t in stored(plan.folder)] == ["COMPLETE"] * 2 + ["RUNNING"]
    code, said = run(*two)
    assert code == 0 and "trial 2" in said
    assert sorted(tries(plan.folder)) == [1] * 9 + [2]


def test_only_trials_of_dead_workers_are_taken_over(planned, results):
    plan = planned(*command("synthetic", "trials=4"))
    study = studies.begin(plan)
    with studies.owning(study, plan) as (owner, _):
        mine = studies.ask(study, plan, owner)
        assert studies.requeue(study, plan) == []
        elsewhere = studies.ask(study, plan, {"host": "another machine", "lock": "/nowhere"})
        study._storage.set_trial_user_attr(elsewhere._trial_id, "alive", elsewhere.datetime_start.timestamp())
        assert studies.requeue(study, plan) == []
        study._storage.set_trial_user_attr(elsewhere._trial_id, "alive", 0)  # silent since 1970
        assert studies.requeue(study, plan) == [elsewhere.number]
    assert studies.requeue(study, plan) == [mine.number]
    again = [studies.ask(study, plan, owner) for _ in range(2)]
    assert [(t.number, t.params) for t in again] == [(t.number, t.params) for t in (mine, elsewhere)]


@pytest.mark.parametrize("storage", ["journal", "sqlite"])
def test_a_worker_that_is_killed_while_it_draws_a_point_is_known_to_be_dead(
    storage, planned, results, monkeypatch, tmp_path
):
    """In a database anybody may be in the middle of it, so the trial itself must say who is."""
    url = storage if storage == "journal" else f"sqlite:///{tmp_path}/study.db"
    plan = planned(*command("synthetic", "trials=4", f"storage={url}"))
    study = studies.begin(plan)
    with studies.owning(study, plan) as (owner, _), monkeypatch.context() as patched:
        patched.setattr(optuna.Trial, "_suggest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            studies.ask(study, plan, owner)
        (trial,) = study.get_trials()
        assert trial.state == TrialState.RUNNING and trial.user_attrs["owner"] == owner
    assert studies.requeue(study, plan) == studies.waiting(study) == [0]


@pytest.mark.slow
def test_another_search_under_the_same_name_is_refused_with_what_changed(run):
    assert run(*command("synthetic", "trials=2", "seeds=1"))[0] == 0
    code, _ = run(*command("synthetic", "trials=2", "seeds=1", "search.space.lr.low=2e-4", "scale=none"))
    assert "space was" in code and "name=search_lr_2" in code
    assert re.search(r"settings was \[[^]]*\] and is now \[[^]]*'scale=none'\]", code)


def test_more_trials_than_before_go_on_from_those_that_are_there(run, results):
    assert run(*command("synthetic", "trials=2", "seeds=1"))[0] == 0
    code, said = run(*command("synthetic", "trials=3", "seeds=1"))
    assert code == 0 and "2 settled already" in said
    assert len(stored(results / "search_lr")) == 3 and max(tries(results / "search_lr")) == 1


# --- pruning ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_curve_that_stays_at_zero_is_pruned_and_what_there_is_of_it_kept(run, results, planned):
    """hydra#1954, #1710: median pruner, five trials, one constant 0."""
    median = ["pruner=median", "search.pruner.make.n_startup_trials=3", "search.pruner.make.n_warmup_steps=2"]
    five = ["sampler=grid", "search.space.lr.points=5", "trials=5", "seeds=1", "workers=1"]
    grid = command("zero", *five, *median)
    points = planned(*grid).sampler.sampler_of(0)._all_grids
    ZERO.clear()
    ZERO.add(points[4][0])  # the fifth that is drawn, forked with the workers
    code, said = run(*grid)
    assert code == 0 and "pruned at 0 by MedianPruner" in said
    trials = stored(results / "search_lr")
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 4 + ["PRUNED"]
    assert 1 <= len(trials[4].intermediate_values) < 20 == len(trials[3].intermediate_values)
    (folder,) = (results / "search_lr" / "runs" / name for name in trials[4].user_attrs["folders"])
    assert json.loads((folder / "status.json").read_text())["state"] == "pruned"
    assert 2 <= len((folder / "journal.jsonl").read_text().splitlines()) < 21
    row = table(results / "search_lr" / "trials.csv")[4]
    assert row["state"] == "pruned" and row["score"] == ""  # and so in no mean


def test_over_seeds_a_point_that_is_worse_with_every_seed_is_pruned(run, results):
    """The signed-rank test at p = .1: with four seeds that are worse p is 1/16."""
    grid = command("two_levels", *FOUR[:3], "seeds=6", "workers=1", "pruner=wilcoxon")
    assert run(*grid)[0] == 0
    trials = stored(results / "search_lr")
    place = [GRID.index(trial.params["optimizer.lr"]) for trial in trials]  # the smaller, the better
    worse = [min(place[: number + 1]) < place[number] for number in range(4)]
    assert any(worse) and [trial.state == TrialState.PRUNED for trial in trials] == worse
    assert all(4 <= len(trial.user_attrs["scores"]) < 6 for trial, pruned in zip(trials, worse, strict=True) if pruned)


MANY = ["sampler=grid", "search.space.lr.points=18", "trials=18", "seeds=1", "workers=1"]
RUNGS = (2, 6, 18)  # a first cut after two steps, and one third goes on at each


def halved(heights: list[float]) -> list[int]:
    """The step at which each of these trials, one after the other, is cut; 20: never. A third of those that have come
    to a rung so far goes on from it, or the best of fewer than three (Li et al. 2018, arXiv:1810.05934, alg. 2)."""
    cut, there = [], {rung: [] for rung in RUNGS}
    for height in heights:
        for rung in RUNGS:
            there[rung].append(height)
            if sum(other > height for other in there[rung]) >= max(1, len(there[rung]) // 3):
                cut.append(rung)
                break
        else:
            cut.append(20)
    return cut


@pytest.mark.parametrize(("pruner", "cut"), [("successive_halving", halved), ("hyperband", None)])
def test_at_each_rung_a_third_of_the_trials_goes_on(pruner, cut, run, results):
    assert run(*command("level", *MANY, f"pruner={pruner}", "search.pruner.make.min_resource=2"))[0] == 0
    trials = stored(results / "search_lr")
    heights = [-trial.params["optimizer.lr"] for trial in trials]
    ends = [max(trial.intermediate_values) for trial in trials]
    assert [trial.state == TrialState.PRUNED for trial in trials] == [end < 20 for end in ends]
    if cut:
        assert ends == cut(heights) and set(ends) == {2, 6, 20}
    else:  # in three brackets whose first rungs differ: who is cut is worse than another of its bracket
        assert {2, 6, 20} <= set(ends) <= {*RUNGS, 20}
        worse = [any(other > height for other in heights[:n]) for n, height in enumerate(heights)]
        assert all(worse[n] for n, end in enumerate(ends) if end < 20) and ends[heights.index(max(heights))] == 20


# --- points -----------------------------------------------------------------------------------------------------------


def test_three_workers_with_one_sampler_seed_try_nine_different_points(run, results):
    """optuna#1547, #4412: the same seed in every worker gave the same points."""
    assert run(*command("synthetic", "trials=9", "seeds=1", "workers=3", "sampler_seed=1", "sampler=random"))[0] == 0
    assert len({trial.params["optimizer.lr"] for trial in stored(results / "search_lr")}) == 9


@pytest.mark.slow
def test_one_worker_and_one_sampler_seed_give_the_same_points_and_training_seeds_are_apart(run, results):
    """hydra#2892: one seed for both."""
    points = {}
    for name, given in {"a": [], "b": [], "c": ["first_seed=50"], "d": ["sampler_seed=1"]}.items():
        arguments = ["trials=3", "seeds=1", "workers=1", "sampler=random", f"name={name}", *given]
        assert run(*command("synthetic", *arguments))[0] == 0
        points[name] = [trial.params for trial in stored(results / name)]
    assert points["a"] == points["b"] == points["c"] != points["d"]
    assert {path.name.partition("seed")[2][:2] for path in (results / "c" / "runs").iterdir()} == {"50", "51", "52"}
    scores = [[t.value for t in stored(results / name)] for name in ("a", "b", "c")]
    assert scores[0] == scores[1] != scores[2]


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "score"), [("last", 0.2), ("best", 0.9), ("mean_of_last", 0.4)])
def test_the_reported_score_is_of_fresh_seeds_and_apart_from_the_search_score(window, score, run, results):
    """rl-baselines3-zoo#469, #458: the luckiest evaluation of one seed. Seed 0: .1, .9, .2; others end at .2."""
    code, said = run(*command("luck", "trials=2", "seeds=1", "confirm_seeds=4", f"window={window}"))
    assert code == 0
    best = OmegaConf.load(results / "search_lr" / "best.yaml")
    assert best.search_score == pytest.approx(score)
    fresh = [float(row["score"]) for row in table(results / "search_lr" / "confirm.csv")]
    assert fresh == pytest.approx([{"mean_of_last": 0.5 / 3}.get(window, 0.2)] * 4)
    assert re.search(rf"on 4 fresh seeds: {fresh[0]:.4g}, .*had seen {score:g} over the 1 seeds", said)


def test_the_best_trial_is_written_with_number_folder_config_and_a_command_that_trains_it(run, results):
    assert run(*command("synthetic", "trials=3", "seeds=2", "beta=0.01"))[0] == 0
    folder = results / "search_lr"
    best = OmegaConf.load(folder / "best.yaml")
    trial = stored(folder)[best.trial]
    assert dict(best.point) == trial.params and best.search_score == trial.value == max(t.value for t in stored(folder))
    assert len(best.folders) == 2 and all((folder / run).is_dir() for run in best.folders)
    assert best.config.optimizer.lr == trial.params["optimizer.lr"] and best.config.beta == 0.01
    assert best.command.startswith("ablate -m ") and f"optimizer.lr={best.config.optimizer.lr}" in best.command
    assert "beta=0.01" in best.command and "seed=range(2,4)" in best.command and "name=search_lr_best" in best.command


@pytest.mark.slow
def test_asking_for_more_fresh_seeds_later_trains_only_those(run, results):
    """`rerun best` with five seeds."""
    assert run(*command("synthetic", "trials=2", "seeds=1"))[0] == 0
    code, said = run(*command("synthetic", "trials=2", "seeds=1", "confirm_seeds=5"))
    assert code == 0 and "on 5 fresh seeds" in said and tries(results / "search_lr") == [1] * 7


def test_the_budget_is_told_before_the_start(run):
    _, said = run(*command("synthetic", "trials=2", "seeds=3"))
    assert said.index("Budget: 2 trials x 3 seeds, and 2 runs on fresh seeds, of 60 steps") < said.index("1/2  trial")


def test_a_space_with_fewer_points_than_trials_ends_with_its_points(run, results):
    code, said = run(*command("synthetic", "~search.space.lr", "+search.space.e={key:update.epochs,choices:[1,2,3]}",
                              "trials=9", "seeds=1"))  # fmt: skip
    assert code == 0 and "3 trials of update.epochs (there are no more points than that; 9 were asked for)" in said
    assert sorted(trial.params["update.epochs"] for trial in stored(results / "search_lr")) == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["trials=3"], ["No search is named", "lr_beta"]),
        (["search=lr", "trials=0"], ["search.trials is 0", "at least 1"]),
        (["search=lr", "confirm_seeds=1"], ["confirm_seeds is 1", "at least 2"]),
        (["search=lr", "search.objective.direction=minimize"], ["accuracy/heldout", "higher"]),
        (["search=lr", "storage=results/study.db"], ["results/study.db", "journal", "postgresql://"]),
        (["search=lr", "storage=sqlite:///study.db"], ["sqlite", "from the root"]),
        (["search=lr", "sampler=tree"], ["tree", "tpe", "gp"]),
        (["search=lr", "rollout.group_size=1"], ["group_size is 1"]),
        (["search=lr", "search.space.lr.key=optimizer.learning"], ["learning"]),
        (["search=lr", "scale=nonsense"], ["nonsense", "group_std"]),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_starts(arguments, told, run, results):
    code, _ = run(*arguments)
    assert isinstance(code, str) and all(word in code for word in told), code
    assert not any(results.rglob("study.journal"))


def test_a_password_is_shown_nowhere():
    assert plans.shown("storage=postgresql://me:secret@host:1/db") == "storage=postgresql://me:***@host:1/db"


# --- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_trial_is_a_child_run_with_its_number_point_score_and_end(run, results, store):
    """Of the search's parent run, which the runs of its seeds have too; a second start makes no second run."""
    nan = command("nan", *FOUR, "machine.tracking=sqlite")
    for _ in range(2):
        assert run(*nan)[0] == 1
    with sqlite3.connect(results / "mlflow.db") as database:
        told = "SELECT run_uuid, key, value FROM tags"
        tags: dict[str, dict[str, str]] = {}
        for uuid, key, value in database.execute(told):
            tags.setdefault(uuid, {})[key] = value
        ends = dict(database.execute("SELECT run_uuid, status FROM runs"))
        params = dict(database.execute("SELECT run_uuid, value FROM params WHERE key = 'optimizer.lr'"))
        scores = dict(database.execute("SELECT run_uuid, value FROM metrics WHERE key = 'search/score'"))
    (parent,) = (uuid for uuid, kept in tags.items() if kept.get("kind") == "ablation")
    trials = {int(kept["trial"]): uuid for uuid, kept in tags.items() if kept.get("kind") == "trial"}
    assert sorted(trials) == [0, 1, 2, 3]
    for trial in stored(results / "search_lr"):
        uuid = trials[trial.number]
        assert tags[uuid]["mlflow.parentRunId"] == parent and float(params[uuid]) == trial.params["optimizer.lr"]
        failed = trial.state == TrialState.FAIL
        assert ends[uuid] == ("FAILED" if failed else "FINISHED")
        assert tags[uuid]["state"] == ("failed" if failed else "complete")
        assert scores.get(uuid) == (None if failed else trial.value)
        assert ("the score is nan" in tags[uuid]["reason"]) == failed


def test_a_store_that_is_away_stops_no_search(run, results):
    code, said = run(*command("synthetic", "trials=2", "seeds=1", "machine.tracking=http://127.0.0.1:9"))
    assert code == 0 and "MLflow at http://127.0.0.1:9 cannot be used" in said
    assert [trial.state.name for trial in stored(results / "search_lr")] == ["COMPLETE"] * 2
