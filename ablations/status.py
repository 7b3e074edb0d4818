"""What became of an ablation's runs, told from their folders alone, at any time and from any process.

ablate-status NAME              one line per run: arm, seed, state, reason, folder
ablate-clean NAME               what takes space and is not needed any more; `yes=true` removes it
ablate-clean NAME failed=true   whole runs that failed or diverged, too
"""

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from ablations import identity, journal
from ablations.journal import read_rows

CHECKPOINTS = "checkpoints"  # in a run's folder
LOCK = ".lock"  # likewise; held while a process runs it
ENDED = ("complete", "failed", "diverged")


class Line(NamedTuple):
    """A run of an ablation, as the table shows it."""

    arm: str
    seed: str
    folder: Path | None  # None: it has none yet


def status(folder: Path) -> dict[str, str]:
    """{"state", "reason"} of a run's folder: "not started", "running", "complete", "failed" or "diverged".

    A run that was killed could not say so: it claims to run, and nobody holds its lock. It has failed.
    """
    if not (folder / "status.json").is_file():
        return {"state": "not started", "reason": ""}
    told = journal.status(folder)
    try:
        if told["state"] == "running":
            try:
                with FileLock(folder / LOCK, timeout=0):
                    return _killed(folder)
            except Timeout:
                return {"state": "running", "reason": f"after step {last_step(folder)}"}
    except ValueError as error:  # one damaged file must not take the table of all runs away
        return {"state": "failed", "reason": f"{folder}: a file cannot be read: {error}"}
    return told


def _killed(folder: Path) -> dict[str, str]:
    reason = f"killed after step {last_step(folder)}; the same command goes on from its last checkpoint"
    return {"state": "failed", "reason": reason}


def settle(folder: Path) -> None:
    """Write down what a run that was killed could not say. Under its lock: another launch may take it up just now."""
    if (told := status(folder))["state"] != "failed":
        return
    with contextlib.suppress(Timeout), FileLock(folder / LOCK, timeout=0):
        if journal.status(folder)["state"] == "running":
            write_status(folder, **told)


def write_status(folder: Path, state: str, reason: str = "") -> None:
    """Say what became of a run: whole or not at all."""
    aside = folder / f"status.json.{os.getpid()}"
    aside.write_text(json.dumps({"state": state, "reason": reason}) + "\n")
    aside.replace(folder / "status.json")


def last_step(folder: Path) -> str:
    """The last step in a run's journal, "none" before the first."""
    rows = read_rows(folder / "journal.jsonl")
    return str(rows[-1]["step"]) if rows else "none"


def folder_of(runs: Path, hashed: str) -> Path | None:
    """The folder of the run with this hash, whatever its readable part says."""
    return next(iter(sorted(runs.glob(f"*-{hashed[:8]}"))), None)


def lines(results: Path, name: str) -> list[Line]:
    """The runs that results/<name>/ablation.yaml lists. Raises FileNotFoundError if there is no such ablation."""
    record = results / name / "ablation.yaml"
    if not record.is_file():
        known = sorted(path.parent.name for path in results.glob("*/ablation.yaml"))
        raise FileNotFoundError(
            f"there is no ablation {name} in {results}, only {', '.join(known) or 'nothing yet'}. "
            f"Start it with `ablate ablation={name}`."
        )
    cells: Any = OmegaConf.to_container(OmegaConf.load(record))["cells"]
    return [Line(c["arm"], str(c["seed"]), folder_of(results / name / "runs", c["hash"])) for c in cells]


