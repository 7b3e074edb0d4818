"""What `make bench` leaves behind: summary.csv, report.md and two figures."""

import datetime
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import matplotlib
import pandas as pd

from analysis.bench.measure import HERE, TRL, ratios
from analysis.bench.work import TRL_ROWS

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

WHAT = {"completion tokens": "limit", "answers per prompt": "group", "answers per batch": "answers"}


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
        line = [str(grown), f"{here['seconds']:.3f}", f"{1e6 * here['seconds'] / here['tokens']:.0f}"]
        line += [f"{theirs['seconds']:.3f}", f"{ratios(rows)['times TRL']:.2f}", f"{here['peak_mb']:.0f}"]
        lines.append([*line, f"{theirs['peak_mb']:.0f}"])
    return table([what, "seconds a step", "µs a token", "TRL's seconds", "times TRL", "peak MB", "TRL's"], lines)


def write(folder: Path, cells, grown: Mapping[str, list[list[dict]]], load: Sequence[Sequence[float]]) -> None:
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    flat = [row | {"part": "sizes"} for rows in cells.values() for row in rows]
    flat += [row | {"part": what} for what, parts in grown.items() for rows in parts for row in rows]
    pd.DataFrame(flat).round(6).to_csv(folder / "summary.csv", index=False)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "trl"))
    before, after = (" ".join(f"{number:.1f}" for number in each) for each in load)
    text = f"""# What a step costs

{datetime.date.today()}, {platform.machine()}, one thread, {versions}.

One step samples, grades and updates: 32 prompts of 16 to 24 tokens (8 at size L) with 8 answers of at most 64 tokens.
Times are processor seconds, medians over rounds in which everyone had a turn. Ratios are of completion tokens per
second. The ceiling is the time of the model's matrix products alone, at the same tokens and shapes.

Load averages of the machine before and after: {before}; {after}. With others at work all absolute numbers are too high,
and most for what waits for memory.

"natural" answers end with a chance of about 1 in 48 per token, "fixed" ones never. TRL's trainer has the same weights,
prompts, rewards and optimiser, with its loss in pieces of {TRL_ROWS} answers. Peak memory is the resident memory of the
process, which holds everyone's model.

{main_table(cells)}

"""
    for what, parts in grown.items():
        text += f"## Growth with {what}, size S, fixed ends\n\n{growth_table(what, parts)}\n\n"
    text += "![Seconds a step by size](figures/sizes.png)\n\n![Growth](figures/growth.png)\n\n"
    (folder / "report.md").write_text(text + "Made by `make bench`; every number is in summary.csv.\n")
    sizes_figure(cells).savefig(folder / "figures" / "sizes.png", dpi=150, bbox_inches="tight")
    growth_figure(grown).savefig(folder / "figures" / "growth.png", dpi=150, bbox_inches="tight")
    plt.close("all")


def sizes_figure(cells):
    """Completion tokens per second of every contender, one panel per size and kind of ends, log scale."""
    figure, axes = plt.subplots(1, len(cells), figsize=(2.3 * len(cells), 3), sharey=True)
    for axis, ((size, ends), rows) in zip(axes, cells.items(), strict=True):
        shown = [row for row in rows if "tokens_per_second" in row]
        axis.bar(range(len(shown)), [row["tokens_per_second"] for row in shown], color=[f"C{i}" for i in range(9)])
        axis.set_xticks(range(len(shown)), [row["who"] for row in shown], rotation=90)
        axis.set(title=f"{size} {ends}", yscale="log")
    axes[0].set_ylabel("completion tokens per second")
    return figure


def growth_figure(grown):
    """Processor seconds of a step against what grows, both on log scales, with a line of slope 1."""
    figure, axes = plt.subplots(1, len(grown), figsize=(4 * len(grown), 3))
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
