"""Figures of a search: history, importance, slices, parallel coordinates, contours. Every one says how many trials it
shows; trials that failed or were pruned have a mark of their own and no value."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis import look
from analysis.look import COLOURS, SETTINGS, name_of

optuna.logging.set_verbosity(optuna.logging.ERROR)  # a study in memory is no news

if TYPE_CHECKING:
    from analysis.searches import Search

COMPLETE, FRESH, SEED = COLOURS[0], COLOURS[5], "#9aa7b0"
LOST = {"failed": ("X", "#B2182B"), "pruned": ("v", "#777777")}
MAP = "cividis"
CONTOURS = 3  # at most this many parameters, the most important ones, are crossed with each other
FEWEST = 4  # complete trials, below which a surface or an importance says nothing


def draw(search: "Search", folder: Path) -> list[tuple[str, str]]:
    """Write what the trials allow -> [(caption, path within the search's folder)]."""
    for old in [*folder.glob("*.png"), *folder.glob("*.pdf")]:
        old.unlink()
    complete = search.trials[search.trials.state.eq("complete")]
    enough = len(complete) >= FEWEST and complete.score.nunique() > 1
    weights = importances(search) if enough else {}
    keys = sorted(search.keys, key=lambda key: -weights.get(key, 0))
    figures = [("history", history(search), "Score by trial; the best so far, and the best point on fresh seeds.")]
    if len(complete):
        figures.append(("slice", slices(search, keys), "Search score against each parameter; darker: later."))
        figures.append(("parallel", parallel(search, keys), "One line per complete trial; brighter is better."))
    if enough and len(keys) > 1:
        caption = "Share of the variance of the search score that each parameter explains (fANOVA)."
        figures.insert(1, ("importance", importance(weights, len(complete), search.metric), caption))
        numeric = [key for key in keys if "choices" not in _entry(search, key)][:CONTOURS]
        if len(numeric) > 1:
            figures.append(("contour", contours(search, numeric), "Search score between the trials, interpolated."))
    for name, figure, _ in figures:
        look.save(figure, folder, name)
    return [(caption, f"figures/{name}.png") for name, _, caption in figures]


def history(search: "Search") -> Figure:
    """Every trial's search score with its seeds, the best so far, and the best point's fresh score as a band."""
    from analysis import searches

    trials = search.trials.sort_values("trial")
    complete = trials[trials.state.eq("complete")]
    best, base = (searches.fresh(search, label) for label in ("best", "default"))
    with rc_context(SETTINGS):
        near = _near_the_best(search, complete.score, [found.mean for found in (best, base) if found is not None])
        figure = Figure(figsize=(6.6, 4.6 if near else 3.2), layout="constrained")
        panels = figure.subplots(2 if near else 1, 1, sharex=True, squeeze=False)[:, 0]
        for axes in panels:
            _history(axes, search, trials, complete)
            _fresh_lines(axes, best, base)
            axes.set_ylabel(_label(search.metric))
        if near:
            panels[0].set(ylim=near)
            panels[0].set_title("near the best", loc="left")
            panels[1].set_title("all trials", loc="left")
        panels[-1].set_xlabel("trial")
        panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure


def _history(axes: Axes, search: "Search", trials: pd.DataFrame, complete: pd.DataFrame) -> None:
    for column in (column for column in trials if column.startswith("seed ")):
        axes.plot(complete.trial, complete[column], "_", color=SEED, markersize=5, zorder=1)
    axes.plot([], [], "_", color=SEED, label="single seeds")
    text = f"mean of seeds, n = {len(complete)}"
    axes.plot(complete.trial, complete.score, "o", color=COMPLETE, markersize=4, label=text)
    way = search.about["objective"]["direction"]
    so_far = complete.score.cummax() if way == "maximize" else complete.score.cummin()
    axes.step(complete.trial, so_far, where="post", color=COMPLETE, linewidth=1, label="best so far")
    _mark_lost(axes, trials, "trial")


def _fresh_lines(axes: Axes, best: Any, base: Any) -> None:
    """The best point on fresh seeds with its interval, and the unsearched setting on the same seeds."""
    if best is not None:
        if best.n > 1:
            axes.axhspan(best.low, best.high, color=FRESH, alpha=0.15, linewidth=0)
        axes.axhline(best.mean, color=FRESH, dashes=(5, 1.5), label=f"best point on {best.n} fresh seeds")
    if base is not None:
        text = f"unsearched setting on them, n = {base.n}"
        axes.axhline(base.mean, color="#444444", dashes=(1.2, 1.2), label=text)


def _near_the_best(search: "Search", score: pd.Series, also: list[float]) -> tuple[float, float] | None:
    """Limits that show the better half of the trials, where the others are so far off that they hide it."""
    if len(score) < FEWEST:
        return None
    sign = 1 if search.about["objective"]["direction"] == "maximize" else -1
    half = score[sign * score >= (sign * score).median()]
    whole, part = score.max() - score.min(), half.max() - half.min()
    if whole < 4 * part:
        return None
    low, high = min([half.min(), *also]), max([half.max(), *also])
    return low - (high - low) / 4, high + (high - low) / 4


def importances(search: "Search") -> dict[str, float]:
    """Parameter -> share of the variance of the search score (Hutter et al. 2014), from the stored trials."""
    study = optuna.create_study(direction=search.about["objective"]["direction"])
    space = {entry["key"]: _distribution(entry) for entry in search.about["space"]}
    for _, row in search.trials[search.trials.state.eq("complete")].iterrows():
        point = {key: _python(row[key], space[key]) for key in space}
        study.add_trial(optuna.create_trial(params=point, distributions=space, value=float(row.score)))
    forest = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=forest))


