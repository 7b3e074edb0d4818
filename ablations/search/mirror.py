"""A search in MLflow: one child run per trial, with its number, above the runs of its seeds.

As with every run, the store is a copy: if it cannot be used, the search goes on, says so once, and `catch_up` writes
what is missing when the search ends.
"""

import time
from collections.abc import Callable

from optuna.trial import FrozenTrial, TrialState

from ablations import tracking
from ablations.client import client_of, ensure_store, parent_run, unusable
from ablations.journal import below
from ablations.search import study as studies
from ablations.search.loop import Outcome
from ablations.search.plan import Plan
from ablations.spelling import canonical, name
from ablations.store import store_uri

STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
ENDS = {TrialState.COMPLETE: "FINISHED", TrialState.PRUNED: "KILLED", TrialState.FAIL: "FAILED"}


class Trials:
    """What a worker tells MLflow of its trials. Only faults of this project leave its methods."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.uri, self.away = plan, store_uri(plan.results, plan.tracking), False

    def begin(self, trial: FrozenTrial) -> None:
        """A trial has started."""
        self._try(lambda: self._run(trial))

    def end(self, trial: FrozenTrial, outcome: Outcome) -> None:
        """A trial is settled: its score, its seeds' scores, and its runs below it."""
        self._try(lambda: self._end(trial, outcome))

    def missing(self, trials: list[FrozenTrial]) -> None:
        """Write the settled trials that the store does not know as settled."""
        for trial in trials:
            kept = trial.user_attrs
            outcome = Outcome(trial.state, kept.get("scores", []), kept.get("reason", ""), kept.get("folders", []))
            self._try(lambda trial=trial, outcome=outcome: self._end(trial, outcome, unless_ended=True))

    def _try(self, action: Callable[[], object]) -> None:
        if self.uri is None:
            return
        try:
            action()
        except unusable() as error:
            if not self.away:
                print(f"MLflow at {self.uri} cannot be used ({type(error).__name__}); the search goes on.", flush=True)
            self.away = True

    def _run(self, trial: FrozenTrial):
        client, plan = client_of(self.uri), self.plan
        inside = ensure_store(self.uri, plan.name, plan.results)
        same = f"tags.kind = 'trial' and tags.trial = '{trial.number}'"
        if found := client.search_runs([inside], same, max_results=1):
            return found[0]
        began = trial.datetime_start.timestamp() if trial.datetime_start else time.time()
        tags = {
            "kind": "trial",
            "trial": str(trial.number),
            "state": "running",
            "mlflow.parentRunId": parent_run(self.uri, plan.name),
        }
        run = client.create_run(inside, start_time=int(began * 1000), tags=tags, run_name=f"trial {trial.number}")
        for key, value in trial.params.items():
            client.log_param(run.info.run_id, name(key), canonical(str(value)))
        return run

    def _end(self, trial: FrozenTrial, outcome: Outcome, unless_ended: bool = False) -> None:
        run = self._run(trial)
        client, plan, run_id = client_of(self.uri), self.plan, run.info.run_id
        if unless_ended and run.data.tags.get("state") == STATES[outcome.state]:
            return
        for index, value in enumerate(outcome.scores):
            client.log_metric(run_id, "search/score_of_seed", value, step=plan.seeds[index])
        if outcome.state == TrialState.COMPLETE:
            client.log_metric(run_id, "search/score", sum(outcome.scores) / len(outcome.scores))
        client.set_tag(run_id, "state", STATES[outcome.state])
        client.set_tag(run_id, "reason", outcome.reason[: tracking.TAG])
        for folder in outcome.folders:
            place = below(plan.folder / "runs" / folder, plan.results)
            for cell in client.search_runs([run.info.experiment_id], f"tags.kind = 'run' and tags.folder = '{place}'"):
                client.set_tag(cell.info.run_id, "trial", str(trial.number))
                client.set_tag(cell.info.run_id, "mlflow.parentRunId", run_id)
        client.set_terminated(run_id, ENDS[outcome.state])


def prepare(plan: Plan) -> None:
    """Make store, experiment and parent run once, before workers do it at the same time."""
    if (uri := store_uri(plan.results, plan.tracking)) is not None:
        try:
            ensure_store(uri, plan.name, plan.results)
            parent_run(uri, plan.name)
        except unusable() as error:
            print(f"MLflow at {uri} cannot be used ({type(error).__name__}); the search goes on.", flush=True)


def catch_up(plan: Plan) -> None:
    """Write to the store what it missed of the search's runs and trials."""
    if store_uri(plan.results, plan.tracking) is None:
        return
    tracking.catch_up(plan.results, plan.tracking, plan.name)
    Trials(plan).missing(studies.settled(studies.joined(plan)))
