"""A row of panels, one per group of runs, with one legend below: what the figures that are no course over steps
share."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.load import in_order
from analysis.look import SETTINGS, Style, arm_styles
from analysis.plots.legend import legend

Drawn = Callable[[Axes, pd.DataFrame], Mapping[str, int]]


def arms_of(runs: pd.DataFrame, arm: str) -> list:
    """The arms in the order in which every figure has them."""
    return list(dict.fromkeys(runs[arm].astype(object))) if arm == "arm" else in_order(runs[arm])


def groups_of(runs: pd.DataFrame, by: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """(title, runs) of every combination of `by` that has runs; without `by` all of them, untitled."""
    if not by:
        return [("", runs)]
    return [
        ("\n".join(f"{key} = {v}" for key, v in zip(by, values, strict=True)), own)
        for values, own in runs.groupby(list(by), observed=True)
    ]


def grouped(
    draw: Drawn,
    runs: pd.DataFrame,
    arm: str,
    by: Sequence[str],
    styles: Mapping[str, Style] | None,
    *,
    labels: tuple[str, str],
    square: bool = False,
    crosses: bool = False,
    also: Sequence = (),
) -> tuple[Figure, list[Axes]]:
    """A panel per group, drawn by `draw(axes, runs of the group)` -> arm -> its n; and the legend with n below.

    labels: of the x and the y axis. crosses: whether runs that broke off are marked. also: further handles for the
    legend."""
    arms, groups = arms_of(runs, arm), groups_of(runs, by)
    styles = styles or arm_styles(arms)
    columns = {1: 1, 2: 2, 4: 2}.get(len(groups), 3)
    lines = math.ceil(len(groups) / columns)
    counts: dict[str, set[int]] = {name: set() for name in arms}
    with rc_context(SETTINGS):
        width = {1: 4.6, 2: 6.6, 3: 7.4}[columns]
        figure = Figure(figsize=(width, 1), layout="constrained")
        panels = list(figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
        for place, (ax, (title, own)) in enumerate(zip(panels, groups, strict=False)):
            for name, n in draw(ax, own).items():
                counts[name].add(n)
            ax.set_title(title, loc="left")
            if place + columns >= len(groups):
                ax.set_xlabel(labels[0])
                ax.tick_params(labelbottom=True)
            if place % columns == 0:
                ax.set_ylabel(textwrap.fill(labels[1], 34))
        for ax in panels[len(groups) :]:
            ax.set_axis_off()
        below = legend(figure, arms, styles, counts, runs, arm, also=also, crosses=crosses)
        height = (width - 0.9) / columns if square else 2.4
        figure.set_figheight(height * lines + 0.5 + 0.18 * below + 0.12 * (len(by) > 1) * lines)
        sns.despine(figure)
    return figure, panels[: len(groups)]
