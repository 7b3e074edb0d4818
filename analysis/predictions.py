"""What theory predicts beside what was measured: the section of a report, from results/<ablation>/predictions.

The points are measured when a crossing ends and kept with its results; here they are counted, drawn and told.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from analysis import look, plots, words
from analysis.files import Unreadable
from analysis.page import Block, Fold, Heading, Picture, Source, Strong, Table, text
from analysis.words import number

FOLDER = "predictions"
NUMBERS = ("x", "predicted", "measured", "error", "tolerance")
MOST = 24  # points in a table; of more only those that do not hold are listed
ABOUT = (
    "Closed forms beside what this project's code does. A measurement with sampling noise holds within 4 standard "
    "errors of its prediction, one without within the tolerance that stands beside it. None of this is about the runs "
    "above, and none of it enters a verdict."
)


class Part(NamedTuple):
    """One prediction. about: what is known of it, as its file or the question says it. points: columns panel, line, x,
    predicted, measured, error, tolerance, holds; none where it was not measured. why: it was not, or empty."""

    name: str
    about: Mapping[str, Any]
    points: pd.DataFrame
    why: str


def read(ablation: Path, recorded: Mapping[str, Mapping[str, Any]], budget: str) -> list[Part]:
    """The parts that the question names, in its order, with what was measured. ablation: results/<name>."""
    return [_part(ablation / FOLDER, name, given, budget) for name, given in recorded.items()]


def _part(folder: Path, name: str, given: Mapping[str, Any], budget: str) -> Part:
    about, table = folder / f"{name}.yaml", folder / f"{name}.csv"
    if not about.is_file():
        asked = given.get("budgets", [budget])
        why = "" if budget in asked else f"at budget {budget} it is not; it is at {', '.join(asked)}"
        return Part(name, given, pd.DataFrame(), why or "the crossing has not come to its end")
    try:
        known = yaml.safe_load(about.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise Unreadable(about, error) from None
    if not isinstance(known, dict):
        raise Unreadable(about, f"it holds a {type(known).__name__}, not names with values")
    if "error" in known or not table.is_file():
        return Part(name, known, pd.DataFrame(), known.get("error") or f"{table.name} is not there")
    try:
        points = pd.read_csv(table, dtype=str, keep_default_na=False)
        points[list(NUMBERS)] = points[list(NUMBERS)].astype(float)
        points = points.assign(holds=points.holds.eq("yes"))
    except (ValueError, KeyError, AttributeError) as error:
        raise Unreadable(table, error) from None
    return Part(name, known, points, "")


def drawn(parts: Sequence[Part], ablation: Path, vector: bool = True) -> dict[str, str]:
    """Draw and save the figure of every part that was measured -> part -> path within the ablation's folder."""
    files = {}
    for part in parts:
        if len(part.points):
            figure = plots.predicted(part.points, part.about["x"], part.about["y"])
            look.save(figure, ablation / "figures", f"predicted_{part.name}", vector)
            files[part.name] = f"figures/predicted_{part.name}.png"
    return files


def section(parts: Sequence[Part], files: Mapping[str, str]) -> list[Block]:
    """What theory predicts. files: of `drawn`."""
    if not parts:
        return []
    blocks: list[Block] = [Heading("What theory predicts"), text(ABOUT)]
    for part in parts:
        about = part.about
        source = [" (", *words.linked(str(about["paper"])), ")"] if about.get("paper") else []
        law = f"{about['says'][:1].upper()}{about['says'][1:]}".rstrip(".")
        blocks += [Heading(part.name.replace("_", " ").capitalize(), 3), text(law, *source, ".")]
        missing = [text(Strong("Not measured"), f": {part.why}.")]
        blocks += _found(part, files[part.name]) if len(part.points) else missing
    return blocks


def _found(part: Part, file: str) -> list[Block]:
    points, about = part.points, part.about
    rows = points if len(points) <= MOST else points[~points.holds]
    commit = str(about.get("commit", ""))[:12] or "not recorded"
    return [
        text(Strong(f"{headline(points)}."), f" {worst(points, about)}"),
        Picture(file, caption(points, about)),
        *([_table(rows, about)] if len(rows) else []),
        Fold(
            "how it was measured",
            [
                text(f"Measured in {about.get('cpu_seconds')} CPU seconds, at commit {commit}, with"),
                Source(yaml.safe_dump(about["measure"], sort_keys=False, allow_unicode=True).strip(), "yaml"),
            ],
        ),
    ]


def headline(points: pd.DataFrame) -> str:
    """36 of 42 points hold"""
    return f"{int(points.holds.sum())} of {len(points)} points hold"


def worst(points: pd.DataFrame, about: Mapping[str, Any]) -> str:
    """The point that uses up most of its tolerance, in a sentence."""
    row = max(points.to_dict("records"), key=used)
    line = ", ".join(filter(None, [row["panel"], row["line"]]))
    return (
        f"Worst: {line} at {_quantity(about['x'])} {row['x']:g}: predicted {number(row['predicted'])}, measured "
        f"{number(row['measured'])}, {number(used(row), 2)} of its tolerance of {number(row['tolerance'])}."
    )


def used(row: Mapping[str, Any]) -> float:
    """Difference over tolerance; above 1 a prediction does not hold. Infinite where a number is missing."""
    gap = abs(row["measured"] - row["predicted"])
    if math.isnan(gap):
        return math.inf
    return gap / row["tolerance"] if row["tolerance"] else (math.inf if gap else 0.0)


def caption(points: pd.DataFrame, about: Mapping[str, Any]) -> str:
    noisy = " with ±2 standard errors" if points.error.gt(0).any() else ""
    ringed = " A ring marks what does not hold." if not points.holds.all() else ""
    what = f"{_quantity(about['y'])} against {_quantity(about['x'])}"
    return f"{what[:1].upper()}{what[1:]}. Lines: predicted; markers: measured{noisy}.{ringed}"


def _quantity(axis: Mapping[str, Any]) -> str:
    """Of "beta, reward per nat" what comes before the unit."""
    return axis["label"].partition(",")[0]


def _table(rows: pd.DataFrame, about: Mapping[str, Any]) -> Table:
    head = ["panel", "line", about["x"]["label"], "predicted", "measured", "standard error", "tolerance", "holds"]
    return Table(
        head,
        [
            [
                row["panel"],
                row["line"],
                f"{row['x']:g}",
                number(row["predicted"], 4),
                number(row["measured"], 4),
                number(row["error"]) if row["error"] else "–",
                number(row["tolerance"]),
                "yes" if row["holds"] else Strong("no"),
            ]
            for row in rows.to_dict("records")
        ],
        main=1,
    )
