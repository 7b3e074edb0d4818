"""`ablate-check vectors FOLDER`: cases computed by other trainers' code, computed again with the knobs and the loss that train here.

A case is a JSON file (tests/reference/README.md says what is in it). Its options become knobs through `ablations.vocabulary`; its
inputs become one batch; `ablations.grpo` does the rest. Three expectations are checked: `equal` (the outputs named in `compare` agree),
`differs` (those agree, and something else of the trainer's does not, because it is a fault; ours is finite) and `refused` (this code
refuses the input in a sentence).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ablations.contradictions import Refused
from ablations.replay import compute, numbers
from ablations.vocabulary import BadCase, Node

SCHEMA = 2
PER_TOKEN = ("advantages_token", "kl_token")  # compared where the mask is 1; everything else everywhere


class Verdict(NamedTuple):
    """What became of one case. difference: the largest |a - b| / max(1, |b|) of `output`, NaN where nothing was compared."""

    name: str
    passed: bool
    difference: float
    output: str
    tolerance: float
    sentence: str


def command(folder: str) -> int:
    """Check every *.json of the folder, print a line for each and the count. -> 0 if all passed, 1 if not, 2 without any case."""
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        what = "has no file *.json" if Path(folder).is_dir() else "is no folder"
        print(f"{folder} {what}; give a folder of reference cases, for example tests/reference.")
        return 2
    failed = 0
    for verdict in map(check, paths):
        failed += not verdict.passed
        print(line(verdict))
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed else 0


def line(verdict: Verdict) -> str:
    status = "passed" if verdict.passed else "FAILED"
    size = f"{verdict.difference:.1e} of {verdict.tolerance:.0e} {verdict.output}" if verdict.output else ""
    return f"{status}  {verdict.name}  {'  '.join(part for part in (size, verdict.sentence) if part)}"


def check(path: Path) -> Verdict:
    """Read, compute and judge one file. Whatever is wrong with the file or the computation is a failed case, never an exception."""
    name, tolerance = path.stem, float("nan")
    try:
        case = read(path)
        tolerance = case["verification"]["tol"].number()
        expected = case["expect"].pick({"equal": _equal, "differs": _differs, "refused": _refused})
        return expected(name, case, tolerance)
    except Refused as refusal:
        return Verdict(name, False, float("nan"), "", tolerance, f"{path}: refused: {refusal}")
    except BadCase as fault:
        return Verdict(name, False, float("nan"), "", tolerance, f"{path}: {fault}")
    except Exception as error:  # a broken knob must fail its cases and not hide the others; nothing is swallowed: it is printed and counted
        return Verdict(name, False, float("nan"), "", tolerance, f"{path}: {type(error).__name__}: {error}")


def read(path: Path) -> Node:
    """The file as a node whose errors name its keys. Raises BadCase where it is no JSON object of the schema."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadCase(f"it cannot be read as JSON ({error}); a case is one JSON object.") from None
    case = Node(content, "the case")
    if not isinstance(content, Mapping):
        raise case.bad("an object")
    case = Case(content)
    case["schema_version"].one_of(SCHEMA)
    for key in ("options", "inputs", "outputs"):
        if not isinstance(case[key].value, Mapping):
            raise case[key].bad("an object")
    return case


class Case(Node):
    """The top of a file, whose keys are named without a prefix."""

    def __init__(self, value: Mapping[str, Any]):
        super().__init__(value, "")

    def __getitem__(self, key: str) -> Node:
        return Node(self.value.get(key), key)


# --- the three expectations -------------------------------------------------------------------------------------------------------


def _equal(name: str, case: Node, tolerance: float) -> Verdict:
    ours, mask = compute(case)
    differences = _compared(case, ours, mask)
    if not differences:
        raise case["compare"].bad("names of outputs, at least one for a case that is expected to be equal")
    worst = _worst(differences)
    return _verdict(name, differences, worst, tolerance, "")


def _differs(name: str, case: Node, tolerance: float) -> Verdict:
    """The trainer's number is a fault: ours has to be finite, and not that number."""
    ours, mask = compute(case)
    differences = _compared(case, ours, mask)
    if infinite := sorted(key for key, value in ours.items() if not torch.isfinite(value).all()):
        raise BadCase(f"{', '.join(infinite)} computed here is not finite.")
    faulty = {key: case["outputs"][key] for key in case["outputs"].value if key in ours and key not in differences}
    gaps = {key: _difference(key, ours[key], node, mask) for key, node in faulty.items()}
    worst = _worst(differences) if differences else _worst(gaps) if gaps else ""
    if gaps and not any(gap > tolerance for gap in gaps.values()):
        return Verdict(name, False, max(gaps.values()), worst, tolerance, f"{', '.join(gaps)} agree with the trainer's fault")
    how = f"differs from the trainer in {_worst(gaps)} by {max(gaps.values()):.1e}" if gaps else "the trainer has no number"
    return _verdict(name, differences, worst if differences else "", tolerance, how)


def _refused(name: str, case: Node, tolerance: float) -> Verdict:
    try:
        compute(case)
    except Refused as refusal:
        return Verdict(name, True, float("nan"), "", tolerance, f"refused: {refusal}")
    return Verdict(name, False, float("nan"), "", tolerance, "computed, but it has to be refused")


def _compared(case: Node, ours: Mapping[str, Tensor], mask: Tensor | None) -> dict[str, float]:
    differences = {}
    for key in case["compare"].items():
        if key.value not in ours:
            raise key.bad(f"{', '.join(ours)} for these options")
        differences[key.value] = _difference(key.value, ours[key.value], case["outputs"][key.value], mask)
    return differences


def _difference(key: str, ours: Tensor, node: Node, mask: Tensor | None) -> float:
    """Largest |a - b| / max(1, |b|); infinite where one of the two is no finite number, or their shapes differ."""
    ours = ours.detach()
    if key == "loss" and ours.dim() == 1 and not isinstance(node.value, list):
        ours = ours.sum()  # several optimiser steps stated as one number
    theirs = numbers(node)
    if theirs.shape != ours.shape:
        return float("inf")
    if key in PER_TOKEN and mask is not None:
        ours, theirs = ours[mask], theirs[mask]
    gap = (ours - theirs).abs() / theirs.abs().clamp(min=1)
    return float(torch.nan_to_num(gap, nan=float("inf")).max()) if gap.numel() else 0.0


def _worst(differences: Mapping[str, float]) -> str:
    return max(differences, key=differences.__getitem__)


def _verdict(name: str, differences: Mapping[str, float], worst: str, tolerance: float, sentence: str) -> Verdict:
    difference = differences[worst] if differences else float("nan")
    wrong = [key for key, value in differences.items() if not value <= tolerance]
    if wrong:
        sentence = f"{', '.join(wrong)} not equal" + (f"; {sentence}" if sentence else "")
    return Verdict(name, not wrong, difference, worst, tolerance, sentence)
