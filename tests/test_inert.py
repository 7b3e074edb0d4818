"""Arms that are equal by construction: exactly how equal, what was once wrongly called so, and what training makes of
it. (`test_no_inert_knob` goes through every option and setting.)"""

from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from objective import BASE, DEFAULTS, ROOMS, build, changed, config, evaluate, random_batch
from omegaconf import OmegaConf
from test_no_inert_knob import ONE, SAMPLERS, differ, said_equal

from ablations import inert
from ablations.build import CONF
from ablations.oracles import runs
from ablations.policy.tabular import GeometricStop
from ablations.tasks.tabular import Table

# --- the first update of a rollout -----------------------------------------------------------------------------------


def first(**choice: Any) -> torch.Tensor:
    """Gradient where logp_old is the current log-probability detached, bit for bit."""
    cfg = config(**ONE, **SAMPLERS, **{"beta": 0.0, "scale": "none", **choice})
    return evaluate((batch := random_batch()) | {"new": batch["sampler"].clone()}, cfg).gradient


@pytest.mark.parametrize("option", ["clip_higher", "dual_clip", "delta", "unclipped_ratio"])
@pytest.mark.parametrize("ratio", ["token", "sequence_mean", "sequence_sum"])
def test_at_the_first_update_clips_have_no_effect_on_a_single_bit(option, ratio):
    assert first(ratio=ratio).any()
    assert torch.equal(first(surrogate=option, ratio=ratio), first(ratio=ratio))


@pytest.mark.parametrize("setting", ["eps_low", "eps_high"])
@pytest.mark.parametrize("size", [1e-3, 0.1, 0.5, 10.0])
def test_at_the_first_update_the_width_of_a_clip_has_no_effect_on_a_single_bit(setting, size):
    narrow = changed(config(**ONE, **SAMPLERS, beta=0.0, scale="none"), f"surrogate.{setting}", size)
    batch = random_batch()
    assert torch.equal(evaluate(batch | {"new": batch["sampler"].clone()}, narrow).gradient, first())


ALIKE = ["sapo", "probability_mask_by_sign", "probability_mask_symmetric", "unclipped_logp"]
ALIKE += ["cispo", "cispo_one_sided", "cispo_sign_mask", "tis", "topr", "vespo", "gmpo"]


@pytest.mark.parametrize("option", ALIKE)
def test_at_the_first_update_surrogates_differ_by_rounding_only(option):
    torch.testing.assert_close(first(surrogate=option), first(), rtol=0, atol=1e-15)


def test_at_the_first_update_ratios_of_a_mean_are_alike_and_that_of_a_sum_is_not():
    for option in ("sequence_mean", "sequence_mean_straight_through"):
        torch.testing.assert_close(first(ratio=option), first(), rtol=0, atol=1e-15)
    lengths = random_batch()["lengths"][:, None]
    torch.testing.assert_close(first(ratio="sequence_sum"), first() * lengths, rtol=0, atol=1e-14)


# --- not equal, although something near it is ------------------------------------------------------------------------