def importance(weights: dict[str, float], n: int, metric: str) -> Figure:
    """A bar per parameter."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(4.2, 0.7 + 0.35 * len(weights)), layout="constrained")
        axes = figure.add_subplot()
        keys = sorted(weights, key=weights.get)
        bars = axes.barh(keys, [weights[key] for key in keys], color=COMPLETE, height=0.6)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=7.5)
        axes.set(xlim=(0, 1.2), xlabel=f"importance for {name_of(metric)[0]}, n = {n} trials")
        return figure


def slices(search: "Search", keys: Sequence[str]) -> Figure:
    """Score against each parameter."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(max(3.2, 2.6 * len(keys) + 0.6), 2.7), layout="constrained")
        panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
        complete = search.trials[search.trials.state.eq("complete")]
        best = complete[complete.trial.eq(search.best["trial"])]
        for axes, key in zip(panels, keys, strict=True):
            x = _places(search, key, complete[key])
            points = axes.scatter(
                x, complete.score, c=complete.trial, cmap=f"{MAP}_r", s=18, edgecolor="white", linewidth=0.4
            )
            axes.plot(_places(search, key, best[key]), best.score, "o", mfc="none", mec=FRESH, markersize=8)
            lost = search.trials.assign(**{key: _places(search, key, search.trials[key])})
            _mark_lost(axes, lost, key, label=axes is panels[0])
            _scale(axes, search, key)
        panels[0].set_ylabel(_label(search.metric))
        figure.colorbar(points, ax=panels, label="trial", pad=0.01)
        panels[0].set_title(f"n = {len(complete)} complete trials; ringed: the best", loc="left")
        if panels[0].get_legend_handles_labels()[1]:
            panels[0].legend(frameon=False, loc="lower center")
        return figure


def parallel(search: "Search", keys: Sequence[str]) -> Figure:
    """One line per complete trial through its parameters to its score."""
    with rc_context(SETTINGS):
        complete = search.trials[search.trials.state.eq("complete")]
        columns = [_unit(search, key, complete[key]) for key in keys]
        spread = complete.score.max() - complete.score.min()
        columns.append((complete.score - complete.score.min()) / spread if spread else complete.score * 0 + 0.5)
        figure = Figure(figsize=(max(3.6, 1.7 * len(columns)), 2.9), layout="constrained")
        axes = figure.add_subplot()
        sign = 1 if search.about["objective"]["direction"] == "maximize" else -1
        order = np.argsort(sign * complete.score.to_numpy(), kind="stable")  # the best on top
        lines = np.stack([np.column_stack([np.arange(len(columns)), row]) for row in np.column_stack(columns)])[order]
        norm = Normalize(complete.score.min(), complete.score.max())
        drawn = LineCollection(lines, cmap=MAP if sign > 0 else f"{MAP}_r", norm=norm, linewidths=1.1)
        drawn.set_array(complete.score.to_numpy()[order])
        axes.add_collection(drawn)
        for place, key in enumerate(keys):
            _ends(axes, place, *_end_labels(search, key))
        _ends(axes, len(keys), f"{complete.score.min():.3g}", f"{complete.score.max():.3g}")
        axes.set(xlim=(-0.35, len(columns) - 0.65), ylim=(-0.12, 1.12), yticks=[])
        axes.set_xticks(range(len(columns)), [*keys, name_of(search.metric)[0]])
        axes.tick_params(axis="x", length=0)
        axes.grid(False)
        for side in ("left", "right", "top", "bottom"):
            axes.spines[side].set_visible(False)
        axes.vlines(range(len(columns)), 0, 1, color="#888888", linewidth=0.8)
        axes.set_title(f"n = {len(complete)} complete trials", loc="left")
        figure.colorbar(drawn, ax=axes, label=_label(search.metric), pad=0.01)
        return figure