def table(runs: Sequence[Any]) -> str:
    """arm, seed, state, reason, folder: one line per run (each with .arm, .seed and .folder), and how many there are
    of each state. What all arms share stands once above, because the table is about their differences."""
    shared = set.intersection(*({*run.arm.split()} for run in runs)) if runs else set()
    rows, states = [("arm", "seed", "state", "reason", "folder")], []
    for run in runs:
        now = status(run.folder) if run.folder else {"state": "not started", "reason": ""}
        states.append(now["state"])
        arm = " ".join(word for word in run.arm.split() if word not in shared) or "-"
        rows.append((arm, run.seed, now["state"], _short(now["reason"]), run.folder.name if run.folder else ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = [f"all runs: {' '.join(sorted(shared))}"] if shared else []
    text += ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    others = [f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != "complete"]
    text.append(f"{states.count('complete')} of {len(states)} runs are complete{''.join(f', {o}' for o in others)}.")
    return "\n".join(text)


def _short(reason: str, most: int = 90) -> str:
    return reason if len(reason) <= most else f"{reason[: most - 3]}..."


def status_cli(arguments: list[str] | None = None) -> None:
    """Entry point of `ablate-status`: exit code 0 if every run is complete, else 1."""
    (name,), _ = _read(arguments, "ablate-status", 1, ())
    try:
        found = lines(Path(identity.results_folder()), name)
    except FileNotFoundError as error:
        sys.exit(f"ablate-status: {error}")
    print(table(found))
    sys.exit(0 if all(run.folder and status(run.folder)["state"] == "complete" for run in found) else 1)


def clean_cli(arguments: list[str] | None = None) -> None:
    """Entry point of `ablate-clean`: show what can go, and with yes=true remove it."""
    (name,), chosen = _read(arguments, "ablate-clean", 1, ("failed", "yes"))
    results = Path(identity.results_folder())
    runs = results / name / "runs"
    if Path(name).name != name or name == ".." or not runs.is_dir():  # a path would lead to runs of other results
        known = ", ".join(sorted(path.parent.name for path in results.glob("*/runs"))) or "nothing yet"
        sys.exit(f"ablate-clean: there are no runs of {name} in {results}, only of {known}.")
    found = removable(runs, failed=chosen["failed"])
    for what, why in found:
        print(f"{_size(what) / 1e6:9.1f} MB  {why}  {what.relative_to(runs)}")
    total = f"{sum(_size(what) for what, _ in found) / 1e6:.1f} MB in {len(found)} places"
    if not chosen["yes"]:
        print(f"{total} can go; `ablate-clean {name}{' failed=true' * chosen['failed']} yes=true` removes them.")
        return
    gone = [what for what, _ in found if _remove(what, runs)]
    print(f"removed {len(gone)} of {len(found)} ({total}).")


def removable(runs: Path, failed: bool) -> list[tuple[Path, str]]:
    """(folder, why it can go): checkpoints of complete runs; with `failed`, whole runs that failed or diverged."""
    found = []
    for folder in sorted(path for path in runs.iterdir() if path.is_dir()):
        state = status(folder)["state"]
        if state == "complete" and (folder / CHECKPOINTS).is_dir():
            found.append((folder / CHECKPOINTS, "complete"))
        elif failed and state in ("failed", "diverged"):
            found.append((folder, state))
    return found


def _remove(what: Path, runs: Path) -> bool:
    """Unless a process has started to run it since."""
    folder = runs / what.relative_to(runs).parts[0]
    try:
        with FileLock(folder / LOCK, timeout=0):
            now = journal.status(folder)["state"]  # the list is older than the answer to it
            if what == folder and now == "complete":
                print(f"{what} is complete by now and stays.")
                return False
            shutil.rmtree(what)
    except Timeout:
        print(f"{what} is running again and stays.")
        return False
    return True


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read(arguments: list[str] | None, command: str, count: int, flags: Sequence[str]) -> tuple[list[str], dict]:
    """The words and the true/false settings of a command line; anything else ends the program with the usage."""
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for word in given if "=" not in word and not word.startswith("-")]
    chosen = dict.fromkeys(flags, False)
    strange = [word for word in given if word.startswith("-")]
    for word in (word for word in given if "=" in word):
        if match := re.fullmatch(rf"({'|'.join(flags) or '(?!)'})=(true|false)", word):
            chosen[match[1]] = match[2] == "true"
        else:
            strange.append(word)
    if strange or len(words) != count:
        usage = " ".join([command, *["NAME"] * count, *(f"[{flag}=true]" for flag in flags)])
        sys.exit(f"{command}: {', '.join(strange) or f'{len(words)} names'} given; it takes: {usage}")
    return words, chosen


if __name__ == "__main__":
    status_cli()
