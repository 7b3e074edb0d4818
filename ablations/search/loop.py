"""A worker's loop: ask for a point, train it with every seed, look at it as the pruner does, tell the outcome.

Nothing here knows what is trained: `evaluate(number, point, seed, watch)` is a run (`cells.py`), or whatever a test
puts in its place.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from ablations.search import objective
from ablations.search import study as studies
from ablations.search.plan import SEEDS, STEPS, Plan
from ablations.search.stop import Stopped

Watch = Callable[[Mapping[str, Any]], None]


class Run(NamedTuple):
    """How one run ended. state: complete, pruned, failed, diverged. rows: its journal."""

    state: str
    reason: str
    rows: Sequence[Mapping[str, Any]]
    folder: str


class Outcome(NamedTuple):
    """What is told of a trial. scores: one per seed that was completed, in the order of the seeds."""

    state: TrialState
    scores: list[float]
    reason: str
    folders: list[str]


Evaluate = Callable[[int, Mapping[str, Any], int, Watch], Run]


class Silent:
    """Who is told of trials if nobody is."""

    def begin(self, trial: FrozenTrial) -> None:
        """A trial has started."""

    def end(self, trial: FrozenTrial, outcome: Outcome) -> None:
        """A trial is settled."""


def work(study: Study, plan: Plan, evaluate: Evaluate, audience: Any = Silent()) -> None:  # noqa: B008, no state
    """Settle trials until the budget is spent. The audience has begin(trial) and end(trial, outcome)."""
    with studies.owning(study, plan) as (owner, beats):
        while (trial := studies.ask(study, plan, owner)) is not None:
            beats.trial = trial._trial_id
            audience.begin(trial)
            began = time.monotonic()
            outcome = judged(study, plan, trial, evaluate)
            beats.trial = None
            tell(study, trial, outcome, time.monotonic() - began)
            audience.end(trial, outcome)


def judged(study: Study, plan: Plan, trial: FrozenTrial, evaluate: Evaluate) -> Outcome:
    """Train a trial's point with each seed in turn. A run that fails, diverges or has no finite score fails the trial,
    and the other seeds are not trained: a mean over those that survived would flatter the point."""
    scores: list[float] = []
    folders: list[str] = []
    place = 0  # of the present run's step 0 on the axis on which a pruner compares trials

    def watch(row: Mapping[str, Any]) -> None:
        value = row.get(plan.objective.metric)
        if plan.over == STEPS and value is not None and row["step"] > 0 and not objective.fault(value):
            _report(study, trial, place + int(row["step"]), value)

    for index, seed in enumerate(plan.seeds):
        run = evaluate(trial.number, trial.params, seed, watch)
        folders.append(run.folder)
        if run.state == "pruned":
            return Outcome(TrialState.PRUNED, scores, run.reason, folders)
        if run.state != "complete":
            return Outcome(TrialState.FAIL, scores, f"seed {seed} {run.state}: {run.reason}", folders)
        try:
            value = objective.score(run.rows, plan.objective)
        except LookupError as error:
            return Outcome(TrialState.FAIL, scores, f"seed {seed}: {error.args[0]}", folders)
        if why := objective.fault(value):
            return Outcome(TrialState.FAIL, scores, f"seed {seed}: {why}", folders)
        scores.append(value)
        place += max((int(row["step"]) for row in run.rows), default=0)
        if plan.over == SEEDS and index < len(plan.seeds) - 1:
            try:
                _report(study, trial, index, value)
            except Stopped as stop:
                return Outcome(TrialState.PRUNED, scores, str(stop), folders)
        elif plan.over == SEEDS:
            _store(study, trial, index, value)
    return Outcome(TrialState.COMPLETE, scores, "", folders)


def _report(study: Study, trial: FrozenTrial, step: int, value: float) -> None:
    """Store an intermediate value and ask the pruner. Raises Stopped."""
    _store(study, trial, step, value)
    if study.pruner.prune(study, study._storage.get_trial(trial._trial_id)):
        raise Stopped(f"pruned at {value:.4g} by {type(study.pruner).__name__}")


def _store(study: Study, trial: FrozenTrial, step: int, value: float) -> None:
    study._storage.set_trial_intermediate_value(trial._trial_id, step, value)


def tell(study: Study, trial: FrozenTrial, outcome: Outcome, seconds: float) -> None:
    """Write down a trial's outcome; its score is the mean over its seeds."""
    kept = {"scores": outcome.scores, "reason": outcome.reason, "folders": outcome.folders}
    for key, value in (kept | {"seconds": round(seconds, 1)}).items():
        study._storage.set_trial_user_attr(trial._trial_id, key, value)
    value = statistics.fmean(outcome.scores) if outcome.state == TrialState.COMPLETE else None
    study.tell(trial.number, value, state=outcome.state)
