"""The rows of the table: what was predicted, what the training code did, and how far apart they may be."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

EXACT = 1e-10


class Row(NamedTuple):
    """One prediction. `because` says where the tolerance comes from."""

    id: str
    what: str
    predicted: float
    measured: float
    tolerance: float
    because: str

    @property
    def difference(self) -> float:
        return self.measured - self.predicted

    @property
    def passed(self) -> bool:
        return abs(self.difference) <= self.tolerance  # False for NaN


COLUMNS = ("id", "what", "predicted", "measured", "difference", "tolerance", "pass", "because")


def exact(
    id: str, what: str, predicted: Tensor | float, measured: Tensor | float, tolerance: float = EXACT, because: str = ""
) -> Row:
    """Two numbers, or two vectors of equal shape: then the entry in which they differ most stands for all."""
    pair = [torch.as_tensor(x, dtype=torch.float64).detach().flatten() for x in (predicted, measured)]
    if pair[0].numel() != pair[1].numel():
        raise ValueError(
            f"{id}: {pair[0].numel()} numbers were predicted and {pair[1].numel()} measured; compare equally many."
        )
    gap = (pair[1] - pair[0]).abs()
    gap = gap.nan_to_num(nan=math.inf)
    worst = int(
        torch.where(gap == gap.max(), pair[0].abs().nan_to_num(), -1.0).argmax()
    )  # of equal gaps the largest number
    numbers = [vector[worst].item() + 0.0 for vector in pair]  # no -0 in a table
    return Row(id, what, *numbers, tolerance, because or "rounding of float64")


def sampled(id: str, what: str, predicted: float, seeds: Sequence[float], spread: float | None = None) -> Row:
    """A mean over seeds, to be within 4 standard errors of the prediction.

    spread: standard deviation of one seed where theory gives it; else it is estimated from the seeds.
    """
    values = torch.tensor(seeds, dtype=torch.float64)
    source = "estimated from" if spread is None else "by theory, for"
    deviation = values.std().item() if spread is None else spread
    because = f"4 standard errors, {source} {len(seeds)} seeds"
    return Row(id, what, predicted, values.mean().item(), 4 * deviation / math.sqrt(len(seeds)), because)


def broken(id: str, error: Exception | str) -> Row:
    """A prediction that could not be measured: fails, and says why."""
    told = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return Row(id, " ".join(told.split()), math.nan, math.nan, EXACT, "could not be measured")


def header() -> str:
    return f"{'id':10} {'predicted':>13} {'measured':>13} {'difference':>11} {'tolerance':>9}        what"


def line(row: Row) -> str:
    """One line of the table for a terminal."""
    numbers = f"{row.predicted:13.7g} {row.measured:13.7g} {row.difference:11.2e} {row.tolerance:9.1e}"
    return f"{row.id:10} {numbers}  {'pass' if row.passed else 'FAIL'}  {row.what}"


def counted(rows: Sequence[Row]) -> str:
    failed = [row.id for row in rows if not row.passed]
    return f"{len(rows) - len(failed)} of {len(rows)} predictions hold" + (
        f"; not: {', '.join(failed)}" if failed else ""
    )


def as_csv(rows: Iterable[Row]) -> str:
    """One line per prediction, numbers as Python prints them so that nothing is lost."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        verdict = "yes" if row.passed else "no"
        writer.writerow(
            [row.id, row.what, row.predicted, row.measured, row.difference, row.tolerance, verdict, row.because]
        )
    return out.getvalue()


def as_markdown(rows: Sequence[Row], heading: str) -> str:
    """The report: what was checked, the count, and the table."""
    lines = [
        heading.strip(),
        "",
        f"**{counted(rows)}.**",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    for row in rows:
        numbers = f"{row.predicted:.7g} | {row.measured:.7g} | {row.difference:.1e} | {row.tolerance:.1e}"
        what = row.what.replace("|", "\\|")
        lines.append(f"| {row.id} | {what} | {numbers} | {'yes' if row.passed else '**no**'} | {row.because} |")
    return "\n".join(lines) + "\n"
