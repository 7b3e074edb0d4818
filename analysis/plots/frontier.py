"""What a penalty buys: where each arm ends, one point per run."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from analysis import axes, stats
from analysis.load import Absent
from analysis.look import MARKERS, SETTINGS, Style, arm_styles, name_of
from analysis.plots.legend import legend
from analysis.plots.panels import arms_of

FIXED = ("run", "arm", "seed", "base", "ablation")


def frontier(
    rows: pd.DataFrame,
    x: str,
    y: str,
    arm: str,
    runs: pd.DataFrame,
    *,
    styles: Mapping[str, Style] | None = None,
    everywhere: Sequence[str] = (),
) -> Figure:
    """y at the last step against the mean of x over the last third of the steps, x on a logarithmic axis: small points
    are complete runs, large ones the means of their arms with 95 % t intervals in both directions. n: runs of a large
    point.

    The colour is that of `arm` in every other figure (styles); what else was swept is told by the marker, for the lone
    arms (everywhere) by their own. Raises Absent if no complete run has both.
    """
    table = _ends(rows, x, y, runs[runs.state.eq("complete")])
    if not len(table):
        raise Absent(f"No complete run has {x} above 0 in the last third of its steps and {y} at the last.")
    styles = styles or arm_styles(arms_of(runs, arm))
    kind, others = _kinds(table, rows, arm, everywhere)
    kinds = [each for each in dict.fromkeys(kind) if each]
    marks = dict(zip(kinds, MARKERS * (1 + len(kinds) // len(MARKERS)), strict=False))
    counts: dict[str, set[int]] = {}
    with rc_context(SETTINGS):
        figure = Figure(figsize=(6.4, 5.6), layout="constrained")
        ax = figure.subplots()
        for (name, other), own in table.groupby([table[arm].astype(object), kind], sort=False):
            how = {"color": styles[name].colour, "marker": marks.get(other, styles[name].marker)}
            counts.setdefault(name, set()).add(len(own))
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
        shapes = [
            Line2D([], [], color="#555555", linestyle="none", marker=mark, markersize=5, label=f"{others} {each}")
            for each, mark in marks.items()
        ]
        shown = [name for name in styles if name in counts]
        legend(figure, shown, styles, counts, runs, arm, also=shapes, crosses=False)
        sns.despine(figure)
    return figure


def _kinds(table: pd.DataFrame, rows: pd.DataFrame, arm: str, everywhere: Sequence[str]) -> tuple[pd.Series, str]:
    """What was swept beside `arm`, as one text per run, and the names of those knobs; empty for lone arms, and where
    nothing else was."""
    crossed = ~table[arm].astype(object).isin(list(everywhere))
    own = table[crossed]
    others = [
        knob
        for knob in table.columns
        if knob in rows.columns and knob not in (arm, *FIXED) and own[knob].astype(object).nunique() > 1
    ]
    if arm == "arm" or not others:
        return pd.Series("", index=table.index), ""
    return table[others].astype(str).agg(", ".join, axis=1).where(crossed, ""), ", ".join(others)


def _ends(rows: pd.DataFrame, x: str, y: str, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run: its knobs, x and y."""
    own = rows[rows.run.isin(runs.run.astype(object)) & np.isfinite(rows.value)]
    last = own.step.max()
    late = own[own.metric.eq(x) & (own.step > last * 2 / 3)].groupby("run", observed=True).value.mean()
    end = own[own.metric.eq(y) & own.step.eq(last)].groupby("run", observed=True).value.mean()
    table = runs.assign(x=runs.run.astype(object).map(late), y=runs.run.astype(object).map(end))
    return table[(table.x > 0) & table.y.notna()]
