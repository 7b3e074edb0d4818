"""A crossing: the cells of `ablate ablation=X` or `ablate -m ...`, before they start and after they end.

Hydra composes and launches the cells (`conf/hydra/launcher`); each cell records its own outcome in its folder, so
that one that fails stops no other. What is here runs once, in the process that the user started.
"""

import functools
import importlib.util
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from ablations import build, client, forecast, identity, isolation, journal, provenance, tracking
from ablations.contradictions import Refused, refuse, refuse_unwritable
from ablations.inert import equal_by_construction
from ablations.predictions import measured
from ablations.search import tuned
from ablations.spelling import canonical
from ablations.status import folder_of, settle, status, table


class Cell(NamedTuple):
    """One run of a crossing."""

    hash: str
    arm: str
    seed: str
    folder: Path
    choices: Mapping[str, str]


class Crossing(NamedTuple):
    """What the end of a crossing needs to know about its start."""

    name: str
    results: Path
    cells: list[Cell]
    tracking: str  # as in machine.tracking


SPLIT = BasicSweeper.split_arguments  # before it is told which cells are left
STARTED: list[Crossing] = []  # the crossing that this process is running, if it is one


class Started(Callback):
    """Hydra's hook before the cells are launched: refuses contradictions in any cell, then writes down what is going
    to run."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            crossing, left = start(config, open_cells(STARTED[-1]) if STARTED else None)
        except (Refused, ValueError) as error:
            sys.exit(f"ablate: {error}")
        except Exception as error:  # Hydra would warn of it, and launch cells that nobody keeps an account of
            traceback.print_exc()
            sys.exit(f"ablate: the crossing was not started: {type(error).__name__}: {error}")
        STARTED.append(crossing)
        if not left:
            sys.exit(0)
        # Hydra would launch every cell, a job in a queue for each that is complete, too; and before that compose every
        # cell once more, to see whether it can.
        # The class is not the imported one: Hydra loads its plugins itself, and by the time of this hook once more.
        sweeper = Plugins.instance().class_name_to_class[config.hydra.sweeper._target_]
        sweeper.split_arguments = staticmethod(lambda *_, **__: [left])
        sweeper.validate_batch_is_legal = lambda *_: None
        if config.machine.progress and sys.stderr.isatty():
            threading.Thread(target=watch, args=(crossing, config.steps), daemon=True).start()


def start(config: DictConfig, only: Set[str] | None = None) -> tuple[Crossing, list[list[str]]]:
    """Compose every cell, refuse what contradicts itself, create the store and the parent run, and write
    results/<name>/ablation.yaml -> the crossing, and the overrides of the cells to launch: those that are not complete
    (of `only` these hashes, if given).
    """
    results = Path(identity.results_folder())
    refuse_unwritable(str(results))
    cells: dict[str, Cell] = {}
    spelled: dict[str, list[str]] = {}
    configs: dict[str, Mapping[str, Any]] = {}
    arms: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}  # (seed, base) -> arm -> config
    _refuse_budget(config)
    if not tuned_arms(config):
        sys.exit(0)
    if not (given_cells := cell_overrides(config)):
        raise Refused(
            "The crossing has no cells: one of the swept keys has no value, or claimed_arms=true and no claim compares "
            "an arm of it. Give each key at least one value."
        )
    here = refuse_absent(config)
    for overrides, resolved in composed(given_cells, here):
        cell = cell_of(resolved, overrides, results)
        cells.setdefault(cell.hash, cell)  # two spellings of one choice are one cell
        spelled.setdefault(cell.hash, list(overrides))
        arms.setdefault((cell.seed, cell.choices.get("base", "")), {})[cell.arm] = resolved
        configs.setdefault(cell.hash, resolved)
    crossing = Crossing(resolved["name"], results, list(cells.values()), resolved["machine"]["tracking"])
    open_ = [cell.hash for cell in crossing.cells if status(cell.folder)["state"] != "complete"]
    predictions = resolved.get("predictions") or {}
    measured.refuse(predictions, resolved.get("budget", ""))
    if config.dry_run:
        left = [(configs[cell.hash], cell.folder) for cell in crossing.cells if cell.hash in open_]
        predicted = forecast.sentence(results, left, forecast.processes(config.hydra.launcher))
        there = measured.listed(results / crossing.name, predictions, resolved.get("budget", ""))
        print("\n".join(filter(None, [table(crossing.cells), predicted, there, "Nothing was started."])))
        sys.exit(0)
    same = equal_by_construction(next(iter(arms.values())))
    for one, other, why in same:
        print(f"warning: {one} and {other} are equal by construction: {why}", file=sys.stderr, flush=True)
    record(crossing, resolved, same, config.hydra.runtime.choices.get("ablation"))
    prepare_store(crossing)
    done = len(crossing.cells) - len(open_)
    print(
        f"{crossing.name}: {len(crossing.cells)} runs, {done} complete already; results in {results / crossing.name}",
        flush=True,
    )
    return crossing, [spelled[hashed] for hashed in open_ if only is None or hashed in only]


def _refuse_budget(config: DictConfig) -> None:
    """Raise Refused where an ablation has no crossing for the budget, or would write over that of another budget."""
    budgets = OmegaConf.to_container(config.get("crossing") or OmegaConf.create(), resolve=False)
    name = config.hydra.runtime.choices.get("ablation")
    if budgets and config.budget not in budgets:
        raise Refused(
            f"ablation={name} has no crossing for budget={config.budget}; it has {', '.join(budgets)}. Choose one of "
            f"them, or add crossing.{config.budget} to its file."
        )
    if config.claimed_arms and config.name == name:
        raise Refused(
            f"budget={config.budget} would write over the results of ablation={name}. Let its file say "
            f"`name: {name}${{beside}}`, or give another name=."
        )


def tuned_arms(config: DictConfig) -> bool:
    """Tune the arms that the crossing compares at their best -> whether all are tuned (a dry run trains nothing)."""
    cells = cell_overrides(config)
    if not any(map(tuned.keys_of, cells)):
        return True
    from ablations.search import arms  # it trains, and what trains needs this module

    return arms.tune(config, cells)


def prepare_store(crossing: Crossing) -> None:
    """Store, experiment and parent run before the cells ask for them all at once. In a process of its own: a database
    that is open here would be handed to every run that is forked from here, and SQLite does not survive that."""
    work = functools.partial(tracking.prepare, crossing.results, crossing.tracking, crossing.name)
    client.warm(crossing.tracking)
    isolation.apart(work) if isolation.POSSIBLE else work()


def refuse_absent(config: DictConfig) -> bool:
    """Raise Refused for a launcher that is not installed -> whether it runs the cells on this machine."""
    name, target = config.hydra.runtime.choices["hydra/launcher"], config.hydra.launcher._target_
    if importlib.util.find_spec(target.split(".")[0]) is None or not _found(target.rpartition(".")[0]):
        raise Refused(
            f"hydra/launcher={name} is not installed. Install its extra, "
            f'`pip install -c constraints.txt -e ".[{name.partition("_")[0]}]"`, or choose hydra/launcher=local.'
        )
    return name not in ("ray", "slurm")


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def composed(cells: Sequence[Sequence[str]], here: bool = True) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """(overrides, resolved config) of every cell; Refused for the first that contradicts itself.

    Cells that differ by their seed alone are composed once: composing costs a third of a second, and no file is chosen
    by a seed.
    """
    refuse_swept(cells)
    known: dict[tuple[str, ...], DictConfig] = {}
    for overrides in cells:
        seeds = [override for override in overrides if override.startswith("seed=")]
        shared = tuple(override for override in overrides if override not in seeds)
        if shared not in known:
            known[shared] = tuned.applied(compose("config", list(overrides)), overrides)
            build.knobs(known[shared])
        cfg = known[shared]  # told its seed each time: to copy it costs a tenth of a second
        for seed in seeds:
            cfg.seed = OverridesParser.create().parse_override(seed).value()
        resolved = build.plain(cfg)
        refuse(resolved, here)
        yield overrides, resolved


def refuse_swept(cells: Sequence[Sequence[str]]) -> None:
    """Raise Refused where cells differ in what belongs to the crossing as a whole."""
    given: dict[str, set[str]] = {}
    for override in (override.lstrip("+~") for overrides in cells for override in overrides if "=" in override):
        key, text = override.split("=", 1)
        given.setdefault(key, set()).add(text)
    for key, texts in given.items():
        if len(texts) > 1 and re.split(r"[./]", key)[0] in (*identity.OUTSIDE, "ablation"):
            raise Refused(
                f"{key} is swept ({', '.join(sorted(texts))}), but it belongs to a crossing as a whole: its cells "
                "start together, in one place. Give one command for each value."
            )


def open_cells(crossing: Crossing) -> set[str]:
    """Cells that nobody has an outcome of and nobody runs: not started, or lost with their worker."""
    lost = {c.hash for c in crossing.cells if journal.status(c.folder)["state"] == "running"}
    running = {c.hash for c in crossing.cells if status(c.folder)["state"] == "running"}
    return lost - running


def in_crossing() -> bool:
    """Whether this process runs a cell that Hydra launched, rather than a single run."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def given(overrides: Any) -> list[str]:
    """A list of overrides as the user typed them. Read item by item, OmegaConf would fill in `${seed}` with the seed of
    the process that reads it."""
    return OmegaConf.to_container(overrides, resolve=False) if OmegaConf.is_config(overrides) else list(overrides)


