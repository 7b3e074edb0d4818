"""The study of a search in Optuna's storage: opened, counted, asked for the next point, and cleared of what a killed
worker left behind.

A trial that a killed worker left RUNNING is not failed and drawn anew: it goes back to the queue with its number and
its point, and whoever asks next goes on with it. The runs that it has finished already are found in their folders.
"""

import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna import Study
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ablations.contradictions import Refused
from ablations.search import plan as plans
from ablations.search.plan import Plan

BOOT = Path("/proc/sys/kernel/random/boot_id")
HOST = f"{socket.gethostname()} {BOOT.read_text().strip() if BOOT.is_file() else ''}".strip()
JOURNAL = "study.journal"
MOST_DEATHS = 3  # of workers at one trial: then the trial is to blame

optuna.logging.set_verbosity(optuna.logging.ERROR)


def storage(plan: Plan) -> BaseStorage:
    """The journal in the search's folder, or a database."""
    if plan.storage == "journal":
        plan.folder.mkdir(parents=True, exist_ok=True)
        path = str(plan.folder / JOURNAL)
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    try:
        return RDBStorage(plan.storage, engine_kwargs={"pool_pre_ping": True})
    except ImportError as error:
        raise Refused(
            f"search.storage is {plans.shown(plan.storage)}, and its driver is not installed ({error}); install it, "
            "for PostgreSQL with pip install 'ablations[postgres]', or leave search.storage=journal."
        ) from None


def begin(plan: Plan) -> Study:
    """Make the study, or find it. Raises Refused if it was begun as another search."""
    plan.locks.mkdir(parents=True, exist_ok=True)
    with _alone(plan):
        study = optuna.create_study(
            storage=storage(plan),
            study_name=plan.name,
            direction=plan.objective.direction,
            load_if_exists=True,
            sampler=plan.sampler,
            pruner=plan.pruner,
        )
        stored = study.user_attrs.get("definition")
        if stored is None:
            study.set_user_attr("definition", json.dumps(plan.definition))
        elif json.loads(stored) != json.loads(json.dumps(plan.definition)):
            raise Refused(_changed(plan, json.loads(stored)))
    return study


def joined(plan: Plan) -> Study:
    """The study as a worker opens it, with sampler and pruner, which no storage keeps."""
    return optuna.load_study(study_name=plan.name, storage=storage(plan), sampler=plan.sampler, pruner=plan.pruner)


def _changed(plan: Plan, stored: Mapping[str, Any]) -> str:
    given = json.loads(json.dumps(plan.definition))
    parts = [key for key in given if given[key] != stored.get(key)]
    told = "; ".join(f"{key} was {stored.get(key)} and is now {given[key]}" for key in parts)
    return (
        f"The search {plan.name} was begun as another one: {told}. Its trials cannot be compared with new ones; "
        f"give the new search a name of its own, for example name={plan.name}_2."
    )


def _alone(plan: Plan) -> FileLock:
    """Held while trials are counted and handed out, so that the budget is met exactly."""
    return FileLock(plan.locks / "ask.lock")


def dispose(study: Study) -> None:
    """Close the connections to a database: a process that is forked must not share them."""
    inner = getattr(study._storage, "_backend", study._storage)
    if isinstance(inner, RDBStorage):
        inner.engine.dispose()


