"""The best point on seeds that no trial has seen.

The best of many noisy trials is partly the luckiest: its search score is too good by construction. Runs with fresh
seeds have not been chosen by their result, so their mean is an unbiased estimate. The unsearched setting is trained
with the same seeds, so that what the search has gained is a paired difference.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from optuna import Study
from optuna.trial import FrozenTrial, TrialState

from ablations import journal
from ablations.search import objective
from ablations.search.plan import Plan

BEST, DEFAULT = "best", "default"


class Job(NamedTuple):
    """One run on a fresh seed: of which point (BEST or DEFAULT), and the point itself."""

    label: str
    point: Mapping[str, Any]
    seed: int


class Confirmed(NamedTuple):
    """How it ended: its score, or None and why."""

    label: str
    seed: int
    state: str
    score: float | None
    reason: str
    folder: str


def best(study: Study) -> FrozenTrial | None:
    """The complete trial with the best search score; the first of equal ones."""
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
    sign = -1 if study.direction == 2 else 1
    return min(complete, key=lambda trial: (sign * trial.value, trial.number), default=None)


def jobs(plan: Plan, study: Study) -> list[Job]:
    """Every run on a fresh seed that the end of a search needs."""
    point = best(study).params
    labels = {BEST: point} | ({DEFAULT: {}} if plan.compare_default else {})
    return [Job(label, point, seed) for seed in plan.fresh for label, point in labels.items()]


def train(plan: Plan, share: Sequence[Job], evaluate: Callable) -> None:
    """Train them, or find them trained."""
    for job in share:
        evaluate(None, job.point, job.seed, None)


def read(plan: Plan, wanted: Sequence[Job], folder_of: Callable) -> list[Confirmed]:
    """What became of them. A run that failed is there without a score: it is counted, and no mean hides it."""
    found = []
    for job in wanted:
        folder = folder_of(job.point, job.seed)
        told = journal.status(folder) if folder.is_dir() else {"state": "not started", "reason": ""}
        found.append(_confirmed(plan, job, told, journal.read_rows(folder / "journal.jsonl"), folder.name))
    return found


def _confirmed(plan: Plan, job: Job, told: Mapping[str, str], rows: Sequence[Mapping], folder: str) -> Confirmed:
    if told["state"] != "complete":
        return Confirmed(job.label, job.seed, told["state"], None, told["reason"], folder)
    try:
        value = objective.score(rows, plan.objective)
    except LookupError as error:
        return Confirmed(job.label, job.seed, "failed", None, error.args[0], folder)
    if why := objective.fault(value):
        return Confirmed(job.label, job.seed, "failed", None, why, folder)
    return Confirmed(job.label, job.seed, "complete", value, "", folder)
