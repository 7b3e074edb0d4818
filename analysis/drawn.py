"""The figures of a report: which ones an ablation gets, under which names, with which captions."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import axes, look, plots
from analysis.arms import CHOICES
from analysis.claims import Verdicts, main_knob
from analysis.load import Stored
from analysis.plots.hacking import CARELESS, STRICT
from analysis.plots.layout import Layout
from analysis.question import STEP, Asked, Question

FIGURES = (
    "accuracy/heldout",
    "reward/mean",
    "length/mean",
    "length/correct",
    "length/incorrect",
    "entropy/mean",
    "groups/zero_advantage",
)
LENGTHS = ("length/mean", "length/correct", "length/incorrect")
LEVEL = "accuracy/heldout/level_"
FOREST = (
    "Paired differences of the claims: mean (marker) and 95 % t interval (bar), every single pair (ticks), and the "
    "margin inside which a difference counts as none (grey band). Whether a difference is none is decided by its 90 % "
    "interval, which is narrower than the bar: two one-sided tests at 5 %."
)
CURVES = (
    "Mean over seeds with its 95 % t band, which may reach beyond the panel; thin lines are single seeds; n is the "
    "number of runs that have a value. A mean ends where the first of its runs ends or has no value any more."
)
SAME = "Drawn in the same way."
PATHS = "The mean path of every arm along training, with 95 % t intervals at its end; thin lines are single seeds."
HACKING = (
    "What passes the careless checker against what is right, along training. On the diagonal the two agree; the height "
    "above it is paid for without being right. Learning moves to the right, hacking up. " + PATHS
)
FRONTIER = (
    "Held-out accuracy at the last step against the KL to the base policy over the last third of the steps, on a "
    "logarithmic axis. Small points are single runs, large ones the means of arms with 95 % t intervals in both "
    "directions. The colours are those of the other figures; the markers tell what else was swept."
)
FEWEST = 5  # steps at which held-out accuracy and KL are both known, for a path; else training accuracy stands in


class Drawn(NamedTuple):
    """figures, more: (caption, path within the ablation's folder); more is every other logged metric. constant: metrics
    with one value throughout. skipped: asked for, but logged by no run."""

    figures: list[tuple[str, str]]
    more: list[tuple[str, str]]
    constant: list[tuple[str, float]]
    skipped: list[str]


def draw(stored: Stored, question: Question, verdicts: Verdicts, folder: Path) -> Drawn:
    """Draw and save all of them in <folder>/figures; files of an earlier report with other figures go."""
    place = folder / "figures"
    for old in [*place.glob("*.png"), *place.glob("*.pdf")]:
        old.unlink()
    arm = main_knob(question, stored)
    found = plots.layout(stored.runs, arm, stored.knobs)
    how = {"by": found.by, "styles": found.styles, "everywhere": found.everywhere}
    runs = found.runs
    logged = list(stored.rows.metric.cat.categories)
    finite = set(stored.rows.metric[np.isfinite(stored.rows.value)])
    valued = [metric for metric in logged if metric in finite]  # a figure of two metrics needs both
    wanted = list(dict.fromkeys(question.figures or map(Asked, FIGURES)))
    asked = [each.y for each in wanted if each.x == STEP]
    costs = [each for each in wanted if each.x != STEP]
    figures, shown = [], set()
    # Whether it runs at all is not seen better in twenty more figures, nor in vectors, and both are most of the time of
    # a smoke test.
    quick = question.budget == "smoke"

    def saved(name: str, caption: str, figure: Figure) -> tuple[str, str]:
        look.save(figure, place, name, vector=not quick)
        return caption, f"figures/{name}.png"

    if len(verdicts.table) and verdicts.table.n.max() > 0:
        figures.append(saved("claims", FOREST, plots.forest(*verdicts)))
    caption = CURVES
    for name, metrics in _courses(question, asked, logged):
        figure = plots.small_multiples(stored.rows, metrics, arm, runs, **how)
        words = look.begin("; ".join(look.name_of(m)[0] for m in metrics))
        figures.append(saved(name, f"{words}. {caption}", figure))
        caption, shown = SAME, shown | set(metrics)
    for each in (each for each in costs if _possible(each, valued)):
        figure = plots.against(stored.rows, each.x, each.y, arm, runs, **how)
        figures.append(saved(f"{each.y}-{each.x}".replace("/", "_"), _against(each), figure))
    if hacked(asked, valued):
        figures.append(saved("hacking", HACKING, plots.hacking(stored.rows, arm, runs, **how)))
    if bought := _bought(stored, question, valued, found, arm):
        figures.append(saved(*bought))
    for name, caption_of, make in _comparisons(stored, valued, arm, runs, how):
        figures.append(saved(name, caption_of, make()))
    rest = [m for m in logged if m not in shown and not m.startswith(("seconds/", LEVEL))]
    constant = _constant(stored.rows, rest)
    rest = [m for m in rest if m not in dict(constant) and not quick]
    size = 4 if how["by"] else 6
    more = []
    for start in range(0, len(rest), size):
        part = rest[start : start + size]
        figure = plots.small_multiples(stored.rows, part, arm, runs, **how)
        words = look.begin("; ".join(look.name_of(m)[0] for m in part))
        more.append(saved(f"more{start // size + 1}", f"{words}. {SAME}", figure))
    skipped = [m for m in asked if m not in logged]
    skipped += [f"{each.y} against {each.x}" for each in costs if not _possible(each, valued)]
    return Drawn(figures, more, constant, skipped)


def _possible(wanted: Asked, logged: list[str]) -> bool:
    return wanted.y in logged and any(axes.counted(metric, wanted.x) for metric in logged)


def _against(wanted: Asked) -> str:
    """The caption of a metric against what training has cost."""
    measured = (
        " Seconds of sampling, grading and updating, as they were measured beside whatever else ran then; evaluations "
        "are not among them."
    )
    cost = axes.label(wanted.x, ("", ""))
    first = f"{look.begin(look.name_of(wanted.y)[0])} against {cost}. {PATHS}"
    return first + measured * (wanted.x == "seconds")


def _bought(
    stored: Stored, question: Question, logged: list[str], found: Layout, arm: str
) -> tuple[str, str, Figure] | None:
    """(file name, caption, figure) of accuracy against KL where the coefficient of the KL was swept."""
    kl = next((m for m in (*(c.metric for c in question.claims), "kl/k1") if m.startswith("kl/") and m in logged), None)
    if kl is None or "accuracy/heldout" not in logged or "beta" not in stored.knobs or stored.runs.beta.nunique() < 2:
        return None
    how = {"styles": found.styles, "everywhere": found.everywhere}
    figure = plots.frontier(stored.rows, kl, "accuracy/heldout", arm, found.runs, **how)
    return "frontier", FRONTIER, figure


def hacked(asked: list[str], logged: list[str]) -> bool:
    """Whether the figure of reward hacking is wanted and possible."""
    return "accuracy/lenient_gap" in asked and {STRICT, CARELESS} <= set(logged)


def _courses(question: Question, asked: list[str], logged: list[str]) -> Iterator[tuple[str, list[str]]]:
    """(file name, metrics): the first claim's metric, the lengths together, the others by four."""
    first = [claim.metric for claim in question.claims[:1] if claim.metric in logged]
    shown = [metric for metric in asked if metric in logged]
    others = [m for m in shown if m not in LENGTHS]
    yield from (("main", first),) if first else ()
    if lengths := [m for m in shown if m in LENGTHS]:
        yield "length", lengths
    for start in range(0, len(others), 4):
        yield f"training{start // 4 + 1 if start else ''}", others[start : start + 4]


def _comparisons(
    stored: Stored, logged: list[str], arm: str, runs: pd.DataFrame, how: dict
) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    """(file name, caption, what draws it) of the figures that need certain metrics or knobs. runs: as they are laid
    out."""
    rows = stored.rows
    accuracy = next((m for m in CHOICES if m in logged), None)
    done = runs.state.eq("complete").any()
    if accuracy and (kl := next((m for m in ("kl/k3", "kl/k1") if m in logged), None)):
        dense = _with_common_steps(rows, logged, kl)
        caption = f"{look.begin(look.name_of(dense)[0])} against {look.name_of(kl)[0]}. {PATHS}"
        yield "kl", caption, lambda: plots.against(rows, kl, dense, arm, runs, **how)
    if accuracy and "length/mean" in logged:
        beside = _with_common_steps(rows, logged, "length/mean")
        caption = f"{look.begin(look.name_of(beside)[0])} against the length of the answers. {PATHS}"
        yield "accuracy_length", caption, lambda: plots.against(rows, "length/mean", beside, arm, runs, **how)
    pair = "groups/zero_advantage", "groups/zero_advantage_predicted"
    if set(pair) <= set(logged):
        caption = (
            "Share of groups whose rewards agree, against the share that the spread of success rates predicts for "
            "groups of this size, if rates are Beta distributed: away from the diagonal they are not. A point is "
            "the mean over a sixth of a run's steps; n is the number of runs."
        )
        yield "zero_advantage", caption, lambda: plots.agreement(rows, *pair, arm, runs, **how)
    if done and any(m.startswith(LEVEL) for m in logged):
        caption = "Accuracy by difficulty at the end of training, with 95 % t intervals; points are single runs."
        yield "levels", caption, lambda: plots.levels(rows, arm, runs, **how)
    if done and accuracy:
        base = ["base"] if "base" in how["by"] else []
        caption = (
            f"Arms by their mean {look.name_of(accuracy)[0]} at the last step. Neighbours whose intervals overlap may "
            "well stand the other way round."
        )
        styles = styles_of_arms(runs, arm, how["styles"])
        yield "ladder", caption, lambda: plots.ladder(rows, accuracy, "arm", runs, by=base, styles=styles)
        crossed = stored.runs[~runs[arm].astype(object).isin(how["everywhere"])]
        swept = [knob for knob in stored.knobs if crossed[knob].nunique() > 1]
        if len(swept) == 2:
            across = (swept if arm != swept[1] else swept[::-1])[:2]
            caption = (
                f"{look.begin(look.name_of(accuracy)[0])} at the last step for every combination of {swept[0]} and "
                f"{swept[1]}: mean over seeds and base policies, half width of its 95 % t interval, n."
            )
            yield "map", caption, lambda: plots.heat_map(rows, accuracy, *across, crossed)


def styles_of_arms(runs: pd.DataFrame, knob: str, styles: Mapping[str, look.Style]) -> dict[str, look.Style]:
    """The look of every whole arm: that of its value of `knob`, as in the figures that tell lines apart by it."""
    of_arm = dict(zip(runs.arm.astype(object), runs[knob].astype(object), strict=True))
    return {arm: styles[of_arm[arm]] for arm in runs.arm.cat.categories if arm in of_arm}


def _with_common_steps(rows: pd.DataFrame, logged: list[str], other: str) -> str:
    """The first of CHOICES that was logged at FEWEST steps with the other metric, else the one with most."""
    at = set(rows.step[rows.metric.eq(other)])
    common = {m: len(at & set(rows.step[rows.metric.eq(m)])) for m in CHOICES if m in logged}
    return next((m for m, n in common.items() if n >= FEWEST), max(common, key=common.get))


def _constant(rows: pd.DataFrame, metrics: list[str]) -> list[tuple[str, float]]:
    """Metrics with one finite value in all runs at all steps: a line that is flat needs no panel."""
    own = rows[rows.metric.isin(metrics)]
    by_metric = own.groupby("metric", observed=True).value
    low, high = by_metric.min(), by_metric.max()
    whole = np.isfinite(own.value).groupby(own.metric, observed=True).all()
    return [(str(m), float(low[m])) for m in low.index if whole[m] and low[m] == high[m]]
