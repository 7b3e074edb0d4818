"""Settings that cannot change what a run trains, given its other settings: arms that differ in nothing else are equal
by construction, and a crossing warns about them.

For every such setting there is a stand-in: what remains of it. A clip at the first update of a rollout, where every
ratio is 1, stands for the gradient -A however wide it is; a KL estimator whose coefficient is 0 stands for nothing. Two
arms whose configs agree once every setting is replaced by its stand-in train the same weights, up to rounding; logged
numbers that nothing is trained on (the value of a loss, the mean of a shifted reward) may differ. A test compares the
gradients of arms in both directions: those that are said to be equal are, and those that are not said to be are not.

Only this project's own functions have stand-ins; a user's function may do anything with what it is given.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from ablations import identity
from ablations.contradictions import value

OURS = "ablations.knobs."
NOISE = 1e-4  # more than a ratio of 1 is off in float32; a bound closer to 1 than this may bind at the first update


class StandIn(NamedTuple):
    """Why a setting cannot matter by itself, and what remains of it in a comparison (None: nothing)."""

    why: str
    as_if: Any = None


def stand_ins(config: Mapping[str, Any]) -> dict[str, StandIn]:
    """Rooms and settings (dotted) of a resolved config -> what stands for them."""
    found: dict[str, StandIn] = {}
    for rule in (_rewards, _credit, _keep, _whiten, _correction, _kl, _reference, _aggregates, _wide_clip, _update):
        found |= rule(config)
    return found | _first_update(config)


def equal_by_construction(configs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(arm, arm, why) for every two arms whose resolved configs cannot train different weights.

    configs: arm -> config of one and the same seed and base.
    """
    found = {arm: stand_ins(config) for arm, config in configs.items()}
    hashes = {arm: identity.config_hash(_replaced(configs[arm], found[arm])) for arm in configs}
    pairs = []
    for one, other in combinations(configs, 2):
        if hashes[one] == hashes[other]:
            paths = [p for p in found[one] | found[other] if value(configs[one], p) != value(configs[other], p)]
            why = {side[path].why for path in paths for side in (found[one], found[other]) if path in side}
            pairs.append((one, other, "; ".join(sorted(why)) or "their settings are the same"))
    return pairs


def updates_per_rollout(config: Mapping[str, Any]) -> int:
    """Optimiser steps on one rollout: epochs * minibatches."""
    return config["update"]["epochs"] * config["update"]["minibatches"]


# --- one rule per kind of setting ------------------------------------------------------------------------------------

SHIFT_CANCELS = {
    "baseline": {"group_mean", "leave_one_out", "batch_mean", "opo", "best_minus_second"},
    "scale": {"none", "group_std", "batch_std", "batch_std_of_centred"},
    "keep.rule": {"everything", "informative"},
}


def _rewards(config: Mapping[str, Any]) -> dict[str, StandIn]:
    """Every transform is scale * r + shift, and a shift cancels where a mean is subtracted and nobody else looks."""
    found = {}
    scale, shift = _affine(config["transform"], _ours(config, "transform"))
    if scale is not None:
        why = "as numbers these transforms are the same scale * r + shift"
        if all(_ours(config, room) in names for room, names in SHIFT_CANCELS.items()) and not _looks_at_rewards(config):
            why, shift = "a shift of the rewards cancels in the baseline", 0
        found["transform"] = StandIn(why, {"scale": scale, "shift": shift})
    weights = [part["weight"] for part in config["reward"].values() if part["weight"] != 0]
    penalised = config["beta"] and config["placement"]["before_baseline"]
    if weights == [1] and (scale, shift) == (1, 0) and not penalised and _ours(config, "combine"):
        found["combine"] = StandIn("with one part of weight 1, its sum and its normalisation are the same")
    return found


# Parts that leave an answer without a score where the task could not tell whether it is correct; the others never do.
NEEDS_VERDICT = {"correctness", "chain", "lenient", "inverted"}
NEEDS_VERDICT |= {"random", "shuffled_gold", "shuffled_within_group", "flips"}
ALWAYS_SCORED = {"formatted", "soft_overlong", "truncation"}


