"""Settings that cannot change a run, given its other settings. A comparison of two of them is equal by construction.

The same knowledge serves the warning before a crossing and the tests that show for every option an input on which it
matters.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from ablations import identity
from ablations.contradictions import option, value

# Clips and gates around ratio 1: while the ratio is 1 their gradient is -A, whatever their settings are.
AROUND_ONE = {"ppo_clip", "unclipped_ratio", "unclipped_logp", "sapo", "gmpo", "vespo", "topr"}
AROUND_ONE |= {"probability_mask_by_sign", "probability_mask_symmetric"}
BOUNDED = {"cispo", "tis"}  # the same, if their bounds contain 1
DETACHED = BOUNDED | {"unclipped_logp", "vespo", "topr", "gmpo"}  # no gradient flows through the ratio room


def inert(config: Mapping[str, Any]) -> dict[str, str]:
    """Rooms and settings (dotted) that cannot matter in this resolved config -> why."""
    found: dict[str, str] = {}
    if updates_per_rollout(config) == 1 and at_first_update(config):
        why = (
            "with one update per rollout every ratio is 1, so clips and ratios cannot act; set update.epochs=2 or more"
        )
        settings = ("surrogate.eps_low", "surrogate.eps_high", "surrogate.dual_clip")
        found |= dict.fromkeys(("surrogate", "ratio") if one_gradient(config) else settings, why)
    if config["beta"] == 0:
        why = "beta is 0, so no KL is used"
        found |= {room: why for room in ("kl", "placement", "reference", "aggregate_kl")}
    elif not config["placement"]["in_loss"]:
        found["aggregate_kl"] = "the KL is not in the loss"
    if option(config, "aggregate") in ("token_mean", "sum_over_constant"):
        found["aggregate.rows"] = "no number of rows is in this aggregation's formula"
    if option(config, "credit") == "process":
        why = "process credit normalises the steps' own rewards"
        found |= {room: why for room in ("baseline", "scale", "combine")}
    if value(config, "entropy.coefficient") == 0 and option(config, "entropy") == "Constant":
        found["aggregate_entropy"] = "there is no entropy bonus"
    return found


def updates_per_rollout(config: Mapping[str, Any]) -> int:
    """Optimiser steps on one rollout: epochs * minibatches."""
    return config["update"]["epochs"] * config["update"]["minibatches"]


def at_first_update(config: Mapping[str, Any]) -> bool:
    """Whether the surrogate's gradient at ratio 1 is -A."""
    name, settings = option(config, "surrogate"), config["surrogate"]
    if name == "ppo_clip":
        return settings.get("delta") is None or settings["delta"] >= 1
    if name in BOUNDED:
        low, high = settings.get("lower"), settings.get("upper")
        return (low is None or low <= 1) and (high is None or high >= 1)
    return name in AROUND_ONE


def one_gradient(config: Mapping[str, Any]) -> bool:
    """Whether a token's gradient at ratio 1 is -W A whichever ratio is chosen.

    A row's ratio spreads its gradient evenly over the row: the same while the weights W are even too. A product over
    the row multiplies it by the row's length.
    """
    name = option(config, "ratio")
    even = not config["tokens"]
    return option(config, "surrogate") in DETACHED or name == "token" or (name != "sequence_sum" and even)


def equal_by_construction(configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(arm, arm, why) for every two arms whose resolved configs differ in inert settings only.

    configs: arm -> config of one and the same seed and base.
    """
    reduced = {arm: _without(config, inert(config)) for arm, config in configs.items()}
    pairs = []
    for one, other in combinations(configs, 2):
        if identity.config_hash(reduced[one]) == identity.config_hash(reduced[other]):
            why = inert(configs[one]) | inert(configs[other])
            pairs.append((one, other, "; ".join(sorted({why[key] for key in _differing(configs, one, other, why)}))))
    return pairs


def _without(config: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    left = {key: dict(node) if isinstance(node, Mapping) else node for key, node in config.items()}
    for path in paths:
        room, _, setting = path.partition(".")
        if setting and isinstance(left.get(room), dict):
            left[room].pop(setting, None)
        elif not setting:
            left.pop(room, None)
    return left


def _differing(configs, one: str, other: str, paths: Mapping[str, str]) -> list[str]:
    return [path for path in paths if value(configs[one], path) != value(configs[other], path)]
