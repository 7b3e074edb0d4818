"""The space of a search: ranges from a yaml -> Optuna's distributions, and a point of it -> overrides of a run.

A parameter is one of

    lr:    {key: optimizer.lr, low: 1e-4, high: 1e-2, log: true, points: 5}
    steps: {key: update.epochs, low: 1, high: 4, step: 1, whole: true}
    scale: {key: scale, choices: [none, group_std]}

key: what an override names. points: how many values a grid takes of a range, ends included; nothing else needs it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ablations import identity
from ablations.contradictions import Refused

RANGE = {"key", "low", "high", "log", "step", "whole", "points"}
CHOICE = {"key", "choices"}
DIGITS = 4  # significant digits of a sampled number: enough for any setting, and short enough to be typed again


class Space(NamedTuple):
    """key -> distribution, in the order of the yaml; key -> number of values that a grid takes of a continuous one."""

    distributions: dict[str, BaseDistribution]
    points: dict[str, int | None]


def space(parameters: Mapping[str, Mapping[str, Any]]) -> Space:
    """Read a search's space. Raises Refused for a range that cannot be meant."""
    if not parameters:
        raise Refused("search.space is empty; name at least one parameter with its key and its range or choices.")
    found: dict[str, BaseDistribution] = {}
    for name, given in parameters.items():
        key = str(given.get("key", name))
        if key in found or key == "seed" or key.split(".")[0] in identity.OUTSIDE:
            why = "is there twice" if key in found else "is no part of what is trained, or drives the noise"
            raise Refused(f"search.space.{name}: {key} {why}; search over the other settings of a run.")
        found[key] = _distribution(f"search.space.{name}", given)
    points = {str(given.get("key", name)): given.get("points") for name, given in parameters.items()}
    return Space(found, points)


def _distribution(where: str, given: Mapping[str, Any]) -> BaseDistribution:
    allowed = CHOICE if "choices" in given else RANGE
    if strange := sorted(set(given) - allowed):
        raise Refused(f"{where} has {', '.join(strange)}; it can have {', '.join(sorted(allowed))}.")
    if "choices" in given:
        if not given["choices"]:
            raise Refused(f"{where}.choices is empty; give at least one value.")
        return CategoricalDistribution(tuple(dict.fromkeys(given["choices"])))
    low, high = given.get("low"), given.get("high")
    log, whole = bool(given.get("log", False)), bool(given.get("whole", False))
    if not _number(low) or not _number(high) or low > high:
        raise Refused(f"{where} goes from {low} to {high}; give finite numbers low <= high, or choices.")
    if log and low <= 0:
        raise Refused(f"{where} has a logarithmic scale from {low}; its low must be above 0, or log: false.")
    if log and given.get("step"):
        raise Refused(f"{where} has log and step {given['step']}; a step is for a linear scale. Leave one of them out.")
    if whole:
        return IntDistribution(int(low), int(high), log=log, step=int(given.get("step") or 1))
    return FloatDistribution(float(low), float(high), log=log, step=given.get("step"))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def size(searched: Space) -> int | None:
    """Number of different points; None if there is a continuous parameter."""
    counts = [_count(distribution) for distribution in searched.distributions.values()]
    return None if None in counts else math.prod(counts)


def _count(given: BaseDistribution) -> int | None:
    if isinstance(given, CategoricalDistribution):
        return len(given.choices)
    if given.step is None:
        return 1 if given.single() else None
    return int((given.high - given.low) / given.step + 1e-9) + 1


def grid(searched: Space) -> dict[str, list[Any]]:
    """key -> the values of a full grid. Raises Refused for a continuous range that does not say how many points."""
    return {key: _values(key, given, searched.points[key]) for key, given in searched.distributions.items()}


def _values(key: str, given: BaseDistribution, points: int | None) -> list[Any]:
    if isinstance(given, CategoricalDistribution):
        return list(given.choices)
    if points is None:
        if (count := _count(given)) is None:
            raise Refused(f"A grid needs to know how many values {key} takes; add points: 5 to its range, for example.")
        return [given.low + place * given.step for place in range(count)] if count > 1 else [given.low]
    spread = np.geomspace if given.log else np.linspace
    return [rounded(given, value) for value in spread(given.low, given.high, points).tolist()]


def rounded(given: BaseDistribution, value: Any) -> Any:
    """A sampled value with DIGITS significant digits, inside its range; what is no continuous number stays."""
    if isinstance(given, IntDistribution):
        return int(round(value))
    if not isinstance(given, FloatDistribution) or given.step is not None:
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), given.low), given.high)


def overrides(point: Mapping[str, Any]) -> list[str]:
    """{"optimizer.lr": 0.0003} -> ["optimizer.lr=0.0003"]."""
    return [f"{key}={spelled(value)}" for key, value in point.items()]


def spelled(value: Any) -> str:
    """A value as the override grammar reads it back."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z][\w./-]*", value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value) if isinstance(value, float) else str(value)


def described(searched: Space) -> list[dict[str, Any]]:
    """What the stored results say of the space: one entry per parameter."""
    entries = []
    for key, given in searched.distributions.items():
        if isinstance(given, CategoricalDistribution):
            entries.append({"key": key, "choices": list(given.choices)})
        else:
            entries.append({"key": key, "low": given.low, "high": given.high, "log": given.log})
            entries[-1] |= {} if given.step is None else {"step": given.step}
            entries[-1] |= {"whole": True} if isinstance(given, IntDistribution) else {}
    return entries


def same_point(one: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a point is among others."""
    return any(dict(one) == dict(other) for other in others)
