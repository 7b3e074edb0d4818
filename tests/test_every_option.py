"""What every option of every room has to satisfy, through the whole objective. Parametrised over conf/: a new yaml is
covered by it before its author writes a test.

Exceptions stand in tables with their reason, and a test shows that each of them is one.
"""

import functools
import math

import pytest
import torch
from objective import (
    MEASURED,
    OPTIONS,
    ROOMS,
    WIDTH,
    N,
    Result,
    build,
    changed,
    config,
    evaluate,
    options_of,
    prepared,
    random_batch,
    wider,
)

from ablations import grpo
from ablations.knobs import baseline
from ablations.knobs.call import needs

SPLITS = [[range(0, 5), range(5, 10), range(10, 18), [18]], [[7, 0, 3], [8], range(9, 19), [1, 2, 4, 5, 6]]]
ORDER = [5, 11, 2, 14, 7, 0, 16, 3, 12, 9, 6, 17, 1, 10, 15, 4, 13, 18, 8]

# Two surroundings: the defaults with every term switched on, and one in which advantages, masks and ratio are less
# simple. The option in question replaces what stands there in its room.
PLAIN = {"entropy": "constant"}
BUSY = {
    "entropy": "adaptive",
    "transform": "affine",
    "keep": "drop",
    "baseline": "leave_one_out",
    "scale": "batch_std",
    "credit": "process",
    "whiten": "tokens",
    "tokens": "high_entropy",
    "ratio": "sequence_mean",
    "correction": "truncated_token_ratio",
    "kl": "ratio_k3",
    "placement": "reward_to_go",
    "aggregate": "group_token_mean",
    "aggregate_kl": "sequence_sum",
}
DIFFERENTIATED = set(ROOMS[ROOMS.index("tokens") :])  # what comes before gives numbers that no gradient goes through
every_option = pytest.mark.parametrize(("room", "option"), OPTIONS)


def of(room: str, option: str, around: dict = PLAIN) -> dict:
    return config(**{**around, room: option})


@functools.cache
def whole(room: str, option: str, busy: bool) -> Result:
    return evaluate(random_batch(), of(room, option, BUSY if busy else PLAIN))


def agree(one: Result, other: Result, rows=slice(None), columns=slice(None)) -> None:
    assert math.isfinite(one.loss) and other.loss == pytest.approx(one.loss, rel=1e-10, abs=1e-10)
    for mine, theirs in zip(one[1:3], other[1:3], strict=True):
        torch.testing.assert_close(theirs[:, columns], mine[rows], rtol=1e-10, atol=1e-10)


@every_option
def test_cutting_the_batch_into_micro_batches_changes_nothing(room, option):
    for around, splits in zip((PLAIN, BUSY), SPLITS, strict=True):
        agree(whole(room, option, around is BUSY), evaluate(random_batch(), of(room, option, around), splits))


@every_option
def test_padding_columns_change_nothing_whatever_stands_there(room, option):
    """Infinities and NaN stand at the padding of every table of the batch."""
    for around in (PLAIN, BUSY):
        narrow, wide = whole(room, option, around is BUSY), evaluate(wider(random_batch()), of(room, option, around))
        agree(narrow, wide, columns=slice(WIDTH))
        assert not wide.gradient[:, WIDTH:].any() and not wide.entropy_gradient[:, WIDTH:].any()
        padding = ~random_batch()["mask"]
        assert not narrow.gradient[padding].any() and not narrow.entropy_gradient[padding].any()


# A random draw cannot follow the rows. What is drawn per row is drawn once and handed to both orders; where the draw is
# among tokens, all that could be drawn are.
DRAWN = {("surrogate", "clip_cov"): ("surrogate.share", 1.0)}


@every_option
def test_the_order_of_rows_changes_nothing(room, option):
    for around in (PLAIN, BUSY):
        cfg, batch, straight = of(room, option, around), random_batch(), whole(room, option, around is BUSY)
        if (room, option) in DRAWN:
            cfg = changed(cfg, *DRAWN[room, option])
            straight = evaluate(batch, cfg)
        if any("generator" in needs(entry["part"]) for entry in build(cfg).reward.values()):
            batch = batch | {name: straight.batch[name] for name in ("parts", "part_weights")}
        agree(straight, evaluate(grpo.select(batch, torch.tensor(ORDER)), cfg), rows=ORDER)


@every_option
def test_log_ratios_of_100_give_a_finite_loss_and_gradient(room, option):
    """To the old policy, the sampler and the reference, of both signs in every answer."""
    for around, dtype in ((PLAIN, torch.float32), (BUSY, torch.float64)):
        result = evaluate(random_batch(gap=100.0), of(room, option, around), dtype=dtype)
        assert math.isfinite(result.loss)
        assert torch.isfinite(result.gradient).all() and torch.isfinite(result.entropy_gradient).all()