def contours(search: "Search", keys: Sequence[str]) -> Figure:
    """Score over each pair of numeric parameters."""
    with rc_context(SETTINGS):
        pairs = list(combinations(keys, 2))
        complete = search.trials[search.trials.state.eq("complete")]
        figure = Figure(figsize=(3.6 * len(pairs) + 0.6, 3.1), layout="constrained")
        panels = figure.subplots(1, len(pairs), squeeze=False)[0]
        for axes, (one, other) in zip(panels, pairs, strict=True):
            x, y = (_places(search, key, complete[key]) for key in (one, other))
            flat = [np.log10(v) if _entry(search, key)["log"] else v for key, v in ((one, x), (other, y))]
            surface = _surface(axes, search, flat, (one, other), complete.score)
            axes.plot(x, y, "o", color="white", mec="#222222", markersize=4, mew=0.6)
            best = complete[complete.trial.eq(search.best["trial"])]
            axes.plot(best[one], best[other], "o", mfc="none", mec=FRESH, mew=1.6, markersize=9)
            for label, column in (("failed", "X"), ("pruned", "v")):
                lost = search.trials[search.trials.state.eq(label)]
                axes.plot(lost[one], lost[other], column, color=LOST[label][1], markersize=5)
            _scale(axes, search, one)
            _scale(axes, search, other, "y")
            axes.grid(False)
        panels[0].set_title(f"n = {len(complete)} trials; ringed: the best", loc="left")
        figure.colorbar(surface, ax=panels, label=_label(search.metric), pad=0.01)
        return figure


# --- axes of a space -------------------------------------------------------------------------------------------------


def _surface(axes: Axes, search: "Search", flat: list[Any], keys: Sequence[str], score: pd.Series):
    """Triangles are chosen on the scale that is drawn: on a linear one, those of a logarithmic range are slivers."""
    from matplotlib.tri import Triangulation

    units = [_unit(search, key, search.trials.loc[score.index, key]) for key in keys]
    triangles = Triangulation(*units).triangles
    real = [10**v if _entry(search, key)["log"] else v for key, v in zip(keys, flat, strict=True)]
    return axes.tricontourf(Triangulation(*real, triangles), score, levels=12, cmap=MAP)


def _entry(search: "Search", key: str) -> dict[str, Any]:
    return next(entry for entry in search.about["space"] if entry["key"] == key)


def _places(search: "Search", key: str, values: pd.Series) -> pd.Series:
    """Where values stand on an axis: themselves, or the number of their choice."""
    choices = _entry(search, key).get("choices")
    return values if choices is None else values.map({str(c): i for i, c in enumerate(choices)}, na_action="ignore")


def _unit(search: "Search", key: str, values: pd.Series) -> np.ndarray:
    """Values on their own scale between 0 and 1."""
    entry = _entry(search, key)
    if "choices" in entry:
        return _places(search, key, values.astype(str)).to_numpy(float) / max(len(entry["choices"]) - 1, 1)
    low, high = entry["low"], entry["high"]
    values = values.to_numpy(float)
    if entry["log"]:
        low, high, values = np.log(low), np.log(high), np.log(values)
    return (values - low) / (high - low) if high > low else values * 0


def _scale(axes: Axes, search: "Search", key: str, side: str = "x") -> None:
    """The whole range that was searched, on its own scale."""
    entry = _entry(search, key)
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_label_text(key)
    if "choices" in entry:
        axis.set_ticks(range(len(entry["choices"])), [str(choice) for choice in entry["choices"]])
        limits = (-0.5, len(entry["choices"]) - 0.5)
    elif entry["log"]:
        axes.set(**{f"{side}scale": "log"})
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
        limits = (entry["low"] / 1.15, entry["high"] * 1.15)
    else:
        room = (entry["high"] - entry["low"] or 1) / 25
        limits = (entry["low"] - room, entry["high"] + room)
    axes.set(**{f"{side}lim": limits})


def _ends(axes: Axes, place: int, low: str, high: str) -> None:
    axes.text(place, -0.03, low, ha="center", va="top", fontsize=7)
    axes.text(place, 1.03, high, ha="center", va="bottom", fontsize=7)


def _end_labels(search: "Search", key: str) -> tuple[str, str]:
    entry = _entry(search, key)
    choices = entry.get("choices")
    return (str(choices[0]), str(choices[-1])) if choices else (f"{entry['low']:g}", f"{entry['high']:g}")


def _mark_lost(axes: Axes, trials: pd.DataFrame, column: str, label: bool = True) -> None:
    """Trials without a score, on the lower edge."""
    for state, (marker, colour) in LOST.items():
        lost = trials[trials.state.eq(state)]
        if len(lost):
            kept = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 3}
            text = {"label": f"{state}, n = {len(lost)}"} if label else {}
            axes.plot(lost[column], [0.0] * len(lost), marker, color=colour, markersize=5, linestyle="", **kept, **text)


def _label(metric: str) -> str:
    name, unit = name_of(metric)
    return f"{name} ({unit})" if unit else name


def _distribution(entry: dict[str, Any]) -> optuna.distributions.BaseDistribution:
    if "choices" in entry:
        return optuna.distributions.CategoricalDistribution(entry["choices"])
    kind = optuna.distributions.IntDistribution if entry.get("whole") else optuna.distributions.FloatDistribution
    return kind(entry["low"], entry["high"], log=entry["log"], **({"step": entry["step"]} if "step" in entry else {}))


def _python(value: Any, given: optuna.distributions.BaseDistribution) -> Any:
    """A cell of a csv as its distribution knows it."""
    if isinstance(given, optuna.distributions.CategoricalDistribution):
        return next(choice for choice in given.choices if str(choice) == str(value))
    return int(value) if isinstance(given, optuna.distributions.IntDistribution) else float(value)
