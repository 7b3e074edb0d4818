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
    """The arms in the order in which every figure has them: that of the categories if there are any."""
    there = list(dict.fromkeys(runs[arm].astype(object)))
    if arm == "arm":
        return there
    if isinstance(runs[arm].dtype, pd.CategoricalDtype):
        return [name for name in runs[arm].cat.categories if name in there]
    return in_order(there)


def broken(title: str, width: int) -> str:
    """In lines of at most so many characters if need be: at the commas, then between key and value or words."""
    if len(title) <= width:
        return title
    return "\n".join(
        part if len(part) <= width else part.replace(" = ", " =\n") if " = " in part else textwrap.fill(part, width)
        for part in title.split(", ")
    )


def columns_of(panels: int, titles: Sequence[str]) -> int:
    """Two where the last of several keys has two values, so that they stand side by side; else three at most."""
    last = {title.rpartition(", ")[2] for title in titles}
    pairs = len(titles) == panels and panels > 2 and ", " in titles[0] and len(last) == 2
    return 2 if pairs else {1: 1, 2: 2, 4: 2}.get(panels, 3)


def groups_of(
    runs: pd.DataFrame, by: Sequence[str], arm: str = "", everywhere: Sequence[str] = ()
) -> list[tuple[str, pd.DataFrame]]:
    """(title, runs) of every combination of `by` that has runs; without `by` all of them, untitled. The arms
    `everywhere` are part of every group of their base policy, and make none."""
    if not by:
        return [("", runs)]
    lone = runs[arm].astype(object).isin(everywhere) if everywhere else pd.Series(False, index=runs.index)
    groups = []
    for values, own in runs[~lone].groupby(list(by), observed=True):
        title = ", ".join(f"{key} = {v}" for key, v in zip(by, values, strict=True))
        beside = runs[lone & runs.base.isin(own.base.astype(object))] if "base" in by else runs[lone]
        groups.append((title, pd.concat([own, beside]) if len(beside) else own))
    return groups


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
    everywhere: Sequence[str] = (),
) -> tuple[Figure, list[Axes]]:
    """A panel per group, drawn by `draw(axes, runs of the group)` -> arm -> its n; and the legend with n below.

    labels: of the x and the y axis. crosses: whether runs that broke off are marked. also: further handles for the
    legend. everywhere: arms that are drawn in every panel."""
    arms, groups = arms_of(runs, arm), groups_of(runs, by, arm, everywhere)
    styles = styles or arm_styles(arms)
    columns = columns_of(len(groups), [title for title, _ in groups])
    lines = math.ceil(len(groups) / columns)
    counts: dict[str, set[int]] = {name: set() for name in arms}
    with rc_context(SETTINGS):
        width = {1: 4.6, 2: 6.6, 3: 7.4}[columns]
        figure = Figure(figsize=(width, 1), layout="constrained")
        panels = list(figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
        for place, (ax, (title, own)) in enumerate(zip(panels, groups, strict=False)):
            for name, n in draw(ax, own).items():
                counts[name].add(n)
            ax.set_title(broken(title, 26 if columns == 3 else 36).replace(", ", "\n"), loc="left")
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