@every_option
def test_answers_without_a_token_have_no_gradient_and_break_nothing(room, option):
    for around, empty in ((BUSY, [0, 3, 7]), (PLAIN, range(N))):
        batch, rows = random_batch(), torch.zeros(N, dtype=torch.bool)
        rows[list(empty)] = True
        batch["mask"] = batch["mask"] & ~rows[:, None]
        batch["lengths"] = batch["mask"].sum(1)
        for name in ("step_ends", "step_rewards"):
            batch[name] = [[] if gone else steps for steps, gone in zip(batch[name], rows.tolist(), strict=True)]
        result = evaluate(batch, of(room, option, around))
        assert math.isfinite(result.loss) and torch.isfinite(result.gradient).all()
        assert not result.gradient[rows].any() and not result.entropy_gradient[rows].any()
        assert result.loss == 0 or not rows.all()


@every_option
def test_an_answer_without_a_score_is_outside_the_loss(room, option):
    result = whole(room, option, False)
    unscored = torch.isnan(result.batch["rewards"])
    assert not result.gradient[unscored].any() and not result.entropy_gradient[unscored].any()
    assert not result.batch["advantages"][unscored].any()
    if room != "reward":
        assert unscored.tolist() == [row == 6 for row in range(N)]


# --- groups that agree -----------------------------------------------------------------------------------------------

GROUP_BASELINES = [rule.__name__ for rule in baseline.NEEDS_TWO_ANSWERS]
TEACHES = {
    ("baseline", "none"): "nothing is subtracted",
    ("baseline", "batch_mean"): "compares with other prompts",
    ("baseline", "running_mean"): "compares with earlier batches",
    ("credit", "process"): "compares steps, which may differ where the answers agree",
    ("whiten", "sequences"): "subtracts the batch's mean advantage, from dead groups too",
    ("whiten", "tokens"): "subtracts the batch's mean advantage, from dead groups too",
    ("whiten", "tokens_floor"): "subtracts the batch's mean advantage, from dead groups too",
    ("placement", "reward_to_go"): "takes a KL from the advantage, whatever the rewards are",
}


@every_option
def test_a_group_that_agrees_has_advantage_0_where_the_baseline_is_the_groups(room, option):
    """Options that turn the zero into something else are the exceptions above, and each of them is seen doing it."""
    taught = []
    rules = GROUP_BASELINES if room not in DIFFERENTIATED else GROUP_BASELINES[:1]  # those see finished advantages
    for rule in rules if room != "baseline" else [option]:
        around = {**PLAIN, "baseline": rule, "scale": "none", room: option}
        cfg = config(**around)
        made = prepared(random_batch(), cfg, build(cfg))
        for group in made["group"].unique():
            rewards = made["rewards"][made["group"] == group]
            if len(rewards[~torch.isnan(rewards)].unique()) == 1:
                advantages = made["advantages"][made["group"] == group]
                taught.append(advantages.abs().max().item())
    if (room, option) in TEACHES:
        assert max(taught) > 1e-3, f"{room}={option} is no exception: take it out of TEACHES"
    elif (room, option) != ("placement", "reward_before_baseline"):  # here no group agrees: the KL tells answers apart
        assert max(taught, default=0.0) == 0.0


# --- derivatives -----------------------------------------------------------------------------------------------------

# Functions with a weight that is constant for the gradient and not for a numerical one. The tests of their rooms have
# their gradients.
STOPPED = {"cispo", "tis", "topr", "vespo", "k3_value_k2_gradient", "sequence_mean_straight_through"}


def stops(cfg: dict, room: str) -> bool:
    node = cfg[room] or {}
    return str(node.get("_target_")).rpartition(".")[2] in STOPPED or node.get("attached") is False


@pytest.mark.parametrize(("room", "option"), [(room, option) for room, option in OPTIONS if room in DIFFERENTIATED])
def test_the_gradient_is_the_derivative_of_the_loss_unless_the_formula_stops_it(room, option):
    """In float64, at a point off policy, with everything that is chosen across the batch chosen before."""
    off = []
    for around in (PLAIN, dict(BUSY, kl="k3")):  # ratio_k3 is stopped by a ratio that is
        loss, point = at_a_point(of(room, option, around))
        if not stops(of(room, option), room):
            assert torch.autograd.gradcheck(loss, point, fast_mode=True)
        else:
            off.append(abs(slope(loss, point) - slope_by_differences(loss, point)))
    assert not off or max(off) > 1e-6, f"{room}={option} stops no gradient: take its function out of STOPPED"