SIGNS = {"positive_above": 0.95, "negative_below": 0.9}
DIFFERENT: dict[str, tuple[dict, dict]] = {
    "a bound at 1 binds as soon as rounding moves the ratio": (ONE | {"surrogate.eps_high": 0.0}, ONE),
    "so does a bound from above at 1": (ONE | {"surrogate.delta": 1.0}, ONE),
    "weights of at most a half": (ONE | {"surrogate": "cispo", "surrogate.upper": 0.5, "surrogate.lower": 0.1}, ONE),
    "weights of at most a half, for rows that are not paid": (ONE | {"surrogate": "topr", "surrogate.upper": 0.5}, ONE),
    "a sign mask that leaves 1 out": (ONE | {"surrogate": "cispo_sign_mask", "surrogate.sign_mask": SIGNS}, ONE),
    "a mean over an answer whose tokens differ in advantage": (
        ONE | {"credit": "process", "surrogate": "gmpo"},
        ONE | {"credit": "process"},
    ),
    "likewise by a KL to go": (
        ONE | {"placement": "reward_to_go", "ratio": "sequence_mean"},
        ONE | {"placement": "reward_to_go"},
    ),
    "likewise by the weight for the sampler": (
        ONE | {"correction": "truncated_token_ratio", "ratio": "sequence_mean"},
        ONE | {"correction": "truncated_token_ratio"},
    ),
    "likewise by a token mask": (
        ONE | {"tokens": "high_entropy", "ratio": "sequence_mean"},
        ONE | {"tokens": "high_entropy"},
    ),
    "a sum over the answer": (ONE | {"ratio": "sequence_sum"}, ONE),
    "a ratio that the KL has a gradient through": (
        ONE | {"kl": "ratio_k3", "ratio": "sequence_mean"},
        ONE | {"kl": "ratio_k3"},
    ),
    "rewards that reach process credit by the statistics of whitening": (
        {"credit": "process", "whiten": "sequences", "baseline": "none"},
        {"credit": "process", "whiten": "sequences"},
    ),
    "rewards that reach process credit by the choice of groups": (
        {"credit": "process", "keep": "between", "transform": "nsr"},
        {"credit": "process", "keep": "between"},
    ),
    "a shift that a sign depends on": ({"surrogate": "topr", "transform": "nsr"}, {"surrogate": "topr"}),
    "a shift that a count of paid answers depends on": ({"scale": "gpg", "transform": "nsr"}, {"scale": "gpg"}),
    "the aggregation of an entropy bonus": (
        {"entropy": "constant", "aggregate_entropy": "constant"},
        {"entropy": "constant"},
    ),
    "likewise of one that is 0 at the start": (
        {"entropy": "adaptive", "aggregate_entropy": "constant"},
        {"entropy": "adaptive"},
    ),
    "two updates": ({"surrogate": "clip_higher"}, {}),
}


def configured(choice: dict) -> dict:
    cfg = config(**{key: value for key, value in choice.items() if "." not in key})
    for path in (key for key in choice if "." in key):
        cfg = changed(cfg, path, choice[path])
    return cfg


@pytest.mark.parametrize("why", DIFFERENT)
def test_what_can_matter_is_not_called_equal(why):
    one, other = map(configured, DIFFERENT[why])
    assert differ(one, other) and not said_equal(one, other)


@pytest.mark.parametrize("room", ["surrogate", "ratio", "transform", "kl", "credit", "aggregate"])
def test_nothing_is_said_about_a_users_function_of_the_same_name(room):
    ours = config(**ONE, **SAMPLERS)
    theirs = changed(ours, f"{room}._target_", ours[room]["_target_"].replace("ablations.knobs.", "my."))
    assert not said_equal(ours, theirs)
    changed_more = changed(theirs, f"{room}.eps_low", 0.01)
    assert not said_equal(theirs, changed_more)


def test_the_reasons_are_those_of_what_differs():
    one = config(**ONE, **SAMPLERS, beta=0.0)
    arms = {
        "default": one,
        "clip": changed(one, "surrogate.eps_low", 0.1),
        "kl": config(**ONE, **SAMPLERS, beta=0.0, kl="k1"),
        "scale": config(**ONE, **SAMPLERS, beta=0.0, scale="none"),
    }
    found = {(a, b): why for a, b, why in inert.equal_by_construction(arms)}
    assert set(found) == {("default", "clip"), ("default", "kl"), ("clip", "kl")}
    assert "set update.epochs=2 or more" in found["default", "clip"] and "beta" not in found["default", "clip"]
    assert found["default", "kl"] == "beta is 0, so no KL is used"


# --- what training makes of it ---------------------------------------------------------------------------------------


def weights(rooms: dict | None = None, *, cfg: dict | None = None, steps: int = 4, **settings: Any) -> torch.Tensor:
    """Parameters of a table after a few rollouts of the training loop."""
    policy = GeometricStop([0.5, 0.6, 0.95, 0.3], [0.25, 0.4])
    task = Table(4, ("c", "d"))
    collect = runs.sampling(task, prompts=4, group_size=3, max_new_tokens=6)
    plain = {"lr": 0.5, "seed": 1, "beta": 0.0} | settings
    for _ in runs.trained(policy, build(cfg or config(**(rooms or {}))), collect, steps=steps, **plain):
        pass
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def test_clips_train_the_same_weights_while_a_rollout_has_one_update_and_others_once_it_has_two():
    for option in ("clip_higher", "unclipped_ratio", "clip_gspo"):
        assert torch.equal(weights({"surrogate": option}), weights())
    assert not torch.equal(weights({"surrogate": "clip_gspo"}, epochs=2), weights(epochs=2))


