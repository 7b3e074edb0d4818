"""What the user sees while workers settle trials: a line per trial, the best so far, and a bar if it is a terminal."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from optuna import Study
from optuna.trial import FrozenTrial
from tqdm import tqdm

from ablations.search import confirm
from ablations.search import study as studies
from ablations.search.mirror import STATES
from ablations.search.plan import Plan
from ablations.search.space import spelled

EVERY = 1.0  # seconds


@contextmanager
def watching(plan: Plan, study: Study) -> Iterator[None]:
    """Tell of every trial that is settled meanwhile."""
    end = threading.Event()
    told = {trial.number for trial in studies.settled(study)}
    with tqdm(total=plan.budget, initial=len(told), desc=plan.name, unit="trial", disable=None, leave=False) as bar:
        thread = threading.Thread(target=_watch, args=(plan, study, told, bar, end), daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def _watch(plan: Plan, study: Study, told: set[int], bar: tqdm, end: threading.Event) -> None:
    last = False
    while not last:
        last = end.wait(EVERY)  # one more look after the end
        settled = studies.settled(study)
        best = confirm.best(study)
        for trial in settled:
            if trial.number not in told:
                told.add(trial.number)
                bar.update()
                bar.write(_line(plan, trial, best, len(told)), file=sys.stdout)
        if best is not None:
            bar.set_postfix_str(f"best {best.value:.4g} (trial {best.number})")
        sys.stdout.flush()


def _line(plan: Plan, trial: FrozenTrial, best: FrozenTrial | None, count: int) -> str:
    """A trial and the best at this moment, by their search scores."""
    point = ", ".join(f"{key.rpartition('.')[2]} {spelled(value)}" for key, value in trial.params.items())
    state = STATES[trial.state]
    result = f"{trial.value:.4g}" if state == "complete" else f"{state} ({trial.user_attrs.get('reason', '')})"
    so_far = f"; best {best.value:.4g} (trial {best.number})" if best is not None else ""
    return f"{count}/{plan.budget}  trial {trial.number}: {result}  [{point}]{so_far}"
