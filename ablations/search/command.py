"""`ablate-search search=NAME`: search, confirm on fresh seeds, write, report. The same command goes on after a kill."""

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import optuna
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from optuna import Study
from optuna.trial import TrialState

from ablations import build
from ablations.contradictions import Refused
from ablations.search import confirm, cost, mirror, progress, workers, written
from ablations.search import plan as plans
from ablations.search import study as studies
from ablations.search.cells import Cells
from ablations.search.plan import Plan

USAGE = """ablate-search search=NAME [KEY=VALUE ...]

Searches the space conf/search/NAME.yaml, trains the best point on fresh seeds, and writes results/search_NAME/.
The same command goes on where an earlier one was interrupted, up to the same number of trials in all.

of the search   trials= seeds= confirm_seeds= workers= sampler_seed= storage=journal|URL
                sampler=tpe|random|grid|qmc|gp  pruner=none|median|hyperband|successive_halving|wilcoxon
                window=last|best|mean_of_last  search.objective.metric= search.space.lr.low= ... (conf/search/common)
of every run    as for `ablate`: scale=none steps=30 name=my_search ...
"""
INTERRUPTED = 130  # exit code, as a shell has it for Ctrl-C

warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def cli(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `ablate-search`."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    build.register_resolvers()
    try:
        with initialize_config_dir(str(build.CONF), version_base=None):
            plan, cfg = plans.read(arguments)
            code = conducted(plan, _starter(plan, cfg, arguments))
    except (Refused, ValueError, HydraException, OmegaConfBaseException) as error:
        sys.exit(f"ablate-search: {error}")
    sys.exit(code)


def _starter(plan: Plan, cfg: DictConfig, arguments: Sequence[str]) -> Callable[[str], None]:
    """Who does a part of the search: processes of this machine, unless a launcher was chosen."""
    if cfg.hydra.runtime.choices["hydra/launcher"] == "local":
        return partial(workers.here, plan=plan)
    return partial(workers.launched, plan=plan, cfg=cfg, arguments=arguments)


def conducted(plan: Plan, start: Callable[[str], None]) -> int:
    """The whole search -> exit code: 0, 1 if a run failed, 130 if it was interrupted."""
    study = studies.begin(plan)
    studies.requeue(study, plan)
    print(told(plan, len(studies.settled(study)), studies.waiting(study)), flush=True)
    workers.apart(mirror.prepare, plan)
    try:
        if not searched(plan, study, start):
            return 1
        confirmed = _confirmed(plan, study, start)
    except KeyboardInterrupt:
        return _interrupted(plan, study)
    written.write(plan, study, confirmed)
    workers.apart(mirror.catch_up, plan)
    return _finished(plan, study, confirmed)


def searched(plan: Plan, study: Study, start: Callable[[str], None]) -> bool:
    """Settle trials until the budget is spent -> whether there is a point to confirm. Workers that die are replaced, as
    long as that settles something."""
    with progress.watching(plan, study):
        while (before := len(studies.settled(study))) < plan.budget:
            studies.dispose(study)
            start(workers.SEARCH)
            studies.requeue(study, plan, deaths=True)
            if len(studies.settled(study)) == before and not studies.waiting(study):
                if not studies.running(study):
                    break
                _wait_for_others(plan, study)
    done = studies.settled(study)
    written.write(plan, study, [])
    if len(done) < plan.budget:
        print(
            f"The workers ended after {len(done)} of {plan.budget} trials; {plan.locks / workers.LOG} says why. "
            f"The same command goes on: {plan.command}",
            flush=True,
        )
        return False
    if confirm.best(study) is None:
        print(f"None of the {len(done)} trials is complete, so there is no best point:\n{_failures(study)}", flush=True)
        workers.apart(mirror.catch_up, plan)
        return False
    return True


def _wait_for_others(plan: Plan, study: Study, every: float = 1.0) -> None:
    """Until no other start of this search has a trial in hands: here, or on another machine with the same storage."""
    trials = ", ".join(map(str, studies.running(study)))
    print(f"waiting for trial {trials}, which other processes have; Ctrl-C leaves them alone", flush=True)
    while studies.running(study) and not studies.waiting(study):
        time.sleep(every)
        studies.requeue(study, plan)


def _confirmed(plan: Plan, study: Study, start: Callable[[str], None]) -> list[confirm.Confirmed]:
    jobs = confirm.jobs(plan, study)
    cells = Cells(plan)
    there = confirm.read(plan, jobs, cells.folder)
    if left := sum(one.state != "complete" for one in there):
        best = confirm.best(study)
        seeds = f"{plan.fresh[0]} to {plan.fresh[-1]}"
        print(f"\ntrial {best.number} is the best; {left} runs on fresh seeds {seeds}", flush=True)
        studies.dispose(study)
        start(workers.CONFIRM)
        there = confirm.read(plan, jobs, cells.folder)
    return there


def told(plan: Plan, done: int, lost: Sequence[int], confirms: bool = True) -> str:
    """What is said before the start: how many trials, where, what is there already, and what it will cost."""
    what = f"{plan.name}: {plan.budget} trials of {', '.join(plan.space.distributions)}"
    if plan.budget < plan.trials:
        what += f" (there are no more points than that; {plan.trials} were asked for)"
    lines = [what + (f", {done} settled already" if done else "") + f"; results in {plan.folder}"]
    if lost:
        lines.append(f"goes on with {len(lost)} interrupted: trial {', '.join(map(str, lost))}")
    lines.append(cost.sentence(plan, done, confirms))
    return "\n".join(lines)


def _failures(study: Study) -> str:
    failed = [trial for trial in studies.settled(study) if trial.state == TrialState.FAIL]
    return "\n".join(f"  trial {trial.number}: {trial.user_attrs.get('reason', 'not told why')}" for trial in failed)


def _interrupted(plan: Plan, study: Study) -> int:
    studies.requeue(study, plan)
    done, best = studies.settled(study), confirm.best(study)
    so_far = f"; the best so far is trial {best.number}, search score {best.value:.4g}" if best else ""
    print(
        f"\nInterrupted after {len(done)} of {plan.budget} trials{so_far}. What is finished is kept; the same command "
        f"goes on:\n{plan.command}",
        flush=True,
    )
    return INTERRUPTED


def reported(plan: Plan) -> str:
    """Write the report and its figures -> what the terminal shows."""
    from analysis import searches  # its plotting libraries are needed only here

    return searches.report(plan.results, plan.name)


def _finished(plan: Plan, study: Study, confirmed: Sequence[confirm.Confirmed]) -> int:
    print(f"\n{reported(plan)}", flush=True)
    settled = studies.settled(study)
    failed = sum(trial.state == TrialState.FAIL for trial in settled)
    if failed:
        print(f"\n{failed} of {len(settled)} trials failed:\n{_failures(study)}", flush=True)
    lost = [one for one in confirmed if one.state != "complete"]
    for one in lost:
        print(f"{one.label}, fresh seed {one.seed}: {one.state} ({one.reason})", flush=True)
    print(f"\nThe best point again: {written.rerun(plan, confirm.best(study))}", flush=True)
    return int(bool(failed or lost))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cli()