def at_a_point(cfg: dict):
    """The loss as a function of log-probabilities and entropies at the unmasked positions, and values of these."""
    batch, knobs = random_batch(3), build(cfg)
    ready = evaluate(batch, cfg).batch
    weights = grpo.weights(ready["masks"], ready["counted"], ready["group"], knobs)
    for measured in MEASURED:
        knobs.entropy.update(measured)
    inside, empty = batch["mask"], torch.full(batch["mask"].shape, -1.0, dtype=torch.float64)

    def loss(*flat):
        new, entropies = (empty.masked_scatter(inside, values) for values in flat)
        return grpo.loss(new, entropies, ready, knobs, weights, cfg["beta"])[0]

    return loss, [batch[name][inside].clone().requires_grad_() for name in ("new", "entropies")]


def direction(values: torch.Tensor) -> torch.Tensor:
    """One in which the tokens of an answer go different ways."""
    return torch.arange(1.0, len(values) + 1, dtype=torch.float64).cos()


def slope(loss, point) -> float:
    gradients = torch.autograd.grad(loss(*point), point)
    return sum((gradient * direction(gradient)).sum().item() for gradient in gradients)


def slope_by_differences(loss, point, step: float = 1e-6) -> float:
    up, down = ([values.detach() + way * step * direction(values) for values in point] for way in (1, -1))
    return (loss(*up) - loss(*down)).item() / (2 * step)


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("rule", ["group_mean", "leave_one_out"])
def test_advantages_over_the_group_std_stay_within_G_minus_1_over_root_G(size, rule):
    """For ddof 1; times sqrt(G/(G-1)) for ddof 0, times G/(G-1) with leave_one_out. One answer unlike the rest
    reaches it."""
    generator = torch.Generator().manual_seed(size)
    rewards = torch.cat([torch.randn(9, size, generator=generator), torch.eye(size)[:1]]).double()
    batch = {"parts": rewards.reshape(-1, 1), "part_weights": torch.ones(1, dtype=torch.float64)}
    batch |= {"group": torch.arange(10).repeat_interleave(size), "truncated": torch.zeros(10 * size, dtype=torch.bool)}
    batch |= {"mask": torch.ones(10 * size, 1, dtype=torch.bool), "lengths": torch.ones(10 * size)}
    for ddof in (0, 1):
        cfg = changed(changed(config(baseline=rule), "scale.ddof", ddof), "scale.eps", 0.0)
        advantage = grpo.advantages(batch, build(cfg), 0.0)["advantage"].abs().reshape(10, size)
        bound = (size - 1) / math.sqrt(size) * math.sqrt(size / (size - 1)) ** (1 - ddof)
        bound *= size / (size - 1) if rule == "leave_one_out" else 1
        assert advantage.max() <= bound * (1 + 1e-12)
        assert advantage[-1].max().item() == pytest.approx(bound, rel=1e-12)


def test_the_weights_of_a_mean_sum_to_1():
    batch = random_batch()
    shared = {"counted": torch.ones(N, dtype=torch.bool), "group": batch["group"]}
    shared["mask"] = batch["mask"] | (torch.arange(7) == 0)  # every answer has a token
    for option in options_of("aggregate"):
        total = grpo.call(build(config(aggregate=option)).aggregate, shared).sum().item()
        if option.endswith("mean"):
            assert total == pytest.approx(1, abs=1e-12)
        elif option == "constant":
            assert total <= 1, "no answer is longer than the constant length"


@pytest.mark.parametrize("option", options_of("kl"))
def test_an_estimate_of_the_kl_is_not_negative_except_for_k1(option):
    values = {"ratio": torch.ones(1, 401, dtype=torch.float64), "logp": torch.zeros(1, 401, dtype=torch.float64)}
    values["logp_ref"] = torch.linspace(-5, 5, 401, dtype=torch.float64)[None]
    estimate = grpo.call(build(config(kl=option)).kl, values)
    assert (estimate.min() < 0) == (option in ("k1", "ratio_k1", "ratio_k1_detached"))


@pytest.mark.parametrize("option", options_of("correction"))
def test_the_weight_for_the_sampler_is_positive_and_bounded(option):
    values = {"mask": torch.ones(1, 401, dtype=torch.bool), "logp_sampler": torch.zeros(1, 401)}
    values["logp_old"] = torch.linspace(-100, 100, 401)[None]
    weight = grpo.call(build(config(correction=option)).correction, values)
    assert (weight > 0).all() and weight.max() <= config(correction=option)["correction"].get("cap", 1.0)