def _credit(config: Mapping[str, Any]) -> dict[str, StandIn]:
    if _ours(config, "credit") != "process" or _ours(config, "whiten") in ("", "sequences"):
        return {}
    why = "process credit normalises the steps' own rewards"
    found = dict.fromkeys(("baseline", "scale", "combine"), StandIn(why))
    if _ours(config, "keep.rule") == "everything" and not _looks_at_rewards(config):
        parts = {_name(entry["part"]).rpartition(".")[2] for entry in config["reward"].values() if entry["weight"] != 0}
        found["transform"] = StandIn(why)
        if parts <= NEEDS_VERDICT | ALWAYS_SCORED:
            found["reward"] = StandIn(why, {"needs a verdict": bool(parts & NEEDS_VERDICT)})
    return found


def _keep(config: Mapping[str, Any]) -> dict[str, StandIn]:
    found = {}
    if everything := _ours(config, "keep.rule") == "everything":
        found["keep.refill_rounds"] = StandIn("every group is kept, so none is missing")
    if everything or config["keep"]["refill_rounds"]:
        found["keep.dropped_rows_count"] = StandIn("no dropped row is in the update batch")
    return found


def _whiten(config: Mapping[str, Any]) -> dict[str, StandIn]:
    if _ours(config, "whiten") not in ("sequences", "tokens") or config["whiten"]["divide"]:
        return {}
    return dict.fromkeys(("whiten.ddof", "whiten.eps", "whiten.eps_form"), StandIn("nothing is divided"))


def _correction(config: Mapping[str, Any]) -> dict[str, StandIn]:
    if not _uncorrected(config):
        return {}
    return {"correction": StandIn("the old log-probabilities are the sampler's own, so the weight is 1")}


# What an estimator is in value, whatever its gradient, given that the ratio is 1.
VALUE = {name: name for name in ("k1", "k2", "k3", "absolute")}
VALUE |= {"ratio_k1": "k1", "ratio_k3": "k3", "k3_value_k2_gradient": "k3"}
FLAT_AT_0 = {"k2", "k3", "ratio_k3", "k3_value_k2_gradient"}  # gradient 0 where the two policies agree
SLOPE_1 = {"k1", "ratio_k1"}


def _kl(config: Mapping[str, Any]) -> dict[str, StandIn]:
    place, name, node = config["placement"], _ours(config, "kl"), config["kl"]
    if config["beta"] == 0:
        return dict.fromkeys(("kl", "placement", "reference"), StandIn("beta is 0, so no KL is used"))
    clamps = {key: node.get(key) for key in ("log_ratio_clamp", "value_clamp")}
    if not place["in_loss"]:
        why = "in the reward an estimator has a value and no gradient"
        return {"kl": StandIn(why, {"value": VALUE[name], **clamps})} if name else {}
    at_first = updates_per_rollout(config) == 1
    unclamped = not any(clamp is not None for clamp in clamps.values())
    if unclamped and name in SLOPE_1 and not node.get("attached"):
        why = "in the loss k1 has gradient 1 whatever it is a distance to"
        found = {"reference": StandIn(why), "placement": StandIn(why, "in the loss")}
        return found | ({"kl": StandIn(why, {"slope": 1})} if at_first or name == "k1" else {})
    if place["to_old"] and at_first and name in FLAT_AT_0:
        why = "with one update per rollout the policy is still the one before the update, so this KL has gradient 0"
        return dict.fromkeys(("kl", "beta", "reference"), StandIn(why))
    found = {"reference": StandIn("the KL is to the policy before the update")} if place["to_old"] else {}
    if at_first and place["to_old"] and unclamped and name in SLOPE_1:  # attached: the factor in front of it is 0
        found["placement"] = StandIn("at ratio 1 its gradient is 1", "in the loss")
        found["kl"] = StandIn("at ratio 1 its gradient is 1", {"slope": 1})
    elif at_first and name in ("k1", "k3", "ratio_k1", "ratio_k3") and not node.get("attached"):
        why = "with one update per rollout a ratio without gradient is the factor 1"
        found["kl"] = StandIn(why, {"estimator": VALUE[name], **clamps})
    return found


def _reference(config: Mapping[str, Any]) -> dict[str, StandIn]:
    every, mix = config["reference"]["sync_every"], config["reference"]["mix"]
    if every and every < config["steps"] and mix:
        return {}
    return {"reference": StandIn("the reference is not moved before the last update")}


