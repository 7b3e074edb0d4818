"""Arms side by side at one point of training: a ladder, a map over two knobs, accuracy by difficulty."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from analysis import bootstrap, stats
from analysis.load import Absent
from analysis.look import SETTINGS, Style, arm_styles, name_of, short_names
from analysis.plots.panels import arms_of, grouped, groups_of

LEVEL = "accuracy/heldout/level_"


def per_run(rows: pd.DataFrame, metric: str, runs: pd.DataFrame, window: tuple[int, int] | None = None) -> pd.DataFrame:
    """The complete runs, each with `value`, its mean of the metric over the window (both ends included; without one the
    last step that a complete run has). A run without a finite value there keeps NaN. Raises Absent for what no run
    logged."""
    own = rows[rows.metric.eq(metric)]
    if not len(own):
        raise Absent(f"No run logged {metric}; there are {', '.join(sorted(map(str, rows.metric.unique())))}.")
    complete = runs[runs.state.eq("complete")]
    own = own[own.run.isin(complete.run.astype(object))]
    first, last = window or (own.step.max(),) * 2
    means = own[own.step.between(first, last)].groupby("run", observed=True).value.mean()
    return complete.assign(value=complete.run.astype(object).map(means).astype(float))


def ladder(
    rows: pd.DataFrame,
    metric: str,
    arm: str,
    runs: pd.DataFrame,
    *,
    by: Sequence[str] = (),
    window: tuple[int, int] | None = None,
    styles: Mapping[str, Style] | None = None,
) -> Figure:
    """Arms in the order of their means: mean and 95 % t interval, every run as a tick, the interquartile mean as a
    hollow diamond, n and what did not complete at the right, and the base policy's own value in words, and as a dashed
    line where it lies among the runs.

    The order is a result and no verdict: neighbours whose intervals overlap may well be the other way round.
    """
    values = per_run(rows, metric, runs, window)
    names, _ = short_names(list(map(str, arms_of(runs, arm)))) if arm == "arm" else ({}, "")
    names = {name: textwrap.fill(str(names.get(str(name), name)), 40) for name in arms_of(runs, arm)}
    pitch = max(0.36, 0.04 + 0.13 * max(name.count("\n") + 1 for name in names.values()))  # inches, by the tallest name
    styles = styles or arm_styles(arms_of(runs, arm))
    start = rows[rows.metric.eq(metric) & rows.step.eq(rows.step.min())]
    groups = groups_of(runs, by)
    sizes = [own[arm].astype(object).nunique() for _, own in groups]
    with rc_context(SETTINGS):
        figure = Figure(figsize=(7.4, 0.7 + sum(0.3 + pitch * size for size in sizes)), layout="constrained")
        panels = figure.subplots(
            len(groups), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": [size + 0.6 for size in sizes]}
        )[:, 0]
        for ax, (title, own) in zip(panels, groups, strict=True):
            chosen = values[values.run.isin(own.run.astype(object))]
            _rungs(ax, chosen, own, arm, styles, names)
            base = start.value[start.run.isin(own.run.astype(object))]
            about = [title] if title else []
            if len(base):
                about.append(f"base policy at {base.mean():.3g}")
                if ax.get_xlim()[0] <= base.mean() <= ax.get_xlim()[1]:  # else the arms would stand in one corner
                    ax.axvline(base.mean(), color="#333333", linewidth=0.9, dashes=(4, 2), zorder=1)
            ax.set_title(", ".join(about), loc="left")
        name, unit = name_of(metric)
        panels[-1].set_xlabel(name + (f" ({unit})" if unit else ""))
        hollow = {"linestyle": "none", "fillstyle": "none"}
        marks = [
            Line2D([], [], color="#333333", marker="o", markersize=5, label="mean, 95 % t interval"),
            Line2D([], [], color="#333333", marker="D", markersize=5, label="interquartile mean", **hollow),
            Line2D([], [], linestyle="none", marker="|", color="#444444", label="one run"),
            Line2D([], [], color="#333333", linewidth=0.9, dashes=(4, 2), label="base policy, where in range"),
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=4, frameon=False)
        sns.despine(figure, left=True)
    return figure


def _rungs(ax: Axes, values: pd.DataFrame, runs: pd.DataFrame, arm: str, styles: Mapping, names: Mapping) -> None:
    by_arm = {name: own.value.to_numpy() for name, own in values.groupby(values[arm].astype(object))}
    known = {name: v[np.isfinite(v)] for name, v in by_arm.items()}
    arms = [name for name in styles if name in set(runs[arm].astype(object))]
    order = sorted(arms, key=lambda name: known[name].mean() if len(known.get(name, ())) else -math.inf)
    for place, name in enumerate(order):
        style, own = styles[name], known.get(name, np.empty(0))
        states = runs.state[runs[arm].astype(object).eq(name)].value_counts().drop("complete", errors="ignore")
        lost = [f"{count} {state}" for state, count in sorted(states.items())]
        if len(own) < len(by_arm.get(name, ())):
            lost.append(f"{len(by_arm[name]) - len(own)} without a value")
        if len(own):
            mean, low, high, *_ = stats.t_interval(own)
            ax.plot(own, np.full(len(own), place - 0.27), "|", color="#444444", markersize=5, alpha=0.75, zorder=2)
            ax.plot([low, high], [place] * 2, color=style.colour, linewidth=2, zorder=3)
            ax.plot(
                mean, place, marker=style.marker, color=style.colour, markersize=6, markeredgecolor="white", zorder=4
            )
            ax.plot(
                float(bootstrap.iqm(own)),
                place + 0.24,
                "D",
                fillstyle="none",
                color=style.colour,
                markersize=4,
                zorder=4,
            )
        ax.text(
            1.015,
            place,
            ", ".join([f"n = {len(own)}", *lost]),
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=7.5,
            color="#444444",
        )
    ax.set_yticks(range(len(order)), [names[name] for name in order])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_ylim(-0.6, len(order) - 0.4)
    ax.xaxis.set_major_locator(MaxNLocator(6))


def heat_map(
    rows: pd.DataFrame,
    metric: str,
    x: str,
    y: str,
    runs: pd.DataFrame,
    *,
    window: tuple[int, int] | None = None,
) -> Figure:
    """The mean over runs for every combination of two knobs, with the half width of its 95 % t interval and n in the
    cell. Cells without a complete run are hatched, not left white as if they were nothing.

    Whatever else was swept is averaged, and n then counts its combinations too. The colours grow in lightness alone, so
    that they read in grey.
    """
    values = per_run(rows, metric, runs, window)
    across, up = arms_of(runs, x), arms_of(runs, y)
    by_cell = values.groupby([values[x].astype(object), values[y].astype(object)])
    cells = {key: own.value.dropna() for key, own in by_cell}
    means = [own.mean() for own in cells.values() if len(own)]
    if not means:
        raise Absent(f"No complete run has {metric} at the steps that were asked for.")
    shade, colours = Normalize(min(means), max(means)), colormaps["cividis"]
    with rc_context({**SETTINGS, "axes.grid": False}):
        size = (min(7.4, 1.9 + 0.95 * len(across)), 1.0 + 0.62 * len(up))
        figure = Figure(figsize=size, layout="constrained")
        ax = figure.subplots()
        for i, a in enumerate(across):
            for j, b in enumerate(up):
                own = cells.get((a, b), pd.Series(dtype=float))
                if not len(own):
                    ax.add_patch(Rectangle((i, j), 1, 1, facecolor="#f4f4f4", edgecolor="#bbbbbb", hatch="///"))
                    continue
                mean, low, high, n, _ = stats.t_interval(own)
                colour = colours(shade(mean)) if len(means) > 1 else colours(0.7)
                ax.add_patch(Rectangle((i, j), 1, 1, facecolor=colour, edgecolor="white", linewidth=1))
                dark = 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2] < 0.5
                half = "\n± " + f"{(high - low) / 2:#.2g}".removesuffix(".") if math.isfinite(low) else "\nno interval"
                text = f"{mean:#.3g}".removesuffix(".") + f"{half}\nn = {n}"
                ax.text(i + 0.5, j + 0.5, text, ha="center", va="center", fontsize=7, color="w" if dark else "k")
        ax.set(xlim=(0, len(across)), ylim=(0, len(up)), xlabel=x, ylabel=y)
        ax.set_xticks(np.arange(len(across)) + 0.5, [str(name) for name in across])
        ax.set_yticks(np.arange(len(up)) + 0.5, [str(name) for name in up])
        ax.tick_params(length=0)
        name, unit = name_of(metric)
        ax.set_title(name + (f" ({unit})" if unit else ""), loc="left")
        sns.despine(figure, left=True, bottom=True)
    return figure


def levels(
    rows: pd.DataFrame,
    arm: str,
    runs: pd.DataFrame,
    *,
    by: Sequence[str] = (),
    prefix: str = LEVEL,
    window: tuple[int, int] | None = None,
    styles: Mapping[str, Style] | None = None,
    everywhere: Sequence[str] = (),
) -> Figure:
    """Accuracy by difficulty at the end (or over a window): mean and 95 % t interval of every arm, single runs as
    points, and the base policy before training in dashes. Raises Absent without metrics PREFIX1, PREFIX2, ..."""
    found = sorted({int(m.removeprefix(prefix)) for m in map(str, rows.metric.unique()) if m.startswith(prefix)})
    if not found:
        raise Absent(f"No run logged {prefix}1 and so on.")
    values = pd.concat([per_run(rows, f"{prefix}{k}", runs, window).assign(level=k) for k in found])
    start = rows[rows.step.eq(rows.step.min()) & rows.metric.astype(str).str.startswith(prefix)]
    start = start.assign(level=start.metric.astype(str).str.removeprefix(prefix).astype(int))
    arms = arms_of(runs, arm)
    styles = styles or arm_styles(arms)
    apart = min(0.16, 0.7 / len(arms))

    def draw(ax: Axes, own: pd.DataFrame) -> dict[str, int]:
        counts = {}
        base = start[start.run.isin(own.run.astype(object))].groupby("level").value.mean()
        ax.plot(base.index, base, color="#333333", linewidth=1.1, dashes=(4, 2), marker=".", markersize=4, zorder=2)
        for place, (name, style) in enumerate(styles.items()):
            mine = values[values.run.isin(own.run[own[arm].astype(object).eq(name)].astype(object))].dropna(
                subset="value"
            )
            if not len(mine):
                continue
            counts[name] = mine.run.nunique()
            shift = apart * (place - (len(arms) - 1) / 2)
            ax.plot(mine.level + shift, mine.value, ".", color=style.colour, markersize=2.5, alpha=0.5, zorder=3)
            by_level = {k: stats.t_interval(v.value) for k, v in mine.groupby("level")}
            at = [k + shift for k in by_level]
            for place_of, found_at in zip(at, by_level.values(), strict=True):
                ax.plot([place_of] * 2, [found_at.low, found_at.high], color=style.colour, linewidth=1.2, zorder=4)
            ax.plot(
                at,
                [found_at.mean for found_at in by_level.values()],
                color=style.colour,
                linewidth=1.2,
                dashes=style.dash or (None, None),
                marker=style.marker,
                markersize=4.5,
                markeredgecolor="white",
                markeredgewidth=0.5,
                zorder=5,
            )
        ax.set_xticks(found)
        return counts

    before = Line2D([], [], color="#333333", linewidth=1.1, dashes=(4, 2), marker=".", label="base policy")
    name = "held-out accuracy (share of answers)" if prefix == LEVEL else prefix
    labels = "difficulty (level)", name
    return grouped(draw, runs, arm, by, styles, labels=labels, also=[before], everywhere=everywhere)[0]
