"""Who settles the trials: processes of this machine, or jobs of a launcher (Ray, Slurm, ...).

Workers meet only in the study. Each opens it for itself, so that none has another's connections.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from ablations import isolation
from ablations.search import confirm, loop, mirror
from ablations.search import plan as plans
from ablations.search import study as studies
from ablations.search.cells import Cells
from ablations.search.plan import Plan

FORKS = sys.platform == "linux"  # cheap, and safe here: the process that starts workers never computes
LOG = "workers.log"
SEARCH, CONFIRM = "search", "confirm"  # the two parts of a search that workers do


def do(part: str, plan: Plan, place: int) -> None:
    """One worker's share: trials until the budget is spent, or every n-th run on fresh seeds."""
    torch.set_num_threads(1)
    study = studies.joined(plan)
    if part == SEARCH:
        loop.work(study, plan, Cells(plan), mirror.Trials(plan))
    else:
        confirm.train(plan, confirm.jobs(plan, study)[place :: plan.workers], Cells(plan))


# --- processes of this machine ---------------------------------------------------------------------------------------


def here(part: str, plan: Plan) -> None:
    """n processes, until all have ended. A process that dies is a matter for the caller, who counts what is left."""
    log = plan.folder / ".search" / LOG
    running = [started(do, part, plan, place, log=log) for place in range(plan.workers)]
    try:
        for process in running:
            process.join()
    finally:  # Ctrl-C: nothing goes on behind the user's back
        for process in running:
            process.terminate()
            process.join()


def started(function: Callable, *arguments: Any, log: Path | None = None) -> BaseProcess:
    """function(*arguments) in a process of its own, which ends with this one."""
    sys.stdout.flush()
    context = multiprocessing.get_context("fork" if FORKS else "spawn")
    process = context.Process(target=_inside, args=(os.getpid(), log, function, *arguments))
    process.start()
    return process


def apart(function: Callable, *arguments: Any) -> int:
    """The same, waited for -> exit code. For what leaves connections behind that a later fork must not have."""
    process = started(function, *arguments)
    process.join()
    return process.exitcode


def _inside(parent: int, log: Path | None, function: Callable, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the starter, which ends the workers
    if FORKS:
        isolation.end_with(parent)
    if log is not None:
        to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(to, 1)
        os.dup2(to, 2)
    try:
        function(*arguments)
    except BaseException:  # a fault of this project, or of the storage: into the log, and not lost
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


# --- jobs of a launcher -----------------------------------------------------------------------------------------------


def launched(part: str, plan: Plan, cfg: DictConfig, arguments: Sequence[str]) -> None:
    """n jobs through Hydra's launcher, until all have ended."""
    HydraConfig.instance().set_config(cfg)
    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=job, config=cfg)
    search, runs, _ = plans.parted(arguments)
    shares = [[*search, *runs, f"+search.job={{part:{part},place:{place}}}"] for place in range(plan.workers)]
    launcher.launch(shares, initial_job_idx=0)


def job(cfg: DictConfig) -> None:
    """What a launcher runs: the search is read again from the overrides of the job."""
    overrides = [text for text in HydraConfig.get().overrides.task if not text.startswith("+search.job=")]
    plan, _ = plans.read(overrides)
    share = OmegaConf.to_container(cfg.search.job)
    do(share["part"], plan, share["place"])
