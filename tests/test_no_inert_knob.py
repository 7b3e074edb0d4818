"""No option and no setting without an effect, and no effect where the warning before a crossing denies it.

`ablations.inert` says which arms cannot train different weights. Here it is asked about the defaults and sixteen other
configs, each with every option of every room and every setting exchanged one at a time, and held against the gradients:
what it calls equal is equal, and what it does not differs on some input.
"""

import functools
import json
from typing import Any

import pytest
import torch
from hydra.errors import InstantiationException
from objective import (
    BASE,
    DEFAULTS,
    OPTIONS,
    ROOMS,
    at_first_update,
    changed,
    config,
    evaluate,
    options_of,
    random_batch,
)

from ablations import inert
from ablations.contradictions import Refused, refuse

ONE = {"update": {"epochs": 1, "minibatches": 1, "tokens_per_micro_batch": 64}}
SAMPLERS = {"rollout": BASE["rollout"] | {"recompute_logp": False}}
RAW = {"baseline": "none", "scale": "none", "transform": "affine"}

# Where options are exchanged. Every room has several choices among these, since what is inert beside one need not be so
# beside another.
AROUND: dict[str, dict[str, Any]] = {
    "the defaults, several updates": {"entropy": "constant"},
    "nothing subtracted, nothing divided": RAW | {"entropy": "adaptive"},
    "two parts": {"reward": ["correctness", "format"]},
    "Dr. GRPO": {"scale": "none", "aggregate": "constant", "beta": 0.0},
    "uneven advantages": {"placement": "reward_to_go", "whiten": "tokens", "ratio": "sequence_mean"},
    "process credit": {"credit": "process", "aggregate": "token_mean", "entropy": "constant"},
    "process credit, whitened": {"credit": "process", "whiten": "sequences", "surrogate": "topr"},
    "a KL in the reward": {"placement": "reward_before_baseline", "scale": "none", "keep": "between"},
    "a KL to the old policy": {"placement": "loss_to_old", "aggregate_kl": "sum_over_constant", "keep": "drop"},
    "a ratio in the KL": {"kl": "ratio_k3", "ratio": "sequence_sum", "scale": "batch_std"},
    "one update": ONE | SAMPLERS,
    "one update, through log pi": ONE | {"surrogate": "cispo", "kl": "ratio_k1_detached", "scale": "none"},
    "one update, tokens chosen": ONE | SAMPLERS | {"tokens": "high_entropy", "surrogate": "sapo", "beta": 0.0},
    "one update, whole answers": ONE | SAMPLERS | {"ratio": "sequence_mean", "tokens": "not_truncated"},
    "one update, uneven": ONE | {"ratio": "sequence_sum", "credit": "process", "kl": "ratio_k1"},
    "one update, a KL to the old policy": ONE | SAMPLERS | {"placement": "loss_to_old", "surrogate": "clip_cov"},
    "one update, a KL to go": ONE | {"placement": "reward_to_go", "surrogate": "gmpo", "ratio": "sequence_mean"},
}

LEFT = "the answer that the policy has left has no negative advantage here"
# Pairs that train alike on the batches here although other batches would tell them apart.
COINCIDENCES = {
    ("nothing subtracted, nothing divided", "scale", "gpg"): "no reward is 0 here",
    ("uneven advantages", "tokens", "off_policy_sequence"): LEFT,
    ("a KL in the reward", "tokens", "off_policy_sequence"): LEFT,
    ("a ratio in the KL", "tokens", "off_policy_sequence"): "the clip has silenced that answer already",
}
# These act on what is drawn, not on a batch that was; test_inert trains with them.
DRAWN = ("keep.refill_rounds", "keep.retire_at")


@functools.cache
def gradient(text: str, seed: int) -> torch.Tensor:
    """Of a config as JSON, by log-probabilities and entropies; at the first update if there is but one."""
    cfg = json.loads(text)
    batch = random_batch(seed)
    if inert.updates_per_rollout(cfg) == 1:
        batch = at_first_update(batch, cfg)
    result = evaluate(batch, cfg)
    return torch.cat([result.gradient, result.entropy_gradient])


def differ(one: dict, other: dict) -> bool:
    """Whether the gradients differ on any of six batches, by more than a ratio of 1 + 1e-11 can make them."""
    texts = [json.dumps(cfg, sort_keys=True) for cfg in (one, other)]
    return texts[0] != texts[1] and any(
        (gradient(texts[0], seed) - gradient(texts[1], seed)).abs().max() > 1e-9 for seed in range(6)
    )


def said_equal(one: dict, other: dict) -> bool:
    return bool(inert.equal_by_construction({"one": one, "other": other}))


def allowed(cfg: dict) -> bool:
    try:
        refuse(cfg)
    except Refused:
        return False
    return True


