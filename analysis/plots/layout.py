"""Which runs share a panel: lines by one knob, panels by the others, and arms that stand alone in every panel."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from analysis.look import Style, arm_styles

GREYS = ("#707070", (4, 2), "<"), ("#9a9a9a", (1.2, 1.2), ">"), ("#505050", (7, 2, 1.2, 2), "X")


class Layout(NamedTuple):
    """runs: with the names of lone arms in the column that tells lines apart. by: the columns whose combinations get
    panels. styles: the look of each line. everywhere: the lone arms, which stand in every panel."""

    runs: pd.DataFrame
    by: list[str]
    styles: dict[object, Style]
    everywhere: list[str]


def facets(runs: pd.DataFrame, arm: str, knobs: Sequence[str]) -> list[str]:
    """The swept columns, base among them, that are crossed with `arm` so that each combination has two or more seeds
    (or all there are, if there is one): without a row of panels each, one mean would be over different policies. Bases
    that go with the seeds (one seed each) stay together."""
    varied = [key for key in ("base", *knobs) if key != arm and runs[key].nunique() > 1]
    seeds = runs.groupby([arm, *varied], observed=True).seed.nunique()
    return varied if varied and seeds.median() >= min(2, runs.seed.nunique()) else []


def layout(runs: pd.DataFrame, arm: str, knobs: Sequence[str]) -> Layout:
    """Panels by what is crossed with `arm`. A combination that has one value of `arm`, and a value of another knob that
    no combination with several has, is no part of the crossing but an arm to compare with (no KL beside estimators and
    coefficients, a placebo): it gets no panel of one line, it is a grey dashed line in each. With more than three of
    those every combination is a panel."""
    styles = arm_styles(list(runs[arm].cat.categories))
    by = facets(runs, arm, knobs)
    lone = _lone(runs, arm, [key for key in by if key != "base"])
    if not lone:
        return Layout(runs, by, styles, [])
    names = pd.Series(runs[arm].astype(object), index=runs.index)
    for name, own in lone.items():
        names[own] = name
    crossed = ~names.isin(list(lone))
    there = set(names[crossed])
    styles = {value: style for value, style in styles.items() if value in there}
    styles |= {name: Style(*grey) for name, grey in zip(lone, GREYS, strict=False)}
    named = runs.assign(**{arm: pd.Categorical(names, categories=list(styles), ordered=True)})
    return Layout(named, [key for key in by if runs[key][crossed].nunique() > 1], styles, list(lone))


def _lone(runs: pd.DataFrame, arm: str, by: list[str]) -> dict[str, pd.Series]:
    """Name -> whether a run belongs to it. A lone arm is called by what no other combination has, and its value of
    `arm`."""
    if not by:
        return {}
    combination = runs.groupby(by, observed=True).ngroup()
    values = runs[arm].astype(object).groupby(combination).nunique()
    several = runs[combination.isin(values.index[values > 1])]
    known = {key: set(several[key].astype(object)) for key in by}
    first = runs.groupby(combination)[by].first()
    new = pd.Series(
        [any(v not in known[key] for key, v in row.items()) for row in first.to_dict("records")], first.index
    )
    alone = list(values.index[values.eq(1) & new])
    if not alone or len(alone) > len(GREYS) or len(alone) == len(values):
        return {}
    mine = [combination.eq(number) for number in alone]
    for whole in (False, True):
        named = {}
        for own in mine:
            one = runs[own].iloc[0]
            told = [key for key in by if whole or one[key] not in known[key]]
            named[" ".join(f"{key}={_short(one[key])}" for key in (*told, arm))] = own
        if len(named) == len(alone):
            break
    return named


def _short(v: object) -> str:
    return f"{v:g}" if isinstance(v, float) else str(v)
