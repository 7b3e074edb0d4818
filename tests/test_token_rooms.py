"""What every option between advantage and loss has to satisfy. Parametrised over conf/: a new yaml is covered by it."""

import math

import pytest
import torch
from token_rooms import (
    DEFAULTS,
    evaluate,
    extreme_batch,
    load,
    on_policy,
    options_of,
    padded,
    random_batch,
    rows_of,
    wider,
)

from ablations.knobs.call import call
from ablations.knobs.ratio import bounded
from ablations.knobs.surrogate import ppo_clip

EVERY = [(room, option) for room in DEFAULTS for option in options_of(room)]
SPLITS = [[[0], [1], [2], [3], [4], [5]], [[0, 1, 2, 3], [4, 5]], [[5, 1], [2], [0, 3, 4]]]
# A weight that is constant for the gradient is not constant for a numerical one; these are tested by their formulas.
STOPPED = {"cispo", "tis", "topr", "vespo", "k3_value_k2_gradient", "sequence_mean_straight_through"}


def differentiable(room: str, option: str) -> bool:
    knob = load(room, option)
    settings, function = getattr(knob, "keywords", {}), getattr(knob, "func", type(knob))
    return function.__name__ not in STOPPED and settings.get("attached", True)


SMOOTH = [(r, o) for r, o in EVERY if r in ("ratio", "surrogate", "kl") and differentiable(r, o)]
PPO = [o for o in options_of("surrogate") if getattr(load("surrogate", o), "func", None) is ppo_clip]
BIT_FOR_BIT = [*PPO, "unclipped_ratio", "kl_cov"]
every_option = pytest.mark.parametrize(("room", "option"), EVERY)


@every_option
@pytest.mark.parametrize("splits", SPLITS)
def test_cutting_the_batch_into_micro_batches_changes_nothing(room, option, splits):
    whole, cut = evaluate(random_batch(), **{room: option}), evaluate(random_batch(), splits, **{room: option})
    for one, other in zip(whole, cut, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


@every_option
def test_padding_columns_change_nothing(room, option):
    narrow, wide = evaluate(random_batch(), **{room: option}), evaluate(wider(random_batch()), **{room: option})
    assert wide[0] == pytest.approx(narrow[0], abs=1e-12)
    for one, other in zip(narrow[1:], wide[1:], strict=True):
        torch.testing.assert_close(other[:, :5], one, rtol=0, atol=1e-12)
        assert not other[:, 5:].any()


@every_option
def test_the_order_of_rows_changes_nothing(room, option):
    batch, order = random_batch(), [4, 2, 0, 5, 3, 1]
    if option == "clip_cov":  # a random draw cannot follow the rows; everything after it must
        batch["chosen"] = load(room, option).choose(batch["logp"], batch["advantages"], batch["mask"])
    straight, shuffled = evaluate(batch, **{room: option}), evaluate(rows_of(batch, order), **{room: option})
    assert shuffled[0] == pytest.approx(straight[0], abs=1e-12)
    for one, other in zip(straight[1:], shuffled[1:], strict=True):
        torch.testing.assert_close(other, one[order], rtol=0, atol=1e-12)


@every_option
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_ratios_of_100_give_a_finite_loss_and_gradient(room, option, dtype):
    up, down = extreme_batch(dtype), extreme_batch(dtype, -1.0)
    for batch in (up, down, on_policy(up), on_policy(down)):
        loss, *gradients = evaluate(batch, **{room: option})
        assert math.isfinite(loss)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


@every_option
def test_a_batch_without_a_single_token_has_loss_and_gradient_zero(room, option):
    batch = random_batch()
    nothing = torch.zeros_like(batch["mask"])
    empty = {n: padded(v, nothing) if n.startswith("logp") or n == "entropies" else v for n, v in batch.items()}
    loss, *gradients = evaluate(empty | {"mask": nothing}, **{room: option})
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients)


@every_option
def test_fully_masked_rows_and_padding_have_gradient_zero(room, option):
    batch = random_batch()
    for gradient in evaluate(batch, **{room: option})[1:]:
        assert not gradient[~batch["mask"]].any()


@pytest.mark.parametrize(("room", "option"), SMOOTH)
def test_the_gradient_is_the_derivative_of_the_loss(room, option):
    batch = random_batch(seed=1)
    finite = {n: torch.where(batch["mask"], v, -1.0) if n.startswith("logp") else v for n, v in batch.items()}
    knob, ratio = load(room, option), load("ratio", "token")
    finite["chosen"] = torch.zeros_like(batch["mask"])
    finite["chosen"][0, 1] = finite["chosen"][3, 2] = True
    del finite["logp"]

    def term(logp):
        values = finite | {"logp": logp}
        return call(knob, values if room == "ratio" else values | {"ratio": call(ratio, values)})

    assert torch.autograd.gradcheck(term, (torch.where(batch["mask"], batch["logp"], -1.0).requires_grad_(),))


@pytest.mark.parametrize(("room", "option"), [(r, o) for r, o in EVERY if o != DEFAULTS[r]])
def test_no_option_is_inert(room, option):
    """There is an input on which it has another gradient than the room's default."""
    chosen, default = evaluate(random_batch(), **{room: option}), evaluate(random_batch())
    assert any((one - other).abs().max() > 1e-6 for one, other in zip(chosen[1:], default[1:], strict=True))


@pytest.mark.parametrize("option", options_of("surrogate"))
def test_at_ratio_1_every_surrogate_has_the_gradient_of_reinforce(option):
    """Nothing but a choice across the batch can act at the first update of a rollout."""
    batch = on_policy(random_batch())
    batch["chosen"] = torch.zeros_like(batch["mask"])
    bounds = getattr(load("surrogate", option), "keywords", {})
    at_1 = float(
        bounded(torch.ones(1).double(), (bounds.get("lower"), bounds.get("upper")))
    )  # below 1 where 1 is out of bounds
    mine = evaluate(batch, beta=0.0, surrogate=option)[1]
    reinforce = evaluate(batch, beta=0.0, surrogate="unclipped_logp")[1]
    torch.testing.assert_close(mine, at_1 * reinforce, rtol=0, atol=1e-15)


@pytest.mark.parametrize("option", BIT_FOR_BIT)
def test_at_ratio_1_clips_are_bit_for_bit_without_effect(option):
    batch = on_policy(random_batch())
    torch.testing.assert_close(
        evaluate(batch, beta=0.0, surrogate=option)[1], evaluate(batch, beta=0.0)[1], rtol=0, atol=0
    )


@pytest.mark.parametrize("option", ["sequence_mean", "sequence_mean_straight_through"])
def test_at_ratio_1_gspo_has_the_gradient_of_grpo(option):
    batch = on_policy(random_batch())
    gspo, grpo = evaluate(batch, beta=0.0, ratio=option)[1], evaluate(batch, beta=0.0)[1]
    torch.testing.assert_close(gspo, grpo, rtol=0, atol=1e-15)
