"""What a penalty buys: where each arm ends, one point per run."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from analysis import axes, stats
from analysis.load import Absent
from analysis.look import COLOURS, MARKERS, name_of

GREY = "#8c8c8c"


def frontier(
    rows: pd.DataFrame, x: str, y: str, strength: str, runs: pd.DataFrame, placebo: Mapping[str, object]
) -> Figure:
    """y at the last step against the mean of x over the last third of the steps, x on a logarithmic axis: small points
    are complete runs, large ones the means of their arms with 95 % t intervals in both directions. n: runs of each
    large point, in the order of `strength`.

    strength: the knob told by the marker; what else was swept is told by the colour. placebo: knob -> value of the arm
    that can teach nothing, drawn grey. Raises Absent if no complete run has both.
    """
    table = _ends(rows, x, y, runs[runs.state.eq("complete")])
    if not len(table):
        raise Absent(f"No complete run has {x} above 0 in the last third of its steps and {y} at the last.")
    others = [
        knob
        for knob in runs.columns
        if knob in rows.columns
        and knob not in ("run", "arm", "seed", "base", "ablation", strength, *placebo)
        and runs[knob].nunique() > 1
    ]
    teaches = pd.Series(False, index=table.index)
    for knob, value in placebo.items():
        teaches |= table[knob].astype(object).eq(value)
    kind = table[others].astype(str).agg(" ".join, axis=1) if others else pd.Series("all runs", index=table.index)
    kind = kind.where(~teaches, "placebo")
    kinds = list(dict.fromkeys(kind[~teaches])) + list(dict.fromkeys(kind[teaches]))
    colours = dict(zip(kinds, COLOURS * (1 + len(kinds) // len(COLOURS)), strict=False))
    colours |= dict.fromkeys(kind[teaches], GREY)
    marks = dict(zip(table[strength].cat.categories, MARKERS, strict=False))
    figure = Figure(figsize=(6.4, 6.0), layout="constrained")
    ax = figure.subplots()
    for (label, value), own in table.groupby([kind, table[strength].astype(object)], sort=False):
        how = {"color": colours[label], "marker": marks[value]}
        ax.scatter(own.x, own.y, s=9, alpha=0.45, linewidths=0, zorder=2, **how)
        (cx, *wide), (cy, *high) = (stats.t_interval(own[side].to_numpy())[:3] for side in ("x", "y"))
        # An interval that reaches 0 has no end on a logarithmic axis; it is cut at half of the least run.
        ax.hlines(cy, np.fmax(wide[0], own.x.min() / 2), wide[1], color=how["color"], zorder=3)
        ax.vlines(cx, *high, color=how["color"], zorder=3)
        ax.plot(cx, cy, markersize=7, markeredgecolor="white", linestyle="none", zorder=4, **how)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set(xlabel=axes.label(x, name_of(x)), ylabel=axes.label(y, name_of(y)))
    n = table.groupby([kind, table[strength].astype(object)]).size()
    lines = [
        Line2D([], [], color=colours[label], linewidth=3, label=f"{label} (n = {' and '.join(map(str, n[label]))})")
        for label in kinds
    ]
    lines += [
        Line2D(
            [],
            [],
            color="black",
            linestyle="none",
            marker=mark,
            label=f"{strength} {value:g}" if isinstance(value, float) else f"{strength} {value}",
        )
        for value, mark in marks.items()
    ]
    where = {"loc": "outside lower center", "ncols": 2, "fontsize": 7.5, "frameon": False}
    figure.legend(handles=lines, title=", ".join(others), **where)
    return figure


def _ends(rows: pd.DataFrame, x: str, y: str, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run: its knobs, x and y."""
    own = rows[rows.run.isin(runs.run.astype(object)) & np.isfinite(rows.value)]
    last = own.step.max()
    late = own[own.metric.eq(x) & (own.step > last * 2 / 3)].groupby("run", observed=True).value.mean()
    end = own[own.metric.eq(y) & own.step.eq(last)].groupby("run", observed=True).value.mean()
    table = runs.assign(x=runs.run.astype(object).map(late), y=runs.run.astype(object).map(end))
    return table[(table.x > 0) & table.y.notna()]
