"""The best of many noisy trials looks better than it is; the same point on fresh seeds does not."""

import math
import statistics
from pathlib import Path

import numpy as np
import optuna
import pytest

from ablations.search import confirm, loop, objective, sampling, space
from ablations.search.plan import SEEDS, Plan

SEARCHES, TRIALS, NOISE = 200, 40, 0.1


def plan(folder: Path, name: str, seed: int) -> Plan:
    searched = space.space({"lr": {"key": "optimizer.lr", "low": 1e-4, "high": 1e-2, "log": True}})
    make = lambda seed: optuna.samplers.RandomSampler(seed=seed)  # noqa: E731
    kept = dict.fromkeys(Plan._fields) | {
        "name": name,
        "results": folder,
        "space": searched,
        "objective": objective.objective("accuracy/heldout", "maximize", objective.last),
        "seeds": [0, 1],
        "fresh": list(range(2, 7)),
        "trials": TRIALS,
        "sampler": sampling.Distinct(make, searched, seed, False),
        "pruner": optuna.pruners.NopPruner(),
        "over": SEEDS,
        "storage": "journal",
        "compare_default": False,
        "grace": 1e6,
    }
    return Plan(**kept)


def truth(point) -> float:
    """What a point is worth: .8 at 1e-3, less on both sides."""
    return 0.8 - 0.1 * (math.log10(point["optimizer.lr"]) + 3) ** 2


class Noisy:
    """A run whose last accuracy is the truth plus noise of a known spread, another one for each point and seed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, number, point, seed, watch) -> loop.Run:
        rng = np.random.default_rng([self.number, seed, int(point["optimizer.lr"] * 1e9)])
        return loop.Run("complete", "", [{"step": 1, "accuracy/heldout": truth(point) + rng.normal(0, NOISE)}], "")


@pytest.mark.slow
def test_over_200_searches_the_fresh_score_is_unbiased_and_the_search_score_is_not(tmp_path):
    """40 trials of 2 seeds, noise of .1 per run. Both errors are against the truth about the point that was chosen."""
    searched, fresh = [], []
    for number in range(SEARCHES):
        todo = plan(tmp_path, f"search {number}", seed=number)
        (tmp_path / todo.name / ".search").mkdir(parents=True)
        study = optuna.create_study(direction="maximize", sampler=todo.sampler, pruner=todo.pruner)
        noisy = Noisy(number)
        loop.work(study, todo, noisy)
        best = confirm.best(study)
        scores = [noisy(None, job.point, job.seed, None).rows for job in confirm.jobs(todo, study)]
        mean = statistics.fmean(objective.score(rows, todo.objective) for rows in scores)
        searched.append(best.value - truth(best.params))
        fresh.append(mean - truth(best.params))
    mean, standard_error = np.mean(fresh), np.std(fresh, ddof=1) / math.sqrt(SEARCHES)
    assert abs(mean) < 1.97 * standard_error  # 0 is inside its 95 % interval
    mean, standard_error = np.mean(searched), np.std(searched, ddof=1) / math.sqrt(SEARCHES)
    assert mean > 0.1 and mean > 20 * standard_error
    assert sum(error > 0 for error in searched) > 0.95 * SEARCHES


def test_fresh_seeds_are_seeds_that_no_trial_has(tmp_path):
    todo = plan(tmp_path, "search", seed=0)
    (tmp_path / todo.name / ".search").mkdir(parents=True)
    study = optuna.create_study(direction="maximize", sampler=todo.sampler)
    seen = []
    loop.work(study, todo._replace(trials=3), lambda *a: seen.append(a[2]) or Noisy(0)(*a))
    assert sorted(set(seen)) == todo.seeds
    jobs = confirm.jobs(todo._replace(compare_default=True), study)
    assert {job.seed for job in jobs} == set(todo.fresh) and not set(todo.fresh) & set(seen)
    best, default = ([job for job in jobs if job.label == label] for label in ("best", "default"))
    assert [job.seed for job in best] == [job.seed for job in default]
    assert best[0].point == confirm.best(study).params and default[0].point == {}


@pytest.mark.parametrize(("direction", "best"), [("maximize", 1), ("minimize", 0)])
def test_the_best_trial_is_the_first_of_the_best_that_are_complete(direction, best):
    study = optuna.create_study(direction=direction)
    searched = space.space({"lr": {"key": "optimizer.lr", "low": 1e-4, "high": 1e-2}}).distributions
    for value in (0.1, 0.5, 0.5, 0.1):
        study.tell(study.ask(searched), value)
    study.tell(study.ask(searched), state=optuna.trial.TrialState.FAIL)
    assert confirm.best(study).number == best
