"""Paired differences of claims: what the verdicts rest on."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.claims import EQUAL, NULL, REPRODUCED, REVERSED
from analysis.look import SETTINGS, name_of

# no arm's colours: a verdict is not an arm
VERDICT_LOOK = {
    REPRODUCED: ("#111111", "D"),
    EQUAL: ("#111111", "s"),
    REVERSED: ("#B2182B", "X"),
    NULL: ("#666666", "s"),
}
EXPECTED = {
    "greater": "expected > 0",
    "less": "expected < 0",
    "equal": "expected {:g}",
    "identical": "expected identical",
}
UNDECIDED = ("#777777", "o")
LONG = 48  # characters of two arms that fit beside each other


def forest(table: pd.DataFrame, pairs: pd.DataFrame) -> Figure:
    """Paired differences of all claims that have pairs: mean, 95 % t interval, single pairs, margin, n and verdict.

    table, pairs: of claims.verdicts. Claims about the same metric share an axis, in the metric's unit; the band around
    0 is the claim's margin. n counts pairs. Raises ValueError if no claim has a pair.
    """
    shown = table[table.n > 0]
    if not len(shown):
        raise ValueError("No claim has a pair of complete runs; there is nothing to draw.")
    groups = [group for _, group in shown.groupby("metric", sort=False)]
    lines = max(_label(row).count("\n") + 1 for row in shown.to_dict("records"))
    pitch = max(0.5, 0.1 + 0.13 * lines)  # inches of a claim, by the tallest label
    with rc_context(SETTINGS):
        figure = Figure(figsize=(7.4, 0.3 + sum(0.62 + pitch * len(group) for group in groups)), layout="constrained")
        panels = figure.subplots(
            len(groups), 1, squeeze=False, gridspec_kw={"height_ratios": [0.5 + len(group) for group in groups]}
        )
        for ax, group in zip(panels[:, 0], groups, strict=True):
            _forest_panel(ax, group, pairs)
        sns.despine(figure, left=True)
    return figure


def _forest_panel(ax: Axes, group: pd.DataFrame, pairs: pd.DataFrame) -> None:
    places = np.arange(len(group))[::-1]
    labels = []
    for place, row in zip(places, group.to_dict("records"), strict=True):
        colour, marker = VERDICT_LOOK.get(row["verdict"], UNDECIDED)
        if row["margin"] > 0:
            band = [row["target"] - row["margin"], row["target"] + row["margin"]]
            ax.fill_between(band, place - 0.4, place + 0.4, color="#e3e3e3", linewidth=0, zorder=0)
        single = pairs.difference[pairs.claim.eq(row["claim"])]
        ax.plot(
            single,
            np.full(len(single), place - 0.2),
            "|",
            color="#444444",
            markersize=5,
            markeredgewidth=0.9,
            alpha=0.75,
            zorder=2,
        )
        ax.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=2, solid_capstyle="butt", zorder=3)
        ax.plot(
            row["difference"],
            place,
            marker=marker,
            color=colour,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=4,
        )
        ax.text(
            1.015,
            place,
            f"{row['verdict']}\nn = {row['n']}",
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=7.5,
            color=colour,
            linespacing=1.25,
        )
        labels.append(_label(row))
    ax.axvline(0, color="#333333", linewidth=0.9, zorder=1)
    ax.set_yticks(places, labels)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_ylim(-0.6, len(group) - 0.4)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    name, unit = name_of(group.metric.iloc[0])
    ax.set_xlabel(f"paired difference: {name}" + (f" ({unit})" if unit else ""))


def _label(row: dict) -> str:
    """What a claim compares, where, in which band of another metric, and over which steps. Long names of arms get a
    line each: what the labels take from the width, the axis lacks."""
    steps = (
        f"step {row['first_step']}"
        if row["first_step"] == row["last_step"]
        else f"steps {row['first_step']}–{row['last_step']}"
    )
    expected = EXPECTED[row["expect"]].format(row["target"])
    apart = "\n" if len(row["x"]) + len(row["y"]) > LONG else " "
    while_ = f"while {row['at']}" if row.get("at") else ""
    lines = [f"{row['claim']}. {row['x']}{apart}− {row['y']}", row["where"], while_, f"{steps}, {expected}"]
    return "\n".join(filter(None, lines))
