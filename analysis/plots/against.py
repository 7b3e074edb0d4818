"""One metric against another: how much accuracy a KL buys, what length an accuracy has, what was predicted."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import axes, stats
from analysis.load import Absent
from analysis.look import Style, arm_styles, name_of
from analysis.plots.panels import arms_of, grouped

BLOCKS = 6  # of steps, per run: single steps of a share of 16 groups are mostly chance


def against(
    rows: pd.DataFrame,
    x: str,
    y: str,
    arm: str,
    runs: pd.DataFrame,
    *,
    by: Sequence[str] = (),
    styles: Mapping[str, Style] | None = None,
    everywhere: Sequence[str] = (),
) -> Figure:
    """y against x along training: the mean path of every arm, single seeds thin, and at its end the 95 % t intervals in
    both directions.

    x, y: metrics, or step, samples, tokens, seconds (see `axes.course`). A point is a step at which a run has both; the
    mean path is over the steps that all runs of the arm have, so it ends where the first of them ends. A run that
    failed or diverged is drawn to its end and marked with a cross. n counts runs. Raises Absent for what no run logged.
    """
    both = axes.course(rows, x).merge(axes.course(rows, y), on=["run", "step"], suffixes=("", "_y"))
    both = both[np.isfinite(both["at"]) & np.isfinite(both.at_y)].sort_values(["run", "step"])
    if not len(both):
        raise Absent(f"No run has {x} and {y} at the same step.")
    styles = styles or arm_styles(arms_of(runs, arm))

    def draw(ax: Axes, own: pd.DataFrame) -> dict[str, int]:
        counts = {}
        for name, style in styles.items():
            chosen = own[own[arm].astype(object).eq(name)].set_index("run")
            points = both[both.run.isin(chosen.index.astype(object))]
            if len(points):
                counts[name] = points.run.nunique()
                _paths(ax, points, chosen.state, style)
        return counts

    labels = axes.label(x, name_of(x)), axes.label(y, name_of(y))
    figure, panels = grouped(draw, runs, arm, by, styles, labels=labels, crosses=True, everywhere=everywhere)
    for ax in panels:
        ax.xaxis.set_major_locator(MaxNLocator(5))
        ax.yaxis.set_major_locator(MaxNLocator(5))
    return figure


def _paths(ax: Axes, points: pd.DataFrame, states: pd.Series, style: Style) -> None:
    n = points.run.nunique()
    for run, own in points.groupby("run", observed=True):
        ax.plot(own["at"], own.at_y, color=style.colour, linewidth=0.6, alpha=min(0.5, max(0.12, 2 / n)), zorder=2)
        if states[run] in ("failed", "diverged"):
            ax.plot(own["at"].iloc[-1], own.at_y.iloc[-1], "x", color=style.colour, markersize=6, zorder=5)
        elif states[run] == "running":
            ax.plot(own["at"].iloc[-1], own.at_y.iloc[-1], "o", color=style.colour, fillstyle="none", zorder=5)
    at_step = points.groupby("step", observed=True)
    whole = at_step.run.nunique() == n
    mean = at_step[["at", "at_y"]].mean()[whole.cummin()]
    if not len(mean):
        return
    halo = LineCollection([mean[["at", "at_y"]].to_numpy()], colors="white", linewidths=3.4, alpha=0.8, zorder=3.5)
    ax.add_collection(halo, autolim=False)  # sets the mean apart from the single seeds
    ax.plot(
        mean["at"],
        mean.at_y,
        color=style.colour,
        linewidth=1.8,
        dashes=style.dash or (None, None),
        marker=style.marker,
        markersize=4,
        markevery=sorted({*range(0, len(mean), max(1, len(mean) // 7)), len(mean) - 1}),
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=4,
    )
    last = points[points.step.eq(mean.index[-1])]
    across, up = stats.t_interval(last["at"]), stats.t_interval(last.at_y)
    if n > 1 and not up.reason:
        ax.plot([across.low, across.high], [up.mean] * 2, color=style.colour, linewidth=1.2, zorder=5)
        ax.plot([across.mean] * 2, [up.low, up.high], color=style.colour, linewidth=1.2, zorder=5)


def agreement(
    rows: pd.DataFrame,
    measured: str,
    predicted: str,
    arm: str,
    runs: pd.DataFrame,
    *,
    by: Sequence[str] = (),
    styles: Mapping[str, Style] | None = None,
    everywhere: Sequence[str] = (),
) -> Figure:
    """Measured against predicted, both in one unit, with the diagonal on which they agree.

    A point is the mean over a sixth of a run's steps; n counts runs, not points. Raises Absent for what no run logged.
    """
    both = axes.course(rows, predicted).merge(axes.course(rows, measured), on=["run", "step"], suffixes=("", "_y"))
    both = both[np.isfinite(both["at"]) & np.isfinite(both.at_y)]
    if not len(both):
        raise Absent(f"No run has {measured} and {predicted} at the same step.")
    block = both.groupby("run", observed=True).step.rank(pct=True).mul(BLOCKS).apply(np.ceil).astype(int)
    points = both.groupby([both.run, block.rename("block")], observed=True)[["at", "at_y"]].mean().reset_index()
    styles = styles or arm_styles(arms_of(runs, arm))
    ends = [points[["at", "at_y"]].min().min(), points[["at", "at_y"]].max().max()]
    room = 0.05 * (ends[1] - ends[0]) or 0.05

    def draw(ax: Axes, own: pd.DataFrame) -> dict[str, int]:
        counts = {}
        ax.plot(ends, ends, color="#333333", linewidth=0.9, dashes=(4, 2), zorder=1)
        for name, style in styles.items():
            mine = points[points.run.isin(own.run[own[arm].astype(object).eq(name)].astype(object))]
            if len(mine):
                counts[name] = mine.run.nunique()
                ax.plot(
                    mine["at"],
                    mine.at_y,
                    style.marker,
                    color=style.colour,
                    markersize=3.5,
                    markeredgecolor="white",
                    markeredgewidth=0.3,
                    alpha=0.75,
                    zorder=3,
                )
        ax.set_xlim(ends[0] - room, ends[1] + room)
        ax.set_ylim(ends[0] - room, ends[1] + room)
        return counts

    diagonal = Line2D([], [], color="#333333", linewidth=0.9, dashes=(4, 2), label="measured = predicted")
    labels = axes.label(predicted, name_of(predicted)), axes.label(measured, name_of(measured))
    return grouped(draw, runs, arm, by, styles, labels=labels, square=True, also=[diagonal], everywhere=everywhere)[0]
