"""Runners that stand in for training: they write what a run writes, from a formula, in milliseconds.

    accuracy(step) = 1 - (log10(lr) + 3)^2 / 10 - noise, where seed and learning rate decide the noise

A run is told what to do by its config, so that a forked worker and a launcher's job do the same.
"""

import json
import math
import os
import random
import signal
import time
import traceback
from pathlib import Path

from optuna.storages import JournalStorage, RDBStorage

from ablations import build, crossing, identity
from ablations.search.stop import Stopped

STEPS = 3


def curve(config) -> list[float]:
    """Accuracy after each step."""
    lr, seed = config["optimizer"]["lr"], config["seed"]
    noise = random.Random(f"{lr} {seed}").gauss(0, 0.05)
    end = 1 - (math.log10(lr) + 3) ** 2 / 10 + noise
    return [end * step / STEPS for step in range(STEPS + 1)]


def by(values, sleep: float = 0.0):
    """A runner whose curve is values(config); what it raises is left as a run would leave it."""

    def run(cfg, overrides, watch=None) -> str:
        config = build.plain(cfg)
        folder = crossing.cell_of(config, overrides, Path(identity.results_folder())).folder
        told = folder / "status.json"
        if told.is_file() and json.loads(told.read_text())["state"] == "complete":
            return "complete"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "tries.txt", "a") as tries:
            tries.write(f"{os.getpid()}\n")
        state, reason = "complete", ""
        try:
            with open(folder / "journal.jsonl", "w") as journal:
                for step, value in enumerate(values(config)):
                    row = {"step": step, "accuracy/heldout": value}
                    journal.write(json.dumps(row) + "\n")
                    journal.flush()
                    time.sleep(sleep)
                    if watch is not None:
                        watch(row)
        except Stopped as stop:
            state, reason = "pruned", str(stop)
        except ArithmeticError as error:
            (folder / "traceback.txt").write_text(traceback.format_exc())
            state, reason = "failed", f"{type(error).__name__}: {error}"
        told.write_text(json.dumps({"state": state, "reason": reason}))
        return state

    return run


def grid_place(config) -> int:
    """0, 1, 2, ... of a grid of learning rates, by size."""
    return sorted(GRID).index(config["optimizer"]["lr"])


GRID = [0.0001, 0.0003684, 0.001357, 0.005]  # search.space.lr.points=4


def one_is_nan(config) -> list[float]:
    return [0.1, math.nan if grid_place(config) == 1 else 0.5]


def all_are_nan(config) -> list[float]:
    return [0.1, math.nan]


def one_is_infinite(config) -> list[float]:
    return [0.1, math.inf if grid_place(config) == 1 else 0.5]


def two_raise(config) -> list[float]:
    if grid_place(config) in (1, 2):
        raise ZeroDivisionError(f"lr {config['optimizer']['lr']}")
    return [0.1, 0.5]


def the_second_is_zero(config) -> list[float]:
    """Four good curves and one that stays at 0."""
    return [0.1] + [0.0 if config["optimizer"]["lr"] in ZERO else 0.5 + step / 100 for step in range(20)]


ZERO: set[float] = set()


def lucky(config) -> list[float]:
    """rl-baselines3-zoo#469: one seed of a point was once at .9; every other seed and step says .2."""
    return [0.0, 0.1, 0.9, 0.2] if config["seed"] == 0 else [0.0, 0.1, 0.2, 0.2]


def deadly(config) -> list[float]:
    """Kills its process at the sixth cell, once: the file `killed` says that it has."""
    flag = Path(identity.results_folder()) / "killed"
    flag.parent.mkdir(parents=True, exist_ok=True)
    with open(flag, "a+") as count:
        count.write(".")
        count.seek(0)
        if len(count.read()) == 6:
            os.kill(os.getpid(), signal.SIGKILL)
    return curve(config)


def always_deadly(config) -> list[float]:
    """Kills whoever tries the second point of the grid."""
    if grid_place(config) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [0.1, 0.5]


def levels(config) -> list[float]:
    """The smaller the learning rate, the better, with every seed."""
    return [0.1, 0.9 - 0.2 * grid_place(config) - config["seed"] / 100]


def flat(config) -> list[float]:
    """Twenty steps at one height: the smaller the learning rate, the higher."""
    return [0.1] + [1 - 100 * config["optimizer"]["lr"]] * 20


def rescaled_curve(config) -> list[float]:
    """Accuracy by the step that is taken: under the constant a tenth of the learning rate."""
    step = config["optimizer"]["lr"] * (0.1 if config["aggregate"]["_target_"].endswith("constant") else 1)
    noise = random.Random(config["seed"]).gauss(0, 0.05)
    return [0.1, 0.8 - 0.2 * (math.log10(step) + 3.6) ** 2 + noise]


rescaled = by(rescaled_curve)
synthetic = by(curve)
two_levels = by(levels)
nan, nothing_but_nan, infinite, raising = by(one_is_nan), by(all_are_nan), by(one_is_infinite), by(two_raise)
zero, luck, killing, always_killing = by(the_second_is_zero), by(lucky), by(deadly), by(always_deadly)
slow, slower, level = by(curve, sleep=0.03), by(curve, sleep=0.5), by(flat)


# --- searches for tests ----------------------------------------------------------------------------------------------


def command(runner: str, *arguments: str, search: str = "lr") -> list[str]:
    """A command line of a small search with a runner of this file."""
    given = {text.partition("=")[0] for text in arguments}
    small = {"confirm_seeds": 2, "compare_default": "false", "machine.tracking": "none"}
    small = [f"{key}={value}" for key, value in small.items() if key not in given]
    return [f"search={search}", f"search.runner._target_=searching.{runner}", *small, *arguments]


def opened(url: str, folder: Path):
    """The storage of a search, opened as a user would."""
    if url == "journal":
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

        path = str(folder / "study.journal")
        if not Path(path).is_file():
            raise KeyError(path)
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    return RDBStorage(url, skip_table_creation=True)
