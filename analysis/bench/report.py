"""What `make bench` leaves behind: summary.csv, report.md and two figures."""

import datetime
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import matplotlib
import pandas as pd
from filelock import FileLock

from analysis.bench.measure import HERE, TRL, ratios
from analysis.bench.work import TRL_ROWS

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

SIZES = ("S", "M", "L")
WHAT = {"completion tokens": "limit", "answers per prompt": "group", "answers per batch": "answers"}
PARTS = [*(f"{size} {ends}" for size in SIZES for ends in ("fixed", "natural")), *WHAT]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main_table(cells: Mapping[tuple[str, str], list[dict]]) -> str:
    """One line per size and kind of ends."""
    header = ["size", "ends", "tokens a step", "seconds a step", "times TRL", "times TRL, dead groups skipped"]
    header += ["sampling, times generate", "share of the ceiling", "in sampling", "in the update", "peak MB", "TRL's"]
    lines = []
    for (size, ends), rows in cells.items():
        by, found = {row["who"]: row for row in rows}, ratios(rows)
        here = by[HERE]
        line = [size, ends, f"{here['tokens']:.0f}", f"{here['seconds']:.2f}", f"{found['times TRL']:.2f}"]
        line += [f"{found['times TRL, skipping']:.2f} ({found['skipped']:.0%} of the answers)"]
        line += [f"{found['times generate']:.2f}"]
        line += [f"{found[key]:.0%}" for key in ("share of the ceiling", "share in sampling", "share in the update")]
        lines.append([*line, f"{here['peak_mb']:.0f}", f"{by[TRL]['peak_mb']:.0f}"])
    return table(header, lines)


def growth_table(what: str, cells: list[list[dict]]) -> str:
    lines = []
    for rows in cells:
        by = {row["who"]: row for row in rows}
        here, theirs = by[HERE], by[TRL]
        grown = here["prompts"] * here["group"] if WHAT[what] == "answers" else here[WHAT[what]]
        line = [f"{grown:.0f}", f"{here['seconds']:.3f}", f"{1e6 * here['seconds'] / here['tokens']:.0f}"]
        line += [f"{theirs['seconds']:.3f}", f"{ratios(rows)['times TRL']:.2f}", f"{here['peak_mb']:.0f}"]
        lines.append([*line, f"{theirs['peak_mb']:.0f}"])
    return table([what, "seconds a step", "µs a token", "TRL's seconds", "times TRL", "peak MB", "TRL's"], lines)


def add(folder: Path, part: str, cells: Sequence[list[dict]], load: float) -> None:
    """Put the rows of one part in place of its earlier ones in summary.csv, and write the report of all that is there.

    So a part can be measured again alone, when the machine is quiet; every row has its day and the load average before
    it."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    file = folder / "summary.csv"
    fresh = [row | {"part": part, "day": f"{datetime.date.today()}", "load": load} for rows in cells for row in rows]
    with FileLock(folder / ".lock"):
        earlier = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=["part"])
        frame = pd.concat([earlier[earlier["part"] != part], pd.DataFrame(fresh).round(6)])
        frame = frame.sort_values("part", key=lambda parts: parts.map(PARTS.index), kind="stable")
        frame.to_csv(file, index=False)
        write(folder, pd.read_csv(file))


def _cells(frame: pd.DataFrame, part: str) -> list[list[dict]]:
    """The rows of a part, contenders of one work together; values that a contender does not have are left out."""
    records = frame[frame["part"] == part].to_dict("records")
    rows = [{key: value for key, value in row.items() if value == value} for row in records]
    keys = ("size", "ends", "prompts", "group", "limit")
    works = dict.fromkeys(tuple(row[key] for key in keys) for row in rows)
    return [[row for row in rows if tuple(row[key] for key in keys) == work] for work in works]


def write(folder: Path, frame: pd.DataFrame) -> None:
    """report.md and the figures, from the rows of summary.csv alone."""
    measured = [part for part in PARTS if (frame["part"] == part).any()]
    cells = {tuple(part.split()): _cells(frame, part)[0] for part in measured if part not in WHAT}
    grown = {part: _cells(frame, part) for part in measured if part in WHAT}
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "trl"))
    loads = ", ".join(f"{part} {frame.loc[frame['part'] == part, 'load'].iloc[0]:.1f}" for part in measured)
    text = f"""# What a step costs

{", ".join(sorted(set(frame["day"])))}, {platform.machine()}, one thread, {versions}.

One step samples, grades and updates: 32 prompts of 16 to 24 tokens (8 at size L) with 8 answers of at most 64 tokens.
Times are processor seconds, medians over rounds in which everyone had a turn. Ratios are of completion tokens per
second. The ceiling is the time of the model's matrix products alone, at the same tokens and shapes.

Load average of the machine before each part: {loads}. With others at work all absolute numbers are too high, and most
for what waits for memory.

"natural" answers end with a chance of about 1 in 48 per token, "fixed" ones never. TRL's trainer has the same weights,
prompts, rewards and optimiser, with its loss in pieces of {TRL_ROWS} answers. Peak memory is the resident memory of the
process, which holds everyone's model.

{main_table(cells)}

"""
    if absent := [part for part in PARTS if part not in measured]:
        text += f"Not measured yet: {', '.join(absent)}.\n\n"
    for what, parts in grown.items():
        text += f"## Growth with {what}, size S, fixed ends\n\n{growth_table(what, parts)}\n\n"
    figures = {"sizes": sizes_figure(cells)} if cells else {}
    figures |= {"growth": growth_figure(grown)} if grown else {}
    for name, figure in figures.items():
        figure.savefig(folder / "figures" / f"{name}.png", dpi=150, bbox_inches="tight", metadata={"Software": None})
        text += f"![{name}](figures/{name}.png)\n\n"
    plt.close("all")
    (folder / "report.md").write_text(text + "Made by `make bench`; every number is in summary.csv.\n")


def sizes_figure(cells):
    """Completion tokens per second of every contender, one panel per size and kind of ends, log scale."""
    figure, axes = plt.subplots(1, len(cells), figsize=(2.3 * len(cells), 3), sharey=True, squeeze=False)
    axes = axes[0]
    for axis, ((size, ends), rows) in zip(axes, cells.items(), strict=True):
        shown = [row for row in rows if "tokens_per_second" in row]
        axis.bar(range(len(shown)), [row["tokens_per_second"] for row in shown], color=[f"C{i}" for i in range(9)])
        axis.set_xticks(range(len(shown)), [row["who"] for row in shown], rotation=90)
        axis.set(title=f"{size} {ends}", yscale="log")
    axes[0].set_ylabel("completion tokens per second")
    return figure


def growth_figure(grown):
    """Processor seconds of a step against what grows, both on log scales, with a line of slope 1."""
    figure, axes = plt.subplots(1, len(grown), figsize=(4 * len(grown), 3), squeeze=False)
    axes = axes[0]
    for axis, (what, parts) in zip(axes, grown.items(), strict=True):
        for who in (HERE, TRL):
            rows = [row for cell in parts for row in cell if row["who"] == who]
            x = [row["prompts"] * row["group"] if WHAT[what] == "answers" else row[WHAT[what]] for row in rows]
            axis.plot(x, [row["seconds"] for row in rows], marker="o", label=who)
            if who == HERE:
                axis.plot(x, [rows[0]["seconds"] * each / x[0] for each in x], color="grey", ls=":", label="linear")
        axis.set(xlabel=what, xscale="log", yscale="log")
    axes[0].set_ylabel("processor seconds a step")
    axes[0].legend()
    return figure