def drawn_alike(one: dict, other: dict) -> bool:
    return all(inert.value(one, path) == inert.value(other, path) for path in DRAWN)


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("room", "option"), [(r, o) for r, o in OPTIONS if o != DEFAULTS.get(r)])
def test_an_option_differs_from_the_default_or_it_is_written_down_why_not(room, option):
    made = ((config(**{**around, room: DEFAULTS.get(room)}), around) for around in AROUND.values())
    pairs = [(default, config(**{**around, room: option})) for default, around in made]
    untold = [pair for pair in pairs if pair[0] == pair[1] or not said_equal(*pair)]
    assert not untold or any(not drawn_alike(*pair) or differ(*pair) for pair in untold), (
        f"{room}={option} has the gradient of {room}={DEFAULTS.get(room)} on every input here. Add a config to AROUND, "
        "or a batch to objective.random_batch, on which it differs; or say in ablations/inert.py why it cannot."
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_two_options_of_a_room_are_one(room):
    names: dict[str, str] = {}
    for option in options_of(room):
        node = config(**{room: option})[room]
        content = list(node.values()) if room == "reward" else node  # a part's name is not what it does
        twin = names.setdefault(json.dumps(content, sort_keys=True), option)
        assert twin == option, f"{room}={twin} and {room}={option} have one function and the same settings; keep one"


def exchanges(name: str):
    """(room, option, config) for every exchange of one option in a config of AROUND that a run would take."""
    around, base = AROUND[name], config(**AROUND[name])
    assert allowed(base)
    made = ((room, option, config(**{**around, room: option})) for room, option in OPTIONS)
    return [(room, option, other) for room, option, other in made if other != base and allowed(other)]


@pytest.mark.slow
@pytest.mark.parametrize("name", AROUND)
def test_options_that_are_called_equal_are_equal(name):
    base = config(**AROUND[name])
    for room, option, other in exchanges(name):
        assert not (said_equal(base, other) and differ(base, other)), f"{name}: {room}={option} is called equal"


@pytest.mark.slow
@pytest.mark.parametrize("name", AROUND)
def test_options_that_are_not_called_equal_differ(name):
    base = config(**AROUND[name])
    for room, option, other in exchanges(name):
        told = said_equal(base, other) or not drawn_alike(base, other) or (name, room, option) in COINCIDENCES
        assert told or differ(base, other), (
            f"{name}: {room}={option} trains as {AROUND[name].get(room, 'the default')} does. Say why in "
            "ablations/inert.py, or name it in COINCIDENCES if another batch would tell them apart."
        )


@pytest.mark.slow
def test_every_coincidence_is_one():
    for (name, room, option), why in COINCIDENCES.items():
        pair = config(**AROUND[name]), config(**{**AROUND[name], room: option})
        assert not said_equal(*pair) and not differ(*pair), (name, room, option, why)


# --- settings --------------------------------------------------------------------------------------------------------

# Values to try in place of the yaml's; none where options of the room are what differs. Other numbers are tried half as
# large, half as large again, with 100 more, and with .1 less.
OTHER_VALUES: dict[str, list[Any]] = {
    "clamp": [[-0.05, 0.05]],
    "token_clamp": [[-0.05, 0.05]],
    "log_ratio_clamp": [0.1],
    "value_clamp": [0.05],
    "dual_clip": [1.05],
    "delta": [1.05],
    "lower": [0.95, 0.19],
    "upper": [1.05],
    "sign_mask": [{"positive_above": 1.05, "negative_below": 0.95}],
    "seed": [4, 5, 6],
    "ddof": [0, 1],
    "retire_at": [0.5],
    "rows": ["non_empty"],
    "touches": [["policy"], ["denominator"]],
    "eps_form": [{"_target_": "ablations.knobs.whiten.variance_floor", "_partial_": True}],
    "entropy.high": [0.002],
    "eps_low": [0.05],
    "eps_high": [0.05],
    "in_loss": [],
    "before_baseline": [],
    "to_go": [],
    "to_old": [],
    "_target_": [],
    "_partial_": [],
    "_convert_": [],
}


def settings_of(node: Any, path: str) -> list[tuple[str, Any]]:
    """(dotted path, value) of every setting below a node of a config."""
    if isinstance(node, dict) and path.rpartition(".")[2] not in OTHER_VALUES:
        return [pair for key, below in node.items() for pair in settings_of(below, f"{path}.{key}")]
    return [(path, node)]


def other_values(path: str, value: Any) -> list[Any]:
    name = path if path in OTHER_VALUES else path.rpartition(".")[2]
    if name in OTHER_VALUES:
        return [other for other in OTHER_VALUES[name] if other != value]
    if isinstance(value, bool):
        return [not value]
    return [value * 1.5 + 0.1, value * 0.5, value * 1.5 + 100, value - 0.1]


def taken(cfg: dict) -> bool:
    """Whether the options take their settings."""
    try:
        gradient(json.dumps(cfg, sort_keys=True), 0)
    except (ValueError, InstantiationException):
        return False
    return True


OWN_ROOM = [(room, option) for room, option in OPTIONS if room not in ("aggregate_kl", "aggregate_entropy")]


@pytest.mark.parametrize(("room", "option"), OWN_ROOM)
def test_a_setting_of_an_option_matters_or_it_is_written_down_why_not(room, option):
    for path, value in settings_of(config(**{room: option})[room], room):
        pairs = [
            (cfg, changed(cfg, path, other))
            for cfg in (config(**{**around, room: option}) for around in AROUND.values())
            for other in other_values(path, value)
            if path not in DRAWN
        ]
        untold = [pair for pair in pairs if not said_equal(*pair)]
        assert not untold or any(taken(pair[1]) and differ(*pair) for pair in untold), (
            f"{path} of {room}={option} changes no gradient here. Give it a value in OTHER_VALUES, or a config in "
            "AROUND, with which it does; or say in ablations/inert.py why it cannot."
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", AROUND)
def test_settings_that_are_called_inert_are(name):
    cfg = config(**AROUND[name])
    for room in ROOMS:
        for path, value in settings_of(cfg[room], room) if cfg[room] else []:
            for other in other_values(path, value):
                pair = cfg, changed(cfg, path, other)
                if path not in (*DRAWN, "keep.dropped_rows_count") and said_equal(*pair) and taken(pair[1]):
                    assert not differ(*pair), f"{name}: {path} is called inert"