def cell_overrides(config: DictConfig) -> list[list[str]]:
    """The override lists of all cells: the product that Hydra's own sweeper makes of its params, then those of the
    entries of `also`, arms that stand beside a product (no KL beside estimators and places, a placebo)."""
    cells, keys = [], set(config.hydra.sweeper.params or {})
    for product in [config.hydra.sweeper.params or {}, *(config.get("also") or [])]:
        if set(product) != keys:
            raise Refused(
                f"also has an entry with {', '.join(product)}; the crossing sweeps {', '.join(sorted(keys))}. Give "
                "every entry a value for each of them, so that all runs can be paired."
            )
        swept = [f"{key}={text}" for key, text in product.items()]
        parsed = OverridesParser.create().parse_overrides([*swept, *given(config.hydra.overrides.task)])
        cells += SPLIT(parsed, max_batch_size=None)[0]
    return [cell for cell in cells if claimed(cell, config)] if config.get("claimed_arms") else cells


def claimed(cell: Sequence[str], config: DictConfig) -> bool:
    """Whether a cell belongs to an arm that some claim compares."""
    choices = {key: canonical(text) for key, text in identity.swept(cell).items()}
    return any(
        all(choices.get(key) == canonical(wanted) for key, wanted in arm.items())
        for claim in OmegaConf.to_container(config.claims, resolve=True)
        for side in (0, 1)
        for arm in [(claim.get("where") or {}) | {key: pair[side] for key, pair in claim["compare"].items()}]
    )