def _aggregates(config: Mapping[str, Any]) -> dict[str, StandIn]:
    found = {}
    for room in ("aggregate", "aggregate_kl", "aggregate_entropy"):
        node, why = config.get(room) or config["aggregate"], "where none is given it is that of the policy term"
        if _name(node) in ("aggregate.token_mean", "aggregate.sum_over_constant"):
            node = {key: setting for key, setting in node.items() if key != "rows"}
            why = "no number of rows is in this aggregation's formula"
        found[room] = StandIn(why, node)
    if config["beta"] == 0 or not config["placement"]["in_loss"] or "beta" in _kl(config):
        found["aggregate_kl"] = StandIn("no KL with a gradient is in the loss")
    if _ours(config, "entropy") == "Constant" and config["entropy"]["coefficient"] == 0:
        found["aggregate_entropy"] = StandIn("there is no entropy bonus")
    return found


def _wide_clip(config: Mapping[str, Any]) -> dict[str, StandIn]:
    wide = _ours(config, "surrogate") in ("ppo_clip", "ClipCov") and config["surrogate"]["eps_low"] >= 1
    return {"surrogate.eps_low": StandIn("no ratio is below 0, so this clip never binds from below", 1)} if wide else {}


def _update(config: Mapping[str, Any]) -> dict[str, StandIn]:
    return {"update.tokens_per_micro_batch": StandIn("the losses of micro-batches add up to that of the batch")}


# --- the first update of a rollout, where every ratio is 1 -----------------------------------------------------------

# How the gradient of a ratio reaches the tokens of its answer.
THROUGH = {
    "token": "token",
    "sequence_mean_straight_through": "token",
    "sequence_mean": "mean over the answer",
    "sequence_sum": "sum over the answer",
}


def _beyond(*distances: float | None) -> bool:
    """Whether bounds at these distances leave a ratio of 1 alone; None is no bound."""
    return all(distance is None or distance > NOISE for distance in distances)


def _around_1(low: float | None, high: float | None) -> bool:
    return (low is None or low <= 1) and (high is None or high >= 1)


def _cispo_is_open(s: Mapping[str, Any]) -> bool:
    mask = s.get("sign_mask")
    silent = mask and not _beyond(mask["positive_above"] - 1, 1 - mask["negative_below"])
    return _around_1(s["lower"], s["upper"]) and not silent


def _above_1(bound: float | None) -> bool:
    return _beyond(None if bound is None else bound - 1)


def _bounds_are_open(s: Mapping[str, Any]) -> bool:
    return _around_1(s.get("lower"), s.get("upper"))


def _always(s: Mapping[str, Any]) -> bool:
    return True


# Surrogates whose gradient at ratio 1 is -A: by what it reaches the tokens ("ratio": as the ratio room says), and
# whether their settings leave that alone. Not KL-Cov and Clip-Cov, which treat what they choose across the batch
# apart at ratio 1 too (the penalty |log rho| of KL-Cov follows the sign of a rounding error there).
AT_1: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "ppo_clip": (
        "ratio",
        lambda s: _beyond(s["eps_low"], s["eps_high"]) and _above_1(s["dual_clip"]) and _above_1(s["delta"]),
    ),
    "unclipped_ratio": ("ratio", _always),
    "sapo": ("ratio", _always),
    "probability_mask_by_sign": ("ratio", lambda s: _beyond(s["above"], s["below"])),
    "probability_mask_symmetric": ("ratio", lambda s: _beyond(s["above"], s["below"])),
    "unclipped_logp": ("token", _always),
    "cispo": ("token", _cispo_is_open),
    "tis": ("token", _bounds_are_open),
    "topr": ("token", _bounds_are_open),
    "vespo": ("token", _always),
    "gmpo": ("mean over the answer", lambda s: _beyond(s["eps_low"], s["eps_high"]) and _open_at_0(s["token_clamp"])),
}


