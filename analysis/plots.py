"""Figures from the tidy frame: every one shows n and the single seeds, and reads in colour, in grey and without colour
vision.

No figure goes through pyplot, so nothing here depends on a window system or changes settings that other code sees.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import stats
from analysis.claims import EQUAL, NULL, REPRODUCED, REVERSED
from analysis.load import Absent, in_order
from analysis.look import SETTINGS, Style, arm_styles, name_of, short_names

# no arm's colours: a verdict is not an arm
VERDICT_LOOK = {
    REPRODUCED: ("#111111", "D"),
    EQUAL: ("#111111", "s"),
    REVERSED: ("#B2182B", "X"),
    NULL: ("#666666", "s"),
}
UNDECIDED = ("#777777", "o")
MANY_POINTS = 20_000  # in one panel; above it the thin lines become pixels, or a vector file has megabytes


def learning_curves(rows: pd.DataFrame, metric: str, arm: str, runs: pd.DataFrame, **more) -> Figure:
    """Metric against step, one line per arm, t band over seeds, single seeds thin, n in the legend. See
    small_multiples."""
    return small_multiples(rows, [metric], arm, runs, **more)


def small_multiples(
    rows: pd.DataFrame,
    metrics: Sequence[str],
    arm: str,
    runs: pd.DataFrame,
    *,
    by: Sequence[str] = (),
    styles: Mapping[str, Style] | None = None,
) -> Figure:
    """One panel per metric: mean over seeds with its 95 % t band, single seeds thin, n in the legend.

    rows: one row per (run, step, metric). runs: their states. arm: the column that tells the lines apart. by: columns
    whose combinations get a row of panels each (`facets` finds those that need it). styles: from arm_styles over all
    arms, so that an arm looks the same in every figure. The mean of an arm ends where the first of its runs ends; a
    failed or diverged run is drawn up to its last step and marked with a cross, a running one with a ring. Raises
    Absent for a metric that no run has.
    """
    logged = set(rows.metric.unique())
    if missing := [metric for metric in metrics if metric not in logged]:
        raise Absent(f"No run logged {', '.join(missing)}; there are {', '.join(sorted(logged))}.")
    arms = list(dict.fromkeys(runs[arm].astype(object))) if arm == "arm" else in_order(runs[arm])
    styles = styles or arm_styles(arms)
    groups = (
        [(_named(by, values), chosen) for values, chosen in runs.groupby(list(by), observed=True)]
        if by
        else [("", runs)]
    )
    wanted = [(metric, chosen, group) for group, chosen in groups for metric in metrics]
    # one metric: a grid of groups; one group: a grid of metrics; else a row of metrics for each group
    grid = len(metrics) == 1 or len(groups) == 1
    columns = {1: 1, 2: 2, 4: 2}.get(len(wanted), 3) if grid else len(metrics)
    lines = math.ceil(len(wanted) / columns)
    counts: dict[str, set[int]] = {name: set() for name in arms}
    width = min(7.4, 0.4 + (2.9 if columns < 3 else 2.4) * columns + (1.2 if columns == 1 else 0))
    with rc_context(SETTINGS):
        figure = Figure(figsize=(width, 1), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.07)
        panels = list(figure.subplots(lines, columns, squeeze=False).flat)
        for place, (ax, (metric, chosen, group)) in enumerate(zip(panels, wanted, strict=False)):
            for name, n in _panel(ax, rows, metric, arm, chosen, {name: styles[name] for name in arms}).items():
                counts[name].add(n)
            name, unit = name_of(metric)
            title = group if len(metrics) == 1 and by else name
            if title == group:
                unit = textwrap.fill(name, 24) + (f"\n({unit})" if unit else "")
            ax.set_ylabel(unit)
            if grid or place < columns:
                ax.set_title(_broken(title, 34 if columns < 4 else 18), loc="left")
            if place + columns >= len(wanted):
                ax.set_xlabel("step")
            if not grid and place % columns == columns - 1:
                ax.text(1.04, 0.5, _broken(group, 20), transform=ax.transAxes, rotation=270, va="center", fontsize=8)
        for ax in panels[len(wanted) :]:
            ax.set_axis_off()
        _same_scale({ax: metric for ax, (metric, *_) in zip(panels, wanted, strict=False)})
        below = _legend(figure, arms, styles, counts, runs, arm)
        figure.set_figheight((2.1 if grid else 1.75) * lines + 0.45 + 0.18 * below)
        sns.despine(figure)
    return figure


def _broken(text: str, width: int) -> str:
    """At the commas if there are any, else between words."""
    return text if len(text) <= width else text.replace(", ", "\n") if ", " in text else textwrap.fill(text, width)


def _named(by: Sequence[str], values: tuple) -> str:
    return ", ".join(f"{key} = {v}" for key, v in zip(by, values, strict=True))


def facets(runs: pd.DataFrame, arm: str, knobs: Sequence[str]) -> list[str]:
    """The swept columns, base among them, that are crossed with `arm` so that each combination has two or more seeds:
    without a row of panels each, one mean would be over different policies. Bases that go with the seeds (one seed
    each) stay together."""
    varied = [key for key in ("base", *knobs) if key != arm and runs[key].nunique() > 1]
    seeds = runs.groupby([arm, *varied], observed=True).seed.nunique()
    return varied if varied and seeds.median() > 1 else []


def _panel(
    ax: Axes, rows: pd.DataFrame, metric: str, arm: str, runs: pd.DataFrame, styles: Mapping[str, Style]
) -> dict[str, int]:
    """Draw one metric of these runs -> arm -> number of runs that have it."""
    rows = rows[rows.run.isin(runs.run.astype(object))]
    ends = rows.groupby("run", observed=True).step.max()
    rows = rows[rows.metric.eq(metric)]
    counts, ends_of_bands = {}, []
    faint = min(0.5, max(0.2, 5 / max(1, rows.run.nunique())))  # many seeds must not hide the means
    for name, style in styles.items():
        own = runs.loc[runs[arm].astype(object).eq(name)].set_index("run")
        mine = rows[rows.run.isin(own.index.astype(object))]
        if not len(mine):
            continue
        curves = mine.pivot(index="step", columns="run", values="value").dropna(axis=1, how="all")
        curves.columns = curves.columns.astype(object)
        counts[name] = curves.shape[1]
        broken = (
            mine[~np.isfinite(mine.value)].groupby("run", observed=True).step.min()
        )  # logged as NaN: gone from there on
        alive = np.column_stack(
            [(curves.index <= ends[run]) & (curves.index < broken.get(run, math.inf)) for run in curves]
        )
        band = stats.t_band(curves, alive)
        for run in curves:
            seed = curves[run].dropna()
            ax.plot(
                seed.index,
                seed,
                color=style.colour,
                linewidth=0.6,
                alpha=faint,
                zorder=2,
                rasterized=curves.size > MANY_POINTS,
            )
            _mark_end(ax, seed, own.state[run], style)
        ax.fill_between(band.index, band.low, band.high, color=style.colour, alpha=0.16, linewidth=0, zorder=1)
        ends_of_bands += [band.low.min(), band.high.max()]
        every = max(1, math.ceil(len(band) / 7))
        ax.plot(
            band.index,
            band["mean"],
            color=style.colour,
            linewidth=1.8,
            dashes=style.dash or (None, None),
            marker=style.marker,
            markersize=4,
            markevery=every,
            markeredgecolor="white",
            markeredgewidth=0.5,
            zorder=4,
        )
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.margins(x=0.02)
    _focus(ax, rows.value[np.isfinite(rows.value)], ends_of_bands)
    return counts


def _focus(ax: Axes, values: pd.Series, bands: Sequence[float]) -> None:
    """Show all seeds, and of the bands at most half of the seeds' range beyond them: with two seeds a band is so wide
    that the curves would be flat lines."""
    if not len(values):
        return
    low, high = values.min(), values.max()
    room = 0.5 * (high - low) or 0.5 * abs(high) or 0.5
    low = max(np.nanmin([low, *bands]), low - room)
    high = min(np.nanmax([high, *bands]), high + room)
    pad = 0.05 * (high - low) or room
    ax.set_ylim(low - pad, high + pad)


def _mark_end(ax: Axes, seed: pd.Series, state: str, style: Style) -> None:
    """A cross where a failed or diverged run stops, a ring where a running one is."""
    if state in ("failed", "diverged") and len(seed):
        ax.plot(
            seed.index[-1], seed.iloc[-1], marker="x", markersize=6, markeredgewidth=1.6, color=style.colour, zorder=5
        )
    elif state == "running" and len(seed):
        ax.plot(seed.index[-1], seed.iloc[-1], marker="o", markersize=5, fillstyle="none", color=style.colour, zorder=5)


def _same_scale(metrics: Mapping[Axes, str]) -> None:
    """A metric has one y axis in all its panels, and lengths of all, correct and incorrect answers share one."""
    groups: dict[str, list[Axes]] = {}
    for ax, metric in metrics.items():
        together = "length" if metric in ("length/mean", "length/correct", "length/incorrect") else metric
        groups.setdefault(together, []).append(ax)
    for group in groups.values():
        low, high = min(ax.get_ylim()[0] for ax in group), max(ax.get_ylim()[1] for ax in group)
        for ax in group:
            ax.set_ylim(low, high)


def _legend(
    figure: Figure,
    arms: Sequence[str],
    styles: Mapping[str, Style],
    counts: Mapping[str, set[int]],
    runs: pd.DataFrame,
    arm: str,
) -> int:
    """Below the panels: each arm with its n, and how many of its runs did not complete -> its height in lines."""
    names, heading = short_names(arms) if arm == "arm" else ({name: str(name) for name in arms}, arm)
    handles = []
    for name in arms:
        style, n = styles[name], sorted(counts[name])
        seen = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}" if n else "0"
        states = runs.state[runs[arm].astype(object).eq(name)].value_counts().drop("complete", errors="ignore")
        more = ["no interval"] if n == [1] else []
        more += [f"{count} {state}" for state, count in sorted(states.items())]
        text = f"{names[name]} ({', '.join([f'n = {seen}', *more])})"
        line = Line2D([], [], color=style.colour, linewidth=1.8, marker=style.marker, markersize=4.5, label=text)
        line.set_dashes(style.dash or (None, None))
        handles.append(line)
    if runs.state.isin(["failed", "diverged"]).any():
        handles.append(Line2D([], [], linestyle="none", marker="x", color="#555555", label="run failed or diverged"))
    if runs.state.eq("running").any():
        handles.append(
            Line2D([], [], linestyle="none", marker="o", fillstyle="none", color="#555555", label="run not finished")
        )
    widest = max(len(handle.get_label()) for handle in handles)
    per_row = max(1, min(len(handles), int(figure.get_figwidth() * 15 // (widest + 8))))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=per_row,
        frameon=False,
        title=heading or None,
        handlelength=3.2,
    )
    return math.ceil(len(handles) / per_row) + bool(heading)


def forest(table: pd.DataFrame, pairs: pd.DataFrame) -> Figure:
    """Paired differences of all claims that have pairs: mean, 95 % t interval, single pairs, margin, n and verdict.

    table, pairs: of claims.verdicts. Claims about the same metric share an axis, in the metric's unit; the band around
    0 is the claim's margin. n counts pairs. Raises ValueError if no claim has a pair.
    """
    shown = table[table.n > 0]
    if not len(shown):
        raise ValueError("No claim has a pair of complete runs; there is nothing to draw.")
    groups = [group for _, group in shown.groupby("metric", sort=False)]
    with rc_context(SETTINGS):
        figure = Figure(figsize=(7.4, 0.3 + sum(0.62 + 0.5 * len(group) for group in groups)), layout="constrained")
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
            ax.fill_between(
                [-row["margin"], row["margin"]], place - 0.4, place + 0.4, color="#e3e3e3", linewidth=0, zorder=0
            )
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
        steps = (
            f"step {row['first_step']}"
            if row["first_step"] == row["last_step"]
            else f"steps {row['first_step']}–{row['last_step']}"
        )
        expected = {"greater": "expected > 0", "less": "expected < 0", "equal": "expected 0"}[row["expect"]]
        lines = [f"{row['claim']}. {row['x']} − {row['y']}", row["where"], f"{steps}, {expected}"]
        labels.append("\n".join(filter(None, lines)))
    ax.axvline(0, color="#333333", linewidth=0.9, zorder=1)
    ax.set_yticks(places, labels)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    ax.set_ylim(-0.6, len(group) - 0.4)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    name, unit = name_of(group.metric.iloc[0])
    ax.set_xlabel(f"paired difference: {name}" + (f" ({unit})" if unit else ""))
