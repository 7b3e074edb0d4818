"""A crossing: the cells of `ablate ablation=X` or `ablate -m ...`, before they start and after they end.

Hydra composes and launches the cells (`conf/hydra/launcher`); each cell records its own outcome in its folder, so
that one that fails stops no other. What is here runs once, in the process that the user started.
"""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from ablations import build, identity, provenance, tracking
from ablations.contradictions import Refused, refuse, refuse_unwritable
from ablations.inert import equal_by_construction


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


STARTED: list[Crossing] = []  # the crossing that this process is running, if it is one


class Started(Callback):
    """Hydra's hook before the cells are launched: refuses contradictions in any cell, then writes down what is going
    to run."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        try:
            STARTED.append(start(config))
        except Refused as error:
            sys.exit(f"ablate: {error}")
        if config.machine.progress and sys.stderr.isatty():
            threading.Thread(target=watch, args=(STARTED[0], config.steps), daemon=True).start()


def start(config: DictConfig) -> Crossing:
    """Compose every cell, refuse what contradicts itself, create the store and the parent run, and write
    results/<name>/ablation.yaml."""
    results = Path(identity.results_folder())
    refuse_unwritable(str(results))
    cells: dict[str, Cell] = {}
    arms: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}  # (seed, base) -> arm -> config
    for overrides in cell_overrides(config):
        cfg = compose("config", overrides)
        resolved = build.plain(cfg)
        refuse(resolved)
        build.knobs(cfg)
        cell = cell_of(resolved, overrides, results)
        cells.setdefault(cell.hash, cell)
        arms.setdefault((cell.seed, cell.choices.get("base", "")), {})[cell.arm] = resolved
    crossing = Crossing(resolved["name"], results, list(cells.values()), resolved["machine"]["tracking"])
    same = equal_by_construction(next(iter(arms.values())))
    for one, other, why in same:
        print(f"warning: {one} and {other} are equal by construction: {why}", file=sys.stderr, flush=True)
    record(crossing, resolved, same)
    if (uri := tracking.store_uri(results, crossing.tracking)) is not None:
        tracking.ensure_store(uri, crossing.name, results)
        tracking.parent_run(uri, crossing.name)
    done = sum(state(cell.folder)["state"] == "complete" for cell in crossing.cells)
    print(
        f"{crossing.name}: {len(crossing.cells)} runs, {done} complete already; results in {results / crossing.name}",
        flush=True,
    )
    return crossing


def in_crossing() -> bool:
    """Whether this process runs a cell that Hydra launched, rather than a single run."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def cell_overrides(config: DictConfig) -> list[list[str]]:
    """The override lists of all cells, as Hydra's own sweeper will make them."""
    swept = [f"{key}={text}" for key, text in (config.hydra.sweeper.params or {}).items()]
    parsed = OverridesParser.create().parse_overrides([*swept, *config.hydra.overrides.task])
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]


def cell_of(resolved: Mapping[str, Any], overrides: Sequence[str], results: Path) -> Cell:
    """The cell that a resolved config and its overrides name."""
    hashed, choices = identity.config_hash(resolved), identity.swept(overrides)
    folder = results / resolved["name"] / "runs" / identity.slug(choices, hashed)
    return Cell(hashed, identity.arm(choices), str(resolved["seed"]), folder, choices)


def record(crossing: Crossing, resolved: Mapping[str, Any], same: Sequence[tuple[str, str, str]]) -> None:
    """Copy the question and its claims beside the results, with the cells they are about and the arms that cannot
    differ."""
    kept = {
        key: resolved[key]
        for key in ("question", "paper", "claims", "figures", "budget", "placebo")
        if resolved.get(key) is not None
    }
    if "claims" in kept:
        kept["claims"] = provenance.dated(kept["claims"], build.CONF / "ablation" / f"{crossing.name}.yaml")
    kept["cells"] = [{"hash": c.hash, "arm": c.arm, "seed": c.seed, **c.choices} for c in crossing.cells]
    if same:
        kept["equal_by_construction"] = [{"arms": [one, other], "why": why} for one, other, why in same]
    folder = crossing.results / crossing.name
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(OmegaConf.create(kept), folder / "ablation.yaml")


def state(folder: Path) -> dict[str, str]:
    """{"state", "reason"} of a run's folder; "not started" if nothing is there."""
    try:
        return json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {"state": "not started", "reason": ""}


def watch(crossing: Crossing, steps: int, every: float = 2.0) -> None:
    """A bar over all cells' steps, read from their journals, until the process ends. The cells show none of their
    own.
    """
    total = len(crossing.cells) * (steps + 1)
    with tqdm(total=total, desc=crossing.name, unit="row", leave=False) as bar:
        while bar.n < total:
            bar.update(sum(rows_written(cell.folder) for cell in crossing.cells) - bar.n)
            states = [state(cell.folder)["state"] for cell in crossing.cells]
            bar.set_postfix_str(", ".join(f"{states.count(name)} {name}" for name in sorted(set(states))))
            time.sleep(every)


def rows_written(folder: Path) -> int:
    """Rows of metrics that a run has put on disk."""
    journal = folder / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def table(crossing: Crossing) -> str:
    """arm, seed, state, reason, folder: one line per cell."""
    rows = [("arm", "seed", "state", "reason", "folder")]
    for cell in crossing.cells:
        now = state(cell.folder)
        rows.append((cell.arm, cell.seed, now["state"], now["reason"][:60], cell.folder.name))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def finish(crossing: Crossing) -> int:
    """Print the end table and write the report -> exit code, 0 only if every cell is complete."""
    from analysis import report  # its plotting libraries are needed only here

    states = [state(cell.folder)["state"] for cell in crossing.cells]
    complete = states.count("complete")
    print(f"\n{table(crossing)}\n{complete} of {len(states)} runs are complete.")
    tracking.catch_up(crossing.results, crossing.tracking, crossing.name)  # runs that ended while the store was away
    folder = crossing.results / crossing.name
    if complete and (folder / "ablation.yaml").is_file() and "claims" in OmegaConf.load(folder / "ablation.yaml"):
        print(report.report(crossing.results, crossing.name, allow_missing=complete < len(states)))
    if complete < len(states):
        print("The same command runs those that are missing; a failed run's folder holds its traceback.")
    return 0 if complete == len(states) else 1
