"""What a reader must be warned of before numbers of two arms are set side by side."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from analysis.facts import Facts
from analysis.load import Stored

SAMPLED_ONLY = ("rollout.temperature",)
HELDOUT, GREEDY = "accuracy/heldout", "accuracy/heldout_greedy"
FEW = 0.3  # share of groups that have anything to learn from


def unlike(settings: Mapping[str, Mapping[str, str]], x: pd.Series, y: pd.Series, metric: str) -> str:
    """Why two sets of runs (hashes) cannot be compared by a held-out metric: evaluation settings in which they differ,
    in words; empty for other metrics, and where they agree.

    settings: hash -> the run's evaluation settings that are not the same in all runs. Greedy answers do not depend on
    the temperature.
    """
    if not metric.startswith(HELDOUT):
        return ""
    keys = dict.fromkeys(key for own in settings.values() for key in own)
    for key in keys:
        if metric == GREEDY and key in SAMPLED_ONLY:
            continue
        sides = [{settings[run][key] for run in side if run in settings} for side in (x, y)]
        if sides[0] != sides[1]:
            one, other = (" or ".join(sorted(side)) or "not known" for side in sides)
            return f"the arms were evaluated under different settings ({key}: {one} and {other})"
    return ""


def sentences(stored: Stored, facts: Facts, folder: Path) -> list[str]:
    """Few informative groups, what a sweep of the group size holds fixed, and what was found out after the runs: a line
    each of cautions.txt in the ablation's folder, written by hand."""
    found = folder / "cautions.txt"
    later = found.read_text(encoding="utf-8").splitlines() if found.is_file() else []
    return [*_few_informative(stored), *_group_size(stored, facts), *(line.strip() for line in later if line.strip())]


def _few_informative(stored: Stored) -> list[str]:
    found = []
    dead = stored.rows[stored.rows.metric.eq("groups/zero_advantage") & stored.rows.step.gt(0)]
    expected = stored.rows[stored.rows.metric.eq("groups/zero_advantage_predicted")]
    if not len(dead):
        return found
    early = dead.step <= dead.step.min() + (dead.step.max() - dead.step.min()) / 10  # before success empties the groups
    for (arm, base), own in dead[early].groupby(["arm", "base"], observed=True):
        share = 1 - own.value.mean()
        if share < FEW:
            same = expected[expected.run.isin(own.run.astype(object)) & expected.step.isin(own.step)]
            beside = f"; {1 - same.value.mean():.0%} are to be expected at these success rates" if len(same) else ""
            found.append(
                f"In the first tenth of the steps only {share:.0%} of the groups of {arm} (base {base}) had anything "
                f"to learn from{beside}. Larger groups or easier problems would give more."
            )
    return found


def _group_size(stored: Stored, facts: Facts) -> list[str]:
    knob = next((k for k in stored.knobs if k in ("rollout.group_size", "group_size")), None)
    if knob is None or stored.runs[knob].nunique() < 2:
        return []
    sampled = stored.rows[stored.rows.metric.eq("samples/generated")]
    per_size = sampled.groupby(sampled[knob].astype(object)).value.mean().round(6)
    if per_size.nunique() == 1:
        return [f"The group size is swept with the answers per step held fixed ({per_size.iloc[0]:g})."]
    prompts = facts.fixed.get("rollout.prompts")
    if prompts is not None:
        return [
            f"The group size is swept with the prompts per step held fixed ({prompts}): larger groups see more answers."
        ]
    return ["The group size is swept and neither the prompts nor the answers per step are held fixed."]
