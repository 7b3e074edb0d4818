"""A curve that theory predicts, and the points that were measured."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.look import SETTINGS, Style, arm_styles

DASH = 6  # line widths
ERRORS = 2  # standard errors that a bar reaches to either side


def predicted(points: pd.DataFrame, x: Mapping[str, Any], y: Mapping[str, Any]) -> Figure:
    """Predictions as lines, measurements as markers with a bar of 2 standard errors to either side; a panel per
    `panel`, a colour and marker per `line`, the same in every panel. A ring marks a point that does not hold.

    points: columns panel, line, x, predicted, measured, error, holds. x, y: label, and log for a logarithmic axis; y
    also shared: whether all panels have one axis, as they have unless told otherwise.
    """
    panels, lines = (list(dict.fromkeys(points[column])) for column in ("panel", "line"))
    styles = arm_styles(lines)
    columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    with rc_context(SETTINGS):
        width = {1: 4.6, 2: 6.6, 3: 7.4}[columns]
        figure = Figure(figsize=(width, 1), layout="constrained")
        shared = bool(y.get("shared", True))
        axes = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=shared).flat)
        for place, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
            own = {line: points[points.panel.eq(panel) & points.line.eq(line)].sort_values("x") for line in lines}
            own = {line: rows for line, rows in own.items() if len(rows)}
            for line in own:
                _draw(ax, own[line], styles[line], _turn(own, line))
            ax.set_title(panel, loc="left")
            _scaled(ax, "x", bool(x.get("log")))
            _scaled(ax, "y", bool(y.get("log")))
            if place + columns >= len(panels):
                ax.set_xlabel(x["label"])
                ax.tick_params(labelbottom=True)
            if place % columns == 0:
                ax.set_ylabel(textwrap.fill(y["label"], 34))
        for ax in axes[len(panels) :]:
            ax.set_axis_off()
        below = _legend(figure, styles, bool((~points.holds).any()))
        figure.set_figheight(2.4 * rows + 0.5 + 0.18 * below)
        sns.despine(figure)
    return figure


def _scaled(ax: Axes, which: str, log: bool) -> None:
    """A logarithmic axis with plain numbers at 1, 2 and 5 of every decade."""
    if log:
        ax.set(**{f"{which}scale": "log"})
        axis = ax.xaxis if which == "x" else ax.yaxis
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _turn(own: Mapping[str, pd.DataFrame], line: str) -> tuple[int, int]:
    """(place, number) of a line among those of its panel whose predictions coincide with its own."""
    curves = {name: rows[["x", "predicted"]].to_numpy() for name, rows in own.items()}
    same = [name for name in own if curves[name].shape == curves[line].shape and _alike(curves[name], curves[line])]
    return same.index(line), len(same)


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(one, other, rtol=1e-3, atol=0)  # half a line's width on a figure


def _draw(ax: Axes, own: pd.DataFrame, style: Style, turn: tuple[int, int]) -> None:
    """turn: of lines that coincide, each has its share of one line's length, so that all of them are seen."""
    place, number = turn
    share = (DASH * place, (DASH, DASH * (number - 1))) if number > 1 else "-"
    ax.plot(own.x, own.predicted, color=style.colour, linewidth=1.5, linestyle=share, dash_capstyle="butt", zorder=3)
    ax.errorbar(
        own.x,
        own.measured,
        yerr=ERRORS * own.error if own.error.gt(0).any() else None,
        fmt=style.marker,
        color=style.colour,
        markersize=4.5,
        markeredgecolor="white",
        markeredgewidth=0.5,
        elinewidth=1.1,
        zorder=4,
    )
    wrong = own[~own.holds]
    ax.plot(wrong.x, wrong.measured, "o", fillstyle="none", color="#333333", markersize=10, markeredgewidth=1, zorder=5)


def _legend(figure: Figure, styles: Mapping[str, Style], rings: bool) -> int:
    """Below the panels -> its height in lines."""
    handles = [
        Line2D([], [], color=style.colour, linewidth=1.5, marker=style.marker, markersize=4.5, label=line)
        for line, style in styles.items()
    ]
    handles.append(Line2D([], [], color="#555555", linewidth=1.5, label="predicted"))
    handles.append(Line2D([], [], color="#555555", linestyle="none", marker="o", markersize=4.5, label="measured"))
    if rings:
        ring = {"marker": "o", "fillstyle": "none", "markersize": 9, "color": "#333333"}
        handles.append(Line2D([], [], linestyle="none", label="does not hold", **ring))
    widths, room = [len(handle.get_label()) + 7 for handle in handles], figure.get_figwidth() * 14
    per_row = len(handles) if sum(widths) <= room else max(1, min(len(styles), int(room // max(widths))))
    rows = [handles[start : start + per_row] for start in range(0, len(handles), per_row)]
    by_column = [row[column] for column in range(per_row) for row in rows if column < len(row)]  # as matplotlib fills
    figure.legend(handles=by_column, loc="outside lower center", ncols=per_row, frameon=False, handlelength=2.4)
    return len(rows)
