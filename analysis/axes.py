"""What a figure can have on its axes: the step, a metric, or what training has cost so far."""

import pandas as pd

from analysis.raw import Absent

COSTS = {  # name -> (metric or beginning of metrics, what stands at an axis)
    "samples": ("samples/generated", "answers sampled so far"),
    "tokens": ("tokens/generated", "tokens sampled so far"),
    "seconds": ("seconds/", "seconds of training so far"),
}
NOT_TRAINING = "seconds/evaluate"  # how often a run is looked at is no cost of an arm


def course(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row per run and step: columns run, step, at. name: `step`, a metric, or samples, tokens, seconds: the sum of
    what was generated (measured) up to and with that step, 0 at a step before the first, where the base policy stands.
    Seconds are those of sampling, grading and updating, not of evaluating. Raises Absent for what no run logged."""
    if name == "step":
        return rows[["run", "step"]].drop_duplicates().assign(at=lambda frame: frame.step.astype(float))
    if name in COSTS:
        return _so_far(rows, name)
    own = rows[rows.metric.eq(name)]
    if not len(own):
        raise Absent(f"No run logged {name}; there are {', '.join(sorted(map(str, rows.metric.unique())))}.")
    return own[["run", "step", "value"]].rename(columns={"value": "at"})


def counted(metric: str, name: str) -> bool:
    """Whether a metric is a part of a cost."""
    return metric.startswith(COSTS[name][0]) and metric != NOT_TRAINING


def _so_far(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    own = rows[[counted(metric, name) for metric in rows.metric.astype(str)]]
    if not len(own):
        raise Absent(f"No run logged {COSTS[name][0]}, which {name} are counted from.")
    spent = own.groupby(["run", "step"], observed=True).value.sum().rename("at")
    steps = rows.loc[rows.run.isin(own.run.astype(object)), ["run", "step"]].drop_duplicates()
    found = steps.merge(spent.reset_index(), on=["run", "step"], how="left").sort_values(["run", "step"])
    first = own.groupby("run", observed=True).step.min()
    found = found[found["at"].notna() | found.step.lt(found.run.map(first).astype(float))]
    found["at"] = found["at"].fillna(0.0).groupby(found.run, observed=True).cumsum()
    return found.reset_index(drop=True)


def label(name: str, words: tuple[str, str]) -> str:
    """What stands at an axis. words: (name, unit) of the metric, from look.name_of."""
    if name in COSTS:
        return COSTS[name][1]
    return "step" if name == "step" else words[0] + (f" ({words[1]})" if words[1] else "")
