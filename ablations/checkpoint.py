"""Exact resume: what a run was at a step, on disk so that a kill at any moment leaves a whole one.

A checkpoint is one file, `checkpoints/step-000010.ckpt`: a line with the SHA-256 of what follows, then a torch archive
of plain values and tensors. It is written aside, forced to the disk and renamed, so a file with that name is complete
unless the disk itself damaged it, which the checksum tells. Only tensors and plain values are read back
(`weights_only`), so that opening a file that somebody else made cannot run code.
"""

import hashlib
import io
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

MAGIC = b"ablations checkpoint 1 sha256 "
KEPT = 2  # the last one, and the one before it in case the disk damaged the last


class Damaged(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong with it."""


def save(folder: Path | str, step: int, values: Mapping[str, Any]) -> Path:
    """Write `values` (tensors, numbers, text, lists, tuples, mappings) as the checkpoint of a step -> its file.

    Older ones beyond the last two are removed, after the new one is in place. Raises OSError with the file's name, and
    TypeError for values that `load` would not read back, by their classes; then what was there before is untouched.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(dict(values), buffer)
    path = folder / f"step-{step:06d}.ckpt"
    buffer.seek(0)
    if strange := get_unsafe_globals_in_checkpoint(buffer):
        raise TypeError(
            f"{path} cannot hold {', '.join(sorted(strange))}: only tensors, numbers, text, lists, tuples and mappings "
            "are read back. Let the state_dict of what a run remembers consist of those."
        )
    content = buffer.getbuffer()
    aside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(aside, "wb") as file:
            file.write(MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n")
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        _flush_names(folder)
    except OSError as error:  # a full disk alone would not say which file
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    kept = [path, *(other for other in newest_first(folder) if other != path)][:KEPT]
    for other in folder.iterdir():
        if other not in kept:
            other.unlink()
    return path


def load(path: Path | str) -> dict[str, Any]:
    """The values of one checkpoint. Raises Damaged if the file is not what was written."""
    content = Path(path).read_bytes()
    head, found, body = content.partition(b"\n")
    if not found or not head.startswith(MAGIC):
        raise Damaged(f"{path} does not begin like a checkpoint of this program.")
    if hashlib.sha256(body).hexdigest().encode() != head[len(MAGIC) :]:
        raise Damaged(f"{path} is damaged: its content has another checksum than when it was written.")
    try:
        # On the CPU whatever device it was saved from, which may not be here; whoever loads it puts it in its place.
        return torch.load(io.BytesIO(body), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise Damaged(f"{path} holds more than tensors and plain values: {str(error).splitlines()[0]}") from None


def latest(folder: Path | str, misfit: Callable[[Mapping[str, Any]], str]) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that can be gone on from -> its values, or None: from the beginning; and what is wrong
    with every newer one.

    misfit(values) says why a run cannot go on from them, or nothing.
    """
    faults: list[str] = []
    for path in newest_first(folder):
        try:
            values = load(path)
        except Damaged as error:
            faults.append(str(error))
            continue
        if not (why := misfit(values)):
            return values, faults
        faults.append(f"{path} is not used: {why}.")
    return None, faults


def newest_first(folder: Path | str) -> list[Path]:
    """The finished checkpoints of a folder."""
    return sorted(Path(folder).glob("step-*.ckpt"), reverse=True)


def saved_step(folder: Path | str) -> int:
    """The step of the newest finished checkpoint, by its name; 0 without one."""
    return next((int(path.stem.rpartition("-")[2]) for path in newest_first(folder)), 0)


def _flush_names(folder: Path) -> None:
    """Force the rename to the disk too, where a folder can be opened for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