def test_micro_batches_train_the_same_weights():
    torch.testing.assert_close(weights(tokens_per_micro_batch=40), weights(), rtol=0, atol=1e-12)


def test_a_reference_that_follows_matters_from_the_first_synchronisation_on():
    kept = weights(beta=0.5)
    assert torch.equal(weights(beta=0.5, sync_every=4), kept), "the last update has been made by then"
    assert torch.equal(weights(beta=0.5, sync_every=2, sync_mix=0.0), kept)
    assert not torch.equal(weights(beta=0.5, sync_every=2), kept)
    to_old = {"placement": "loss_to_old"}
    assert torch.equal(weights(to_old, beta=0.5, epochs=2, sync_every=2), weights(to_old, beta=0.5, epochs=2))


def test_refilling_and_retiring_change_what_is_drawn():
    kept, dropped = weights({"keep": "all"}), weights({"keep": "drop"})
    assert not torch.equal(weights({"keep": "refill"}), dropped)
    assert not torch.equal(weights({"keep": "no_positive_resampling"}), kept)


def test_rows_that_were_dropped_count_where_there_are_any():
    refill = config(keep="refill")
    assert said_equal(refill, changed(refill, "keep.dropped_rows_count", True))
    counted = [weights(cfg=changed(config(keep=o), "keep.dropped_rows_count", c)) for o, c in COUNTED]
    assert torch.equal(counted[0], counted[1]) and not torch.equal(counted[2], counted[3])


COUNTED = [("refill", True), ("refill", False), ("drop", True), ("drop", False)]


# Groups whose options are compared elsewhere, or are no choice between knobs.
NO_KNOB = {
    "task": "what is asked",
    "model": "who answers",
    "adapter": "which of its weights are trained",
    "base": "what it has learnt before",
    "budget": "how long",
    "algorithm": "names for choices of the others",
    "ablation": "questions about the others",
    "search": "ranges of the others",
    "hydra/launcher": "where it runs",
}
AROUND_UPDATES = ("clipping", "optimizer", "schedule", "reference")


def test_every_group_of_options_is_covered():
    folders = {path.parent.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml")} - {"."}
    inside = {folder for folder in folders if folder.partition("/")[0] in NO_KNOB}  # task/prompt belongs to task
    new = folders - inside - set(ROOMS) - set(AROUND_UPDATES) - set(NO_KNOB)
    assert not new, f"conf/{new} is new: show here that its options matter, or say in NO_KNOB why that is no question"


@pytest.mark.parametrize(
    ("room", "option"), [(r, p.stem) for r in AROUND_UPDATES for p in CONF.glob(f"{r}/*.yaml") if p.stem != DEFAULTS[r]]
)
def test_an_option_around_the_updates_trains_other_weights_than_the_default(room, option):
    def after(**choice: str) -> torch.Tensor:
        """Parameters after 25 gradients of fixed directions, the last few steep; or a reference that followed them."""
        chosen = DEFAULTS | choice
        nodes = {each: OmegaConf.load(CONF / each / f"{chosen[each]}.yaml") for each in AROUND_UPDATES}
        whole = OmegaConf.create(BASE | nodes)
        weight, anchor = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.zeros(3))
        optimizer = instantiate(whole.optimizer, _convert_="all")([weight])
        schedule, clip = instantiate(whole.schedule)(optimizer), instantiate(whole.clipping)
        reference = whole.reference
        for step in range(1, 26):
            weight.grad = torch.tensor([1.0, -2.0, 0.1]) * (0.1 if step < 20 else 3.0)
            clip([weight])
            optimizer.step()
            schedule.step()
            if reference.sync_every and step % reference.sync_every == 0:
                anchor.data.lerp_(weight.data, reference.mix)
        return torch.cat([weight.detach(), anchor.detach()])

    assert not torch.equal(after(**{room: option}), after())
