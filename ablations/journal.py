"""What a run leaves in its folder, whatever becomes of the stores that copy it: journal, timings, examples, commit.

Seconds are measured, not computed, so they are kept out of the journal, in timing.jsonl: one config and one seed then
give the same journal, byte for byte.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TIMING = "seconds/"


class Journal:
    """Append-only rows of a run: journal.jsonl, and timing.jsonl for the keys that start with `seconds/`.

    Rows at steps >= start that an earlier attempt left are dropped, and with them a line that a kill left half-written:
    the attempt that resumes at `start` writes them again. Keys stand in alphabetical order after `step`, and floats are
    written so that they read back bit for bit.
    """

    def __init__(self, folder: Path | str, start: int = 0) -> None:
        self.path, self.timing = Path(folder) / "journal.jsonl", Path(folder) / "timing.jsonl"
        for path in (self.path, self.timing):
            _rewrite(path, [row for row in read_rows(path) if row["step"] < start])
        self._last = max((row["step"] for row in self.rows()), default=None)

    def write(self, row: Mapping[str, Any]) -> None:
        """Put a step on disk. Raises ValueError for a step that is not after the last one, OSError with the file."""
        step = row["step"]
        if self._last is not None and step <= self._last:
            raise ValueError(
                f"{self.path}: step {step} comes after step {self._last}. A journal has one row per step, in order; to "
                f"write a step again, open it with Journal(folder, start={step})."
            )
        timings = {key: value for key, value in row.items() if key.startswith(TIMING)}
        _append(self.path, {key: value for key, value in row.items() if key not in timings})
        if timings:
            _append(self.timing, {"step": step, **timings})
        self._last = step

    def rows(self) -> list[dict[str, Any]]:
        """The rows on disk, without timings."""
        return read_rows(self.path)


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """The complete rows of a .jsonl file; none without a file. A last line that a kill left half-written is no row."""
    try:
        lines = Path(path).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number} is not JSON ({error}). Delete the run's folder and give its command again."
            ) from None
    return rows


def merged_rows(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of a run's journal, each with its timings."""
    timings = {row["step"]: row for row in read_rows(Path(folder) / "timing.jsonl")}
    return [{**row, **timings.get(row["step"], {})} for row in read_rows(Path(folder) / "journal.jsonl")]


def status(folder: Path | str) -> dict[str, str]:
    """{"state", "reason"} of a run's folder; a run that has not said how it ended is running, and one whose file is
    damaged has failed: its command trains it again."""
    path = Path(folder) / "status.json"
    if not path.is_file():
        return {"state": "running", "reason": ""}
    try:
        told = json.loads(path.read_text())
        return {"state": str(told["state"]), "reason": str(told["reason"])}
    except (ValueError, TypeError, KeyError) as error:
        return {"state": "failed", "reason": f"{path} cannot be read: {type(error).__name__}: {error}"}


def below(folder: Path | str, results: Path | str) -> str:
    """Where a run lies, from the results folder on, which may move."""
    folder, results = Path(folder).absolute(), Path(results).absolute()
    return str(folder.relative_to(results) if folder.is_relative_to(results) else folder)


def write_examples(path: Path | str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with any keys as a parquet file, whole or not at all; a key that a row lacks is null there."""
    import pyarrow
    from pyarrow import parquet

    columns = dict.fromkeys(key for row in rows for key in row)
    aside = _aside(Path(path))
    parquet.write_table(pyarrow.table({key: [row.get(key) for row in rows] for key in columns}), aside)
    aside.replace(path)


def git_commit(folder: Path | str) -> str:
    """The commit of the checkout around `folder`, `+changes` if tracked files differ; "unknown" outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return "unknown"
    return commit + ("+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def git_commit_date(folder: Path | str) -> str:
    """When that commit was made, ISO 8601; "unknown" outside a checkout."""
    return _git(folder, "show", "--no-patch", "--format=%cI", "HEAD") or "unknown"


def _git(folder: Path | str, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:                                # no git on this machine
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _line(row: Mapping[str, Any]) -> bytes:
    for key, value in row.items():
        if not isinstance(value, (int, float)):
            raise TypeError(
                f"The metric {key} is a {type(value).__name__}; a row holds ints and floats. "
                "Use .item() where the number is made."
            )
    ordered = {"step": row["step"], **{key: row[key] for key in sorted(row)}}
    return (json.dumps(ordered, separators=(",", ":")) + "\n").encode()


def _append(path: Path, row: Mapping[str, Any]) -> None:
    line = _line(row)
    try:
        with open(path, "ab") as file:
            file.write(line)
    except OSError as error:                                 # a full disk alone would not say which file
        raise OSError(error.errno, error.strerror, str(path)) from error


def _rewrite(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    aside = _aside(path)
    aside.write_bytes(b"".join(map(_line, rows)))
    aside.replace(path)


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}")