def cell_of(resolved: Mapping[str, Any], overrides: Sequence[str], results: Path) -> Cell:
    """The cell that a resolved config and its overrides name. A value is spelled in one way (1.0 as 1), and a run that
    is there under another readable name is the same run."""
    hashed = identity.config_hash(resolved)
    choices = {key: canonical(text) for key, text in identity.swept(overrides).items()}
    runs = results / resolved["name"] / "runs"
    folder = folder_of(runs, hashed) or runs / identity.slug(choices, hashed)
    return Cell(hashed, identity.arm(choices), str(resolved["seed"]), folder, choices)


def record(
    crossing: Crossing, resolved: Mapping[str, Any], same: Sequence[tuple[str, str, str]], ablation: str | None
) -> None:
    """Copy the question and its claims beside the results, with the cells they are about and the arms that cannot
    differ. ablation: its file in conf/ablation, whose name a replication's folder does not have."""
    kept = {
        key: resolved[key]
        for key in ("question", "paper", "claims", "figures", "budget", "placebo", "cost", "predictions")
        if resolved.get(key) is not None
    }
    if "claims" in kept:
        kept["claims"] = provenance.dated(kept["claims"], build.CONF / "ablation" / f"{ablation}.yaml")
    if ablation:
        kept["ablation"] = ablation
    kept["cells"] = [{"hash": c.hash, "arm": c.arm, "seed": c.seed, **c.choices} for c in crossing.cells]
    if same:
        kept["equal_by_construction"] = [{"arms": [one, other], "why": why} for one, other, why in same]
    folder = crossing.results / crossing.name
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"ablation.yaml.{os.getpid()}"
    OmegaConf.save(OmegaConf.create(kept), aside)
    aside.replace(folder / "ablation.yaml")  # whoever asks for the table meanwhile reads the old one whole


