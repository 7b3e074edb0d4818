"""The `predictions` of an ablation, measured at the end of its crossing and kept beside its results.

results/<name>/predictions/<part>.csv holds the points, <part>.yaml what they are and how they were measured. A part
whose settings have been measured already is not measured again; one that raises is written down as not measured, and
loses no other.
"""

import csv
import functools
import io
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from hydra.utils import get_object, instantiate

from ablations import build, identity, tracking
from ablations.contradictions import Refused
from ablations.knobs.call import call, needs
from ablations.predictions.points import Point

FOLDER = "predictions"
COLUMNS = (*Point._fields, "holds")
NEEDED, OPTIONAL = ("says", "paper", "x", "y", "measure"), ("budgets", "sizes")
SHOWN = ("says", "paper", "x", "y")  # words, which may be written better without measuring again
AXIS = {"x": {"label", "log"}, "y": {"label", "log", "shared"}}
OFFERED = {"results"}  # what a measure may ask for: the results folder, for the base policies in it

Predictions = Mapping[str, Mapping[str, Any]]


def refuse(predictions: Predictions, budget: str) -> None:
    """Raise Refused for a part that could not be measured, before any run has started."""
    for name, given in predictions.items():
        where = f"predictions.{name}"
        if not name.isidentifier():
            raise Refused(f"{where} names its files; use letters, digits and underscores for the name of a part.")
        if missing := [key for key in NEEDED if key not in given]:
            raise Refused(
                f"{where} has no {', '.join(missing)}; a part needs {', '.join(NEEDED)}, and may have "
                f"{', '.join(OPTIONAL)}."
            )
        if unknown := sorted({*given} - {*NEEDED, *OPTIONAL}):
            allowed = ", ".join((*NEEDED, *OPTIONAL))
            raise Refused(f"{where} has {', '.join(unknown)}; it may have {allowed}. Correct the spelling.")
        for axis, allowed in AXIS.items():
            if "label" not in given[axis] or not {*given[axis]} <= allowed:
                raise Refused(
                    f"{where}.{axis} has {', '.join(given[axis])}; it needs a label with its unit, and may have "
                    f"{', '.join(sorted(allowed))}."
                )
        if is_due(given, budget):
            _refuse_measure(f"{where}.measure", given["measure"])


def _refuse_measure(where: str, measure: Mapping[str, Any]) -> None:
    if "_target_" not in measure or not measure.get("_partial_"):
        raise Refused(f"{where} needs a _target_, a function that yields points, and _partial_: true.")
    settings = {key: value for key, value in measure.items() if not key.startswith("_")}
    try:
        wanted = needs(functools.partial(get_object(measure["_target_"]), **settings))
    except ImportError:
        raise Refused(f"{where}: {measure['_target_']} cannot be imported. Correct its name.") from None
    except TypeError as error:
        raise Refused(f"{where}: {error}") from None
    if strange := sorted({*wanted} - OFFERED):
        raise Refused(f"{where} does not set {', '.join(strange)}; write every number of a measurement in the yaml.")


def is_due(given: Mapping[str, Any], budget: str) -> bool:
    """Whether a part is measured at this budget; one that names none is measured at all."""
    return budget in given.get("budgets", [budget])


def listed(folder: Path, predictions: Predictions, budget: str) -> str:
    """What a crossing would measure, one line per part. folder: results/<name>."""
    states = {
        name: "there" if _there(folder, name, given) else "to be measured" if is_due(given, budget) else "not measured"
        for name, given in predictions.items()
    }
    lines = [
        f"prediction {name}: {state}" + (f" at budget={budget}" if state == "not measured" else "")
        for name, state in states.items()
    ]
    return "\n".join(lines)


def measure(results: Path, folder: Path, predictions: Predictions, budget: str) -> int:
    """Measure and write every part that is due and not there yet -> how many raised. folder: results/<name>."""
    torch.set_num_threads(1)  # the tensors are tiny, and sums are then the same bits on any machine
    raised = 0
    for name, given in predictions.items():
        if _there(folder, name, given):
            _write_words(folder, name, given)
        elif is_due(given, budget):
            raised += not _measured(results, folder, name, given)
    return raised


def _measured(results: Path, folder: Path, name: str, given: Mapping[str, Any]) -> bool:
    began, points, error = time.process_time(), [], ""
    print(f"prediction {name}: ...", flush=True)
    try:
        function = instantiate(given["measure"], _convert_="all")
        points = list(call(function, {"results": results}))
        if not points:
            raise ValueError(f"{given['measure']['_target_']} yielded no point; a prediction needs one or more.")
    except Exception as caught:  # whatever it is, it must not cost the other parts or the report; it is kept and told
        traceback.print_exc()
        points, error = [], " ".join(f"{type(caught).__name__}: {caught}".split())
    seconds = round(time.process_time() - began, 1)
    about = {key: given[key] for key in SHOWN} | {
        "hash": identity.digest(given["measure"]),
        "commit": tracking.git_commit(build.PACKAGE),
        "cpu_seconds": seconds,
        "points": len(points),
        "hold": sum(point.holds for point in points),
        **({"error": error} if error else {}),
        "measure": dict(given["measure"]),
    }
    _write(folder, name, about, points)
    print(f"prediction {name}: {counted(points) if points else f'not measured: {error}'} ({seconds} CPU seconds)")
    return not error


def counted(points: Sequence[Point]) -> str:
    return f"{sum(point.holds for point in points)} of {len(points)} points hold"


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / FOLDER / f"{name}.csv", folder / FOLDER / f"{name}.yaml"


def _read(folder: Path, name: str) -> dict[str, Any]:
    about = _files(folder, name)[1]
    return yaml.safe_load(about.read_text(encoding="utf-8")) if about.is_file() else {}


def _there(folder: Path, name: str, given: Mapping[str, Any]) -> bool:
    """Whether just this was measured, and did not raise."""
    about = _read(folder, name)
    same = about.get("hash") == identity.digest(given["measure"])
    return same and "error" not in about and _files(folder, name)[0].is_file()


def _write(folder: Path, name: str, about: Mapping[str, Any], points: Sequence[Point]) -> None:
    table, words = _files(folder, name)
    table.parent.mkdir(parents=True, exist_ok=True)
    words.unlink(missing_ok=True)  # until the points are there, nothing says that they are
    table.unlink(missing_ok=True)
    if points:
        table.write_text(as_csv(points), encoding="utf-8")
    _replace(words, about)


def _write_words(folder: Path, name: str, given: Mapping[str, Any]) -> None:
    about = _read(folder, name)
    said = {key: given[key] for key in SHOWN}
    if about | said != about:
        _replace(_files(folder, name)[1], about | said)


def _replace(file: Path, about: Mapping[str, Any]) -> None:
    aside = file.with_suffix(".part")
    text = yaml.safe_dump(dict(about), sort_keys=False, allow_unicode=True, width=120)
    aside.write_text(text, encoding="utf-8")
    aside.replace(file)


def as_csv(points: Sequence[Point]) -> str:
    """One line per point, numbers as Python prints them so that nothing is lost."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in points:
        writer.writerow([*point[:2], *map(float, point[2:]), "yes" if point.holds else "no"])
    return out.getvalue()
