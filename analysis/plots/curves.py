"""Courses over the steps of training: means over seeds with their bands, single seeds, panels by metric or group."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import stats
from analysis.load import Absent
from analysis.look import SETTINGS, Style, arm_styles, name_of
from analysis.plots.legend import legend
from analysis.plots.panels import arms_of, broken, columns_of, groups_of

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
    everywhere: Sequence[str] = (),
) -> Figure:
    """One panel per metric: mean over seeds with its 95 % t band, single seeds thin, n in the legend.

    rows: one row per (run, step, metric). runs: their states. arm: the column that tells the lines apart. by: columns
    whose combinations get a row of panels each (`layout` finds those that need it). styles: from arm_styles over all
    arms, so that an arm looks the same in every figure. everywhere: arms that are drawn in every panel. The mean of an
    arm ends where the first of its runs ends or has no value any more; a failed or diverged run is drawn up to its last
    step and marked with a cross, a running one with a ring. An arm that is NaN throughout has no line, n is 0. Raises
    Absent for a metric that no run has.
    """
    logged = set(rows.metric.unique())
    if missing := [metric for metric in metrics if metric not in logged]:
        raise Absent(f"No run logged {', '.join(missing)}; there are {', '.join(sorted(logged))}.")
    arms = arms_of(runs, arm)
    styles = styles or arm_styles(arms)
    groups = groups_of(runs, by, arm, everywhere)
    wanted = [(metric, chosen, group) for group, chosen in groups for metric in metrics]
    # one metric: a grid of groups; one group: a grid of metrics; else a row of metrics for each group
    grid = len(metrics) == 1 or len(groups) == 1
    columns = columns_of(len(wanted), [group for group, _ in groups]) if grid else len(metrics)
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
                ax.set_title(broken(title, {1: 44, 2: 32, 3: 27}.get(columns, 18)), loc="left")
            if place + columns >= len(wanted):
                ax.set_xlabel("step")
            if not grid and place % columns == columns - 1:
                ax.text(1.04, 0.5, broken(group, 20), transform=ax.transAxes, rotation=270, va="center", fontsize=8)
        for ax in panels[len(wanted) :]:
            ax.set_axis_off()
        _same_scale({ax: metric for ax, (metric, *_) in zip(panels, wanted, strict=False)})
        below = legend(figure, arms, styles, counts, runs, arm)
        figure.set_figheight((2.1 if grid else 1.75) * lines + 0.45 + 0.18 * below)
        sns.despine(figure)
    return figure


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
        if not counts[name]:  # undefined at every step of every run: no line, and the legend says so
            continue
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
    """A metric has one y axis in all its panels, and lengths of all, correct and incorrect answers share one. Panels in
    which nothing is drawn have no say in it."""
    groups: dict[str, list[Axes]] = {}
    for ax, metric in metrics.items():
        if not ax.has_data():
            continue
        together = "length" if metric in ("length/mean", "length/correct", "length/incorrect") else metric
        groups.setdefault(together, []).append(ax)
    for group in groups.values():
        low, high = min(ax.get_ylim()[0] for ax in group), max(ax.get_ylim()[1] for ax in group)
        for ax in group:
            ax.set_ylim(low, high)