def watch(crossing: Crossing, steps: int, every: float = 2.0) -> None:
    """A bar over all cells' steps, read from their journals, until the process ends. The cells show none of their
    own.
    """
    total = len(crossing.cells) * (steps + 1)
    with tqdm(total=total, desc=crossing.name, unit="row", leave=False) as bar:
        while bar.n < total:
            bar.update(sum(rows_written(cell.folder) for cell in crossing.cells) - bar.n)
            states = [status(cell.folder)["state"] for cell in crossing.cells]
            bar.set_postfix_str(", ".join(f"{states.count(name)} {name}" for name in sorted(set(states))))
            time.sleep(every)


def rows_written(folder: Path) -> int:
    """Rows of metrics that a run has put on disk."""
    rows = folder / "journal.jsonl"
    return rows.read_bytes().count(b"\n") if rows.exists() else 0


def wait_for_others(crossing: Crossing, every: float = 1.0) -> None:
    """Until no other process runs a cell of this crossing: another launch of it, or jobs that outlived a launcher."""
    told = False
    while running := sum(status(cell.folder)["state"] == "running" for cell in crossing.cells):
        if not told:
            print(f"waiting for {running} runs that other processes have; Ctrl-C leaves them alone", flush=True)
        told = True
        time.sleep(every)


def reported(crossing: Crossing, allow_missing: bool) -> str:
    """The report's headline, or why there is none: the runs are kept whatever their report says."""
    from analysis import report  # its plotting libraries are needed only here
    from analysis.claims import BadClaim
    from analysis.load import Absent

    try:
        return report.report(crossing.results, crossing.name, allow_missing=allow_missing)
    except (Absent, BadClaim, report.IncompleteAblation) as error:
        again = f"`ablate-report {crossing.name}`"
        return f"There is no report: {error}\nThe runs are kept; {again} makes it once that is put right."


def finish(crossing: Crossing, wait: bool = True) -> int:
    """Print the end table, measure the predictions and write the report -> exit code, 0 only if every cell is complete
    and no prediction raised. wait: false after an interruption, when nothing long may begin."""
    if wait:
        wait_for_others(crossing)
    for cell in crossing.cells:  # what could not be said by a run that was killed
        settle(cell.folder)
    states = [status(cell.folder)["state"] for cell in crossing.cells]
    complete = states.count("complete")
    print(f"\n{table(crossing.cells)}")
    tracking.catch_up(crossing.results, crossing.tracking, crossing.name)  # runs that ended while the store was away
    folder, raised = crossing.results / crossing.name, 0
    asked = recorded(folder) if complete else {}
    if wait and asked.get("predictions"):
        raised = measured.measure(crossing.results, folder, asked["predictions"], asked.get("budget", ""))
    if "claims" in asked:
        print(reported(crossing, allow_missing=complete < len(states)))
    if complete < len(states):
        print("The same command runs those that are missing; a failed run's folder holds its traceback.")
    if raised:
        print("A prediction could not be measured; the same command tries it again.")
    return 0 if complete == len(states) and not raised else 1


def recorded(folder: Path) -> dict[str, Any]:
    """What the start of the crossing wrote down; empty if it did not come to that."""
    file = folder / "ablation.yaml"
    return OmegaConf.to_container(OmegaConf.load(file), resolve=False) if file.is_file() else {}
