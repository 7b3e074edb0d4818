"""What a figure can have on its axes: the step, a metric, or what training has cost so far."""

import pandas as pd

from analysis.raw import Absent

COSTS = {
    "samples": ("samples/generated", "answers sampled so far"),
    "tokens": ("tokens/generated", "tokens sampled so far"),
    "seconds": ("seconds/", "seconds of training so far"),
}


def course(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row per run and step: columns run, step, at. name: `step`, a metric, or samples, tokens, seconds: the sum of
    what was generated (measured) up to and with that step. Raises Absent for what no run logged."""
    if name == "step":
        return rows[["run", "step"]].drop_duplicates().assign(at=lambda frame: frame.step.astype(float))
    if name in COSTS:
        own = rows[rows.metric.astype(str).str.startswith(COSTS[name][0])]
        if not len(own):
            raise Absent(f"No run logged {COSTS[name][0]}, which {name} are counted from.")
        per_step = own.groupby(["run", "step"], observed=True).value.sum().rename("at").reset_index()
        per_step["at"] = per_step.groupby("run", observed=True)["at"].cumsum()
        return per_step
    own = rows[rows.metric.eq(name)]
    if not len(own):
        raise Absent(f"No run logged {name}; there are {', '.join(sorted(map(str, rows.metric.unique())))}.")
    return own[["run", "step", "value"]].rename(columns={"value": "at"})


def label(name: str, words: tuple[str, str]) -> str:
    """What stands at an axis. words: (name, unit) of the metric, from look.name_of."""
    if name in COSTS:
        return COSTS[name][1]
    return "step" if name == "step" else words[0] + (f" ({words[1]})" if words[1] else "")
