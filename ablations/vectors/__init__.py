"""`ablate-check vectors FOLDER`: other trainers' numbers, computed again with the knobs and the loss that train here.

A case is a JSON file (tests/reference/README.md). Its options become knobs through `ablations.vocabulary`, its inputs
one batch, and `ablations.replay` runs that through `ablations.grpo`. Three expectations are checked: `equal`, the
outputs named in `compare` agree; `differs`, those agree, ours are all finite, and something else of the trainer's does
not agree, because it is a fault; `refused`, this code refuses the input in a sentence.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ablations.contradictions import Refused
from ablations.vectors.case import BadCase, Node, numbers, read
from ablations.vectors.replay import compute

PER_TOKEN = ("advantages_token", "kl_token")  # compared where the mask is 1; everything else everywhere
NAN = float("nan")


class Verdict(NamedTuple):
    """What became of one case. differences: largest |a - b| / max(1, |b|) of every output that had to agree."""

    name: str
    passed: bool
    differences: Mapping[str, float]
    tolerance: float
    sentence: str

    def __str__(self) -> str:
        parts = ["passed" if self.passed else "FAILED", self.name]
        if self.differences:
            worst = _worst(self.differences)
            parts.append(f"{self.differences[worst]:.1e} of {self.tolerance:.0e} ({worst})")
        return "  ".join([*parts, self.sentence] if self.sentence else parts)


class Disagrees(Exception):
    """The case is sound and our result is not what it expects; the message says how."""


def command(folder: str) -> int:
    """Check every *.json of the folder, print a line for each and the count. -> exit code 0, 1 failed, 2 no case."""
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        what = "has no file *.json" if Path(folder).is_dir() else "is no folder"
        print(f"{folder} {what}; give a folder of reference cases, for example tests/reference.")
        return 2
    failed = 0
    for verdict in map(check, paths):
        failed += not verdict.passed
        print(verdict)
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed else 0


def check(path: Path) -> Verdict:
    """Read, compute and judge one file. Whatever is wrong with the file or with our code fails the case."""
    differences: dict[str, float] = {}
    tolerance = NAN
    try:
        case = read(path)
        tolerance = case["verification"]["tol"].number()
        differences, sentence = case["expect"].pick(EXPECTATIONS)(case, tolerance)
    except (BadCase, Disagrees) as fault:
        return Verdict(path.stem, False, {}, tolerance, f"{path}: {fault}")
    except Refused as refusal:
        return Verdict(path.stem, False, {}, tolerance, f"{path}: refused, but not expected to be: {refusal}")
    except Exception as error:  # a broken knob fails its cases and does not hide the others; it is printed and counted
        return Verdict(path.stem, False, {}, tolerance, f"{path}: {type(error).__name__}: {error}")
    wrong = [name for name, size in differences.items() if not size <= tolerance]
    if wrong:
        sentence = f"{path}: {', '.join(wrong)} not equal"
    return Verdict(path.stem, not wrong, differences, tolerance, sentence)


def _equal(case: Node, tolerance: float) -> tuple[dict[str, float], str]:
    differences = _compared(case, *compute(case))
    if not differences:
        raise case["compare"].bad("a list of at least one output, in a case that is expected to be equal")
    return differences, ""


def _differs(case: Node, tolerance: float) -> tuple[dict[str, float], str]:
    """What is left out of `compare` is the trainer's fault: ours has to be finite, and not that number."""
    ours, mask = compute(case)
    differences = _compared(case, ours, mask)
    if infinite := [name for name, value in ours.items() if not torch.isfinite(value).all()]:
        raise Disagrees(f"{', '.join(infinite)} computed here is not finite")
    faulty = [name for name in case["outputs"].value if name in ours and name not in differences]
    gaps = {name: _difference(name, ours[name], case["outputs"][name], mask) for name in faulty}
    if not gaps and differences:
        raise Disagrees("all of the trainer's numbers are in `compare`, so nothing differs")
    if not gaps:
        return {}, "the trainer has no number to compare"
    if not gaps[_worst(gaps)] > tolerance:
        raise Disagrees(f"{', '.join(gaps)} agree with the trainer's, which is a fault")
    return differences, f"differs from the trainer by {gaps[_worst(gaps)]:.1e} ({_worst(gaps)})"


def _refused(case: Node, tolerance: float) -> tuple[dict[str, float], str]:
    try:
        compute(case)
    except Refused as refusal:
        return {}, f"refused: {refusal}"
    raise Disagrees("computed, but it has to be refused")


EXPECTATIONS = {"equal": _equal, "differs": _differs, "refused": _refused}


def _compared(case: Node, ours: Mapping[str, Tensor], mask: Tensor) -> dict[str, float]:
    names = [entry.one_of(*ours) for entry in case["compare"].items()]
    return {name: _difference(name, ours[name], case["outputs"][name], mask) for name in names}


def _difference(name: str, ours: Tensor, node: Node, mask: Tensor) -> float:
    """Largest |a - b| / max(1, |b|); infinite where one of the two is no finite number, or their shapes differ."""
    theirs = numbers(node)
    if name == "loss" and ours.dim() > theirs.dim():
        ours = ours.sum()  # the losses of several optimiser steps, stated as one number
    if theirs.shape != ours.shape:
        return float("inf")
    if name in PER_TOKEN:
        ours, theirs = ours[mask], theirs[mask]
    gap = (ours - theirs).abs() / theirs.abs().clamp(min=1)
    return float(torch.nan_to_num(gap, nan=float("inf")).max()) if gap.numel() else 0.0


def _worst(differences: Mapping[str, float]) -> str:
    return max(differences, key=differences.__getitem__)