def _first_update(config: Mapping[str, Any]) -> dict[str, StandIn]:
    if updates_per_rollout(config) > 1:
        return {}
    why = "with one update per rollout every ratio is 1, so clips and ratios cannot act; set update.epochs=2 or more"
    found = {}
    for name, rule in config["tokens"].items():
        if _name(rule) == "tokens.off_policy_sequence" and _beyond(rule["threshold"]):
            found[f"tokens.{name}"] = StandIn("with one update per rollout the policy has not left any answer")
    name, ratio = _ours(config, "surrogate"), THROUGH.get(_ours(config, "ratio"))
    if name == "ClipCov" and _beyond(config["surrogate"]["eps_low"], config["surrogate"]["eps_high"]):
        found |= {"surrogate.eps_low": StandIn(why), "surrogate.eps_high": StandIn(why)}
    if not ratio or not all(_open_at_0(config["ratio"].get(clamp)) for clamp in ("clamp", "token_clamp")):
        return found
    found["ratio"] = StandIn(why, ratio)
    through, is_open = AT_1.get(name, ("", _always))
    if not through or not is_open(config["surrogate"]):
        return found
    through = ratio if through == "ratio" else through
    found["surrogate"] = StandIn(why, "token" if through == "mean over the answer" and _even(config) else through)
    if not _ratio_elsewhere(config):
        found["ratio"] = StandIn(why)
    return found


def _even(config: Mapping[str, Any]) -> bool:
    """Whether advantage and weight are the same on all tokens of an answer, so that a mean over it changes nothing."""
    if config["beta"] and config["placement"]["to_go"]:
        return False
    whole = all(_whole_answers(rule) for rule in config["tokens"].values())
    known = _ours(config, "whiten") and _ours(config, "aggregate")
    return bool(_ours(config, "credit") == "outcome" and whole and known and _uncorrected(config))


def _whole_answers(rule: Mapping[str, Any]) -> bool:
    """Whether a token rule takes all tokens of an answer or none at the first update of a rollout."""
    name = _name(rule)
    return name == "tokens.not_truncated" or (name == "tokens.off_policy_sequence" and _beyond(rule["threshold"]))


def _ratio_elsewhere(config: Mapping[str, Any]) -> bool:
    """Whether a ratio of 1 has a gradient outside the surrogate: rho * KL attached, where the KL is not 0."""
    place = config["placement"]
    used = config["beta"] and place["in_loss"] and not place["to_old"]
    attached = used and (config["kl"].get("attached") or not _ours(config, "kl"))
    return bool(attached or not _ours(config, "correction"))


# --- reading a config ------------------------------------------------------------------------------------------------


def _name(node: Mapping[str, Any] | None) -> str:
    """ "room.function" of one of this project's functions, "" for any other."""
    target = str((node or {}).get("_target_", ""))
    return target.removeprefix(OURS) if target.startswith(OURS) else ""


def _ours(config: Mapping[str, Any], path: str) -> str:
    """Name of the project's function at a dotted path, "" if it is another's."""
    return _name(value(config, path)).rpartition(".")[2]


def _looks_at_rewards(config: Mapping[str, Any]) -> bool:
    """Whether anything but keep and baseline depends on the reward: topr on its sign, a user's function perhaps."""
    rooms = ("credit", "whiten", "surrogate", "correction", "ratio", "kl", "combine")
    unknown = any(not _ours(config, room) for room in rooms) or any(not _name(r) for r in config["tokens"].values())
    imitates = updates_per_rollout(config) == 1 and _bounds_are_open(config["surrogate"])  # then topr is -A throughout
    return unknown or (_ours(config, "surrogate") == "topr" and not imitates)


def _uncorrected(config: Mapping[str, Any]) -> bool:
    name = _ours(config, "correction")
    open_ = name == "truncated_token_ratio" and config["correction"]["cap"] >= 1
    return name == "none" or (open_ and not config["rollout"]["recompute_logp"])


def _affine(node: Mapping[str, Any], name: str) -> tuple[float | None, float | None]:
    """(scale, shift) of a transform; None of another's function."""
    if name in ("none", "psr", "nsr"):
        return 1, -1 if name == "nsr" else 0
    if name == "w_reinforce":
        return 1 + node["lam"], -1
    return (node["scale"], node["shift"]) if name == "affine" else (None, None)


def _open_at_0(clamp: Any) -> bool:
    low, high = clamp or (None, None)
    return _beyond(None if low is None else -low, high)


def _replaced(config: Mapping[str, Any], found: Mapping[str, StandIn]) -> dict[str, Any]:
    left = {key: dict(node) if isinstance(node, Mapping) else node for key, node in config.items()}
    for path, stand_in in found.items():
        room, _, setting = path.partition(".")
        inside = left.get(room) if setting else left
        if isinstance(inside, dict):  # not where the whole room has a stand-in already
            inside.pop(setting or room, None)
            inside |= {} if stand_in.as_if is None else {setting or room: stand_in.as_if}
    return left
