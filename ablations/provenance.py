"""Since which commit a claim has had its present form: what is written after the runs is no prediction."""

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError


def dated(claims: Sequence[Mapping[str, Any]], file: Path) -> list[dict[str, Any]]:
    """Each claim with `written`: {commit, date, form}, the first commit of the unbroken line up to the present one at
    which `file` has this very claim, and a checksum of the claim, by which a later change of it is seen.

    Commit and date are empty for a claim that differs from the committed one, or where there is no git or no such file.
    """
    since: list[tuple[str, str]] = [("", "")] * len(claims)
    unbroken = set(range(len(claims)))
    for commit, date in _history(file):
        then = _claims_at(commit, file)
        unbroken = {place for place in unbroken if dict(claims[place]) in then}
        if not unbroken:
            break
        for place in unbroken:
            since[place] = (commit, date)
    return [
        {**claim, "written": {"commit": commit, "date": date, "form": form(claim)}}
        for claim, (commit, date) in zip(claims, since, strict=True)
    ]


def form(claim: Mapping[str, Any]) -> str:
    """A checksum of what a claim says, whatever the order of its parts (`analysis.question` computes the same)."""
    return hashlib.sha256(json.dumps(dict(claim), sort_keys=True, default=str).encode()).hexdigest()[:16]


def _history(file: Path) -> list[tuple[str, str]]:
    """(commit, ISO date) of every commit that changed the file, the latest first."""
    lines = _git(file.parent, "log", "--format=%H %cI", "--", file.name).splitlines()
    return [tuple(line.split(" ", 1)) for line in lines]


def _claims_at(commit: str, file: Path) -> list[dict[str, Any]]:
    try:
        content = OmegaConf.create(_git(file.parent, "show", f"{commit}:./{file.name}"))
        return OmegaConf.to_container(content, resolve=False).get("claims") or []
    except (YAMLError, OmegaConfBaseException, AttributeError):  # a commit at which the file was no question yet
        return []


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return ""
    return done.stdout if done.returncode == 0 else ""