def settled(study: Study) -> list[FrozenTrial]:
    """Trials with an outcome."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished() and not _surplus(trial)]


def _surplus(trial: FrozenTrial) -> bool:
    return "surplus" in trial.user_attrs


def ask(study: Study, plan: Plan, owner: Mapping[str, Any]) -> FrozenTrial | None:
    """The next trial: one that was interrupted, or a new point; None once the budget is spent or in hands.

    Workers that do not share the folder cannot hold each other's lock: what they draw beyond the budget is told apart
    by its number and counts nowhere.
    """
    while True:
        with _alone(plan):
            trials = study.get_trials(deepcopy=False)
            if len(trials) >= plan.budget and not any(trial.state == TrialState.WAITING for trial in trials):
                return None
            trial = _owned(study, plan, dict(owner))
            if trial.number < plan.budget:
                return study._storage.get_trial(trial._trial_id)
            trial.set_user_attr("surplus", True)
            study.tell(trial, state=TrialState.FAIL)


def _owned(study: Study, plan: Plan, owner: dict[str, str]) -> Trial:
    """study.ask(), with the owner written down as the trial is made, and not after it: of a worker that is killed in
    between nobody would know that it is dead."""
    study._thread_local.cached_all_trials = None  # as study.ask() does: other workers have told something since
    known = study._pop_waiting_trial_id()
    if known is None:
        blank = create_trial(state=TrialState.RUNNING, user_attrs={"owner": owner})
        trial = Trial(study, study._storage.create_new_trial(study._study_id, template_trial=blank))
    else:  # the owner that it has is dead, so it goes back to the queue if this one dies here
        trial = Trial(study, known)
        trial.set_user_attr("owner", owner)
    for name, distribution in plan.space.distributions.items():
        trial._suggest(name, distribution)
    return trial


def waiting(study: Study) -> list[int]:
    """Numbers of the trials in the queue."""
    return _numbers(study, TrialState.WAITING)


def running(study: Study) -> list[int]:
    """Numbers of the trials that some worker has; `requeue` first takes out those of the dead."""
    return _numbers(study, TrialState.RUNNING)


def _numbers(study: Study, state: TrialState) -> list[int]:
    return [trial.number for trial in study.get_trials(deepcopy=False, states=(state,))]


def requeue(study: Study, plan: Plan, deaths: bool = False) -> list[int]:
    """Settle what dead workers left RUNNING: back to the queue -> numbers.

    With `deaths`, each counts against the trial, and the third fails it: a point that kills whoever tries it must not
    hold up a search. A kill of the whole search says nothing about the point.
    """
    found = []
    with _alone(plan):
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if not _abandoned(trial, plan):
                continue
            found.append(trial.number)
            died = trial.user_attrs.get("deaths", 0) + deaths
            study._storage.set_trial_user_attr(trial._trial_id, "deaths", died)
            if died >= MOST_DEATHS:
                study._storage.set_trial_user_attr(trial._trial_id, "reason", f"its worker died {died} times")
                study.tell(trial.number, state=TrialState.FAIL)
            else:
                study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
    return found


def _abandoned(trial: FrozenTrial, plan: Plan) -> bool:
    """On this machine the lock of a worker says whether it lives; on another one, its last sign of life does."""
    owner = trial.user_attrs.get("owner")
    if owner is not None and owner["host"] == HOST:
        if not Path(owner["lock"]).is_file():  # a worker takes its lock away when it ends
            return True
        try:
            with FileLock(owner["lock"], timeout=0):
                return True
        except Timeout:
            return False
    seen = trial.user_attrs.get("alive", trial.datetime_start.timestamp())
    return time.time() - seen > plan.grace


@contextmanager
def owning(study: Study, plan: Plan) -> Iterator[tuple[dict[str, str], "Beats"]]:
    """What a worker is known by while it lives: a lock that the system takes from the dead, and a beating heart."""
    path = plan.locks / f"worker-{uuid.uuid4().hex}.lock"
    beats = Beats(study, plan.grace / 4)
    try:
        with FileLock(path):
            yield {"host": HOST, "lock": str(path)}, beats
    finally:
        beats.stop()
        path.unlink(missing_ok=True)


class Beats:
    """A thread that says every so many seconds that the worker of a trial lives, for starters on other machines."""

    def __init__(self, study: Study, every: float) -> None:
        self.study, self.every = study, every
        self.trial: int | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._end.wait(self.every):
            if (trial := self.trial) is not None:
                try:
                    self.study._storage.set_trial_user_attr(trial, "alive", time.time())
                except optuna.exceptions.UpdateFinishedTrialError:
                    continue  # it was told in between

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()
