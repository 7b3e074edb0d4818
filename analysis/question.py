"""The question of an ablation and its claims, as the crossing wrote them down at its start."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.axes import COSTS
from analysis.files import Unreadable, yaml_of
from analysis.load import Stored, value, within

GREATER, LESS, EQUAL_TO, IDENTICAL = "greater", "less", "equal", "identical"
EXPECTATIONS = (GREATER, LESS, EQUAL_TO, IDENTICAL)
NEEDED = ("says", "metric", "window", "compare", "expect")
STEP = "step"
AGAINST = (STEP, *COSTS)
PARTS = {"claims": list, "figures": list, "cells": list, "equal_by_construction": list}
PARTS |= {"placebo": dict, "predictions": dict}
OPTIONAL = ("where", "margin", "paper", "at", "written")


class BadClaim(ValueError):
    """An entry under `claims` that cannot be judged as it stands, or an ablation.yaml that cannot be read."""


class Claim(NamedTuple):
    """compare: knob -> (value of x, value of y), the difference is x - y. window: first and last step, both included.
    expect: greater, less, equal, or identical (bit by bit). target: what the difference is compared with, 0 unless the
    claim expects a number. margin: in the metric's unit, a difference from the target inside it is a null; None where
    the claim has none. at: another metric -> (low, high), only the steps of the window at which a run is inside count
    (see `analysis.matched`). written: (commit, ISO date) at which the claim got its present form, empty if not known or
    if it was changed since the crossing wrote it down.
    """

    says: str
    metric: str
    window: tuple[int, int]
    compare: dict[str, tuple]
    where: dict
    expect: str
    margin: float | None
    paper: str
    at: dict[str, tuple[float, float]]
    target: float = 0.0
    written: tuple[str, str] = ("", "")


class Asked(NamedTuple):
    """A figure that a question asks for: metric y against x, the step or what training has cost (`axes.COSTS`)."""

    y: str
    x: str = STEP


class Question(NamedTuple):
    """results/<ablation>/ablation.yaml. cells: the runs the crossing consists of, each at least {hash, arm, seed};
    None: not said. placebo: knob -> value of the arm that can teach nothing, over which gains are stated. same: pairs
    of arms that are equal by construction, and why. ablation: its file in conf/ablation, whose name is not that of the
    folder for a replication. predictions: part -> its entry in that file (`analysis.predictions`)."""

    name: str
    question: str
    paper: str
    claims: list[Claim]
    figures: list[Asked]
    budget: str
    cells: list[dict] | None
    placebo: dict
    same: list[tuple[str, str, str]]
    ablation: str
    predictions: dict[str, dict]

    @property
    def command(self) -> str:
        """What runs the crossing, or the rest of it."""
        budget = f" budget={self.budget}" if self.budget not in ("", "paper") else ""
        return f"ablate ablation={self.ablation}{budget}"


def read_question(results: Path | str, ablation: str) -> Question:
    """The question and claims that the crossing left beside its results. Raises FileNotFoundError or BadClaim, with
    the file."""
    file = Path(results) / ablation / "ablation.yaml"
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no {file}; a crossing writes it when it starts. Run `ablate ablation={ablation}`."
        )
    content = _content(file, ablation)
    try:
        figures = [asked(given) for given in content.get("figures") or []]
    except BadClaim as error:
        raise BadClaim(f"{file}, figures: {error}") from None
    claims = []
    for number, given in enumerate(content.get("claims") or [], start=1):
        try:
            claims.append(claim(given))
        except BadClaim as error:
            raise BadClaim(f"{file}, claim {number}: {error}") from None
    return Question(
        ablation,
        content.get("question", ""),
        content.get("paper", ""),
        claims,
        figures,
        str(content.get("budget", "")),
        content.get("cells"),
        {key: value(wanted) for key, wanted in (content.get("placebo") or {}).items()},
        [(*each["arms"], each["why"]) for each in content.get("equal_by_construction") or []],
        str(content.get("ablation", ablation)),
        content.get("predictions") or {},
    )


def _content(file: Path, ablation: str) -> dict:
    """What the file holds, its parts in the form that the crossing gives them."""
    try:
        if not (content := yaml_of(file)):
            raise Unreadable(file, "it is empty")
        for key, kind in PARTS.items():
            if not isinstance(content.get(key) or kind(), kind):
                raise Unreadable(file, f"{key} is {content[key]!r:.60}, not a {kind.__name__}")
        for cell in content.get("cells") or []:
            if not isinstance(cell, dict) or {"hash", "arm", "seed"} - set(cell):
                raise Unreadable(file, f"cells has {cell!r:.60}, which lacks one of hash, arm and seed")
    except Unreadable as error:
        again = f"`ablate ablation={ablation}` writes it anew and skips the runs that are complete"
        raise BadClaim(f"{error}; {again}.") from None
    return content


def asked(given: object) -> Asked:
    """An entry of `figures`: a metric, or {y: metric, x: step or a cost}. Raises BadClaim."""
    if isinstance(given, str):
        return Asked(given)
    if not isinstance(given, Mapping) or set(given) != {"x", "y"} or not isinstance(given["y"], str):
        raise BadClaim(f"{given} is no figure; it must be a METRIC, or {{y: METRIC, x: {', '.join(AGAINST)}}}.")
    if given["x"] not in AGAINST:
        raise BadClaim(f"x is {given['x']!r} for {given['y']}; it must be one of {', '.join(AGAINST)}.")
    return Asked(given["y"], given["x"])


def claim(given: Mapping) -> Claim:
    """A claim from its yaml entry. Raises BadClaim: what was given, what is allowed."""
    if not isinstance(given, Mapping):
        raise BadClaim(f"it is {given!r}; a claim needs {', '.join(NEEDED)} and may have {', '.join(OPTIONAL)}.")
    if missing := [key for key in NEEDED if key not in given]:
        raise BadClaim(
            f"it has no {', '.join(missing)}; a claim needs {', '.join(NEEDED)} and may have {', '.join(OPTIONAL)}."
        )
    if unknown := [key for key in given if key not in NEEDED + OPTIONAL]:
        raise BadClaim(
            f"{', '.join(map(str, unknown))} is not part of a claim; it may have {', '.join(NEEDED + OPTIONAL)}."
        )
    expect, target, margin = *_expected(given["expect"]), given.get("margin")
    if (margin is None and expect == EQUAL_TO) or (margin is not None and not (_number(margin) and margin > 0)):
        raise BadClaim(
            f"margin is {margin!r}; it must be a number above 0 in the metric's unit, and `expect: equal` needs one."
        )
    where = {key: value(wanted) for key, wanted in (given.get("where") or {}).items()}
    at = given.get("at") or {}
    if not isinstance(at, Mapping) or not all(map(_band, at.values())):
        raise BadClaim(f"at is {at}; it must name bands as {{metric: [low, high]}} with low < high.")
    return Claim(
        given["says"],
        given["metric"],
        _window(given["window"]),
        _compared(given["compare"]),
        where,
        expect,
        margin,
        str(given.get("paper", "")),
        {metric: tuple(band) for metric, band in at.items()},
        target,
        _written(given),
    )


def _written(given: Mapping) -> tuple[str, str]:
    """(commit, date), both empty if the claim is not the one that was written down with them."""
    written = given.get("written") or {}
    said = {key: part for key, part in given.items() if key != "written"}
    checksum = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]
    if written.get("form", checksum) != checksum:
        return "", ""
    return str(written.get("commit", "")), str(written.get("date", ""))


def _expected(expect: object) -> tuple[str, float]:
    """(what, the number): a number is an equality with it."""
    if _number(expect):
        return EQUAL_TO, float(expect)
    if expect not in EXPECTATIONS:
        raise BadClaim(f"expect is {expect!r}; it must be one of {', '.join(EXPECTATIONS)}, or a number.")
    return str(expect), 0.0


def _number(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)


def _band(given: object) -> bool:
    """Either end may be infinite."""
    numbers = isinstance(given, Sequence) and all(isinstance(end, int | float) for end in given)
    return numbers and len(given) == 2 and given[0] < given[1]


def _window(window: object) -> tuple[int, int]:
    if not (
        isinstance(window, Sequence)
        and len(window) == 2
        and all(isinstance(s, int) and not isinstance(s, bool) for s in window)
        and window[0] <= window[1]
    ):
        raise BadClaim(
            f"window is {window}; it must be [first, last], two steps with first <= last (both are included)."
        )
    return tuple(window)


def _compared(compare: object) -> dict[str, tuple]:
    if not (
        isinstance(compare, Mapping) and compare and all(isinstance(v, list) and len(v) == 2 for v in compare.values())
    ):
        raise BadClaim(f"compare is {compare}; it must name the two arms as {{knob: [x, y]}}.")
    pairs = {key: (value(pair[0]), value(pair[1])) for key, pair in compare.items()}
    if "seed" in pairs or all(x == y for x, y in pairs.values()):
        raise BadClaim(f"compare is {compare}; it must name two arms that differ in a knob other than the seed.")
    return pairs


def of_the_crossing(stored: Stored, question: Question) -> tuple[Stored, int]:
    """Only the runs that the crossing consists of, if it says which; and how many others the store has under this
    name."""
    return (stored, 0) if question.cells is None else within(stored, [str(cell["hash"]) for cell in question.cells])
