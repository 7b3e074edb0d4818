"""The objective as a whole: published forms, worked values of reported faults, and what must not change it."""

import math

import pytest
import torch
from composing import knobs, options_of

from ablations import grpo, measure
from ablations.knobs.tokens import Masks

UNEVEN = [[[0, 1, 2], [3], [4, 5, 6, 7]], [[0], [1], [2], [3], [4], [5], [6], [7]], [[7, 0, 3], [1, 2, 4, 5, 6]]]


def random_batch(seed: int = 0, width: int = 6, prompts: int = 4, size: int = 2) -> dict:
    """`prompts` groups of `size` answers with lengths 1 to `width`, off-policy log-probabilities, and 0/1 rewards."""
    generator = torch.Generator().manual_seed(seed)
    rows = prompts * size
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    noise = lambda: 0.3 * torch.randn(rows, width, generator=generator, dtype=torch.float64)  # noqa: E731
    logp_old = -1 - noise().abs()
    return {
        "mask": mask,
        "lengths": lengths,
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "group": torch.arange(prompts).repeat_interleave(size),
        "parts": torch.arange(rows, dtype=torch.float64).remainder(3).clamp(max=1)[:, None],
        "part_weights": torch.ones(1, dtype=torch.float64),
        "logp_old": logp_old,
        "logp_sampler": logp_old,
        "logp_ref": logp_old + noise(),
        "new": logp_old + noise(),
        "entropies": noise().abs(),
        "kept": torch.ones(rows, dtype=torch.bool),
        "counted": torch.ones(rows, dtype=torch.bool),
    }


def from_table(rewards, lengths, *, width=None, group=None, old=None) -> dict:
    """A batch written out by hand: one reward and one length per answer, log-probabilities 0 (or `old`) everywhere."""
    width = width or max(lengths)
    batch = random_batch(width=width, prompts=len(rewards), size=1)
    zeros = torch.zeros(len(rewards), width, dtype=torch.float64)
    batch |= {"parts": torch.tensor(rewards, dtype=torch.float64)[:, None], "lengths": torch.tensor(lengths)}
    batch["mask"] = torch.arange(width) < batch["lengths"][:, None]
    batch["group"] = torch.zeros(len(rewards), dtype=torch.long) if group is None else torch.tensor(group)
    return batch | {name: zeros if old is None else old for name in ("logp_old", "logp_sampler", "logp_ref", "new")}


def evaluate(batch: dict, choice: grpo.Knobs, beta: float = 0.0, splits=None, given=None):
    """Loss, gradient with respect to the current log-probabilities, and the batch with its advantages; through the
    training code."""
    batch = batch | grpo.advantages(batch, choice, beta)
    if given is not None:
        batch["advantages"] = given
    new = batch["new"].clone().requires_grad_()
    entropies = batch["entropies"].clone().requires_grad_()
    batch = grpo.select_across(batch, choice, {"logp": lambda: new.detach()})
    weight = grpo.weights(batch["masks"], batch["counted"], batch["group"], choice)
    total = 0.0
    for rows in splits or [list(range(len(new)))]:
        rows = torch.tensor(rows)
        micro, w = grpo.select(batch, rows), grpo.Weights(*(each[rows] for each in weight))
        value, _ = grpo.loss(new[rows], entropies[rows], micro, choice, w, beta)
        if value.requires_grad:
            value.backward()
        total += value.item()
    return total, torch.zeros_like(new) if new.grad is None else new.grad, batch


def test_grpo_is_the_published_formula_written_out():
    batch = random_batch(3)
    r, g = batch["parts"][:, 0], batch["group"]
    total = 0.0
    for i in range(len(r)):
        mine = r[g == g[i]]
        advantage = (r[i] - mine.mean()) / (mine.std(unbiased=False) + 1e-6)
        terms = 0.0
        for t in range(int(batch["lengths"][i])):
            new, old, ref = (batch[name][i, t] for name in ("new", "logp_old", "logp_ref"))
            rho, d = math.exp(new - old), ref - new
            terms += min(rho * advantage, min(max(rho, 0.8), 1.2) * advantage) - 0.04 * (math.exp(d) - d - 1)
        total -= terms / int(batch["lengths"][i])
    value, _, _ = evaluate(batch, knobs("algorithm=grpo"), beta=0.04)
    assert value == pytest.approx(float(total) / len(r), abs=1e-12)


def test_dr_grpo_is_the_published_formula_written_out():
    batch, length = random_batch(4), 36
    r, g = batch["parts"][:, 0], batch["group"]
    total = 0.0
    for i in range(len(r)):
        advantage = float(r[i] - r[g == g[i]].mean())
        for t in range(int(batch["lengths"][i])):
            rho = math.exp(batch["new"][i, t] - batch["logp_old"][i, t])
            total -= min(rho * advantage, min(max(rho, 0.8), 1.2) * advantage)
    value, _, _ = evaluate(batch, knobs("algorithm=dr_grpo"))
    assert value == pytest.approx(total / (len(r) * length), abs=1e-12)


@pytest.mark.parametrize("option", options_of("aggregate"))
@pytest.mark.parametrize("splits", UNEVEN)
def test_splitting_the_batch_into_micro_batches_changes_nothing(option, splits):
    choice = knobs(f"aggregate={option}", "entropy=constant")
    whole, split = evaluate(random_batch(1), choice, 0.1), evaluate(random_batch(1), choice, 0.1, splits)
    assert split[0] == pytest.approx(whole[0], abs=1e-10)
    torch.testing.assert_close(split[1], whole[1], atol=1e-10, rtol=0)


@pytest.mark.parametrize("option", options_of("aggregate"))
def test_padding_columns_change_nothing(option):
    choice, batch = knobs(f"aggregate={option}"), random_batch(2)
    wide = {
        name: torch.nn.functional.pad(value, (0, 3), value=-math.inf if value.is_floating_point() else 0)
        if isinstance(value, torch.Tensor) and value.dim() == 2 and name not in ("parts",)
        else value
        for name, value in batch.items()
    }
    narrow, padded = evaluate(batch, choice, 0.1), evaluate(wide, choice, 0.1)
    assert padded[0] == pytest.approx(narrow[0], abs=1e-10)
    torch.testing.assert_close(padded[1][:, :6], narrow[1], atol=1e-10, rtol=0)
    assert not padded[1][:, 6:].any()


@pytest.mark.parametrize("option", options_of("aggregate"))
def test_the_order_of_rows_changes_nothing(option):
    choice, batch = knobs(f"aggregate={option}"), random_batch(5)
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    straight, shuffled = evaluate(batch, choice, 0.1), evaluate(grpo.select(batch, order), choice, 0.1)
    assert shuffled[0] == pytest.approx(straight[0], abs=1e-10)
    torch.testing.assert_close(shuffled[1], straight[1][order], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("option", "right"), [("sequence_mean", 0.0), ("token_mean", 0.5), ("constant", 0.2)])
@pytest.mark.parametrize("splits", [None, [[0], [1]]])
@pytest.mark.parametrize("width", [6, 7])
def test_three_aggregations_that_share_a_name_elsewhere_have_three_values(option, right, splits, width):
    """Lengths 2 and 6, advantages +1 and -1, ratio 1, L = 10 (trl#3021, trl#2995, verl#990)."""
    length = ["aggregate.length=10"] if option == "constant" else []
    choice = knobs(f"aggregate={option}", "scale=none", *length)
    batch = from_table([1.0, -1.0], [2, 6], width=width)
    value, _, _ = evaluate(batch, choice, splits=splits)
    assert value == pytest.approx(right, abs=1e-12)


def test_a_loss_of_zero_still_has_a_gradient():
    """Rewards 1, 0, 0, 1 at ratio 1 and beta 0 (open-r1#239)."""
    value, gradient, _ = evaluate(from_table([1.0, 0.0, 0.0, 1.0], [3, 3, 3, 3]), knobs())
    assert value == pytest.approx(0.0, abs=1e-7)
    assert gradient.norm() > 0


def test_an_unscored_answer_is_out_of_baseline_and_loss():
    """[1, None, 0, 1] without std (trl#5902)."""
    batch = from_table([1.0, math.nan, 0.0, 1.0], [2, 2, 2, 2])
    choice = knobs("scale=none", "aggregate=token_mean")
    made = grpo.advantages(batch, choice, 0.0)
    torch.testing.assert_close(made["advantage"], torch.tensor([1 / 3, 0.0, -2 / 3, 1 / 3], dtype=torch.float64))
    scored = ~torch.isnan(made["rewards"])
    value, gradient, seen = evaluate(batch | {"kept": scored, "counted": scored}, choice)
    assert math.isfinite(value) and not gradient[1].any()
    assert seen["masks"].denominator.sum() == 6, "the unscored answer's tokens are in no denominator"


@pytest.mark.parametrize(
    ("placement", "reward", "kl"), [("loss", 1.0, 0.02), ("reward_before_baseline", 0.9, 0.0), ("none", 1.0, 0.0)]
)
def test_the_kl_is_counted_in_one_place(placement, reward, kl):
    """beta 0.1, k1 of 0.2 on each of 5 tokens, reward 1 (verl#265)."""
    batch = from_table([1.0], [5]) | {"logp_ref": torch.full((1, 5), -0.2, dtype=torch.float64)}
    choice = knobs("kl=k1", f"placement={placement}", "baseline=none", "scale=none")
    made = grpo.advantages(batch, choice, 0.1)
    assert made["rewards"].item() == pytest.approx(reward)
    value, _, _ = evaluate(batch, choice, 0.1, given=torch.zeros(1, 5, dtype=torch.float64))
    assert value == pytest.approx(kl)


def test_beta_alone_moves_the_policy_and_without_it_nothing_does():
    """beta 1000 and advantage 0 (Flow-Factory#122)."""
    batch, nothing = random_batch(6), torch.zeros(8, 6, dtype=torch.float64)
    assert evaluate(batch, knobs(), beta=1e3, given=nothing)[1].norm() > 0
    assert evaluate(batch, knobs(), beta=0.0, given=nothing)[1].norm() == 0


def test_a_row_without_tokens_adds_nothing_and_breaks_nothing():
    batch = from_table([1.0, 0.0, 1.0], [3, 0, 2])
    for option in options_of("aggregate"):
        value, gradient, _ = evaluate(batch, knobs(f"aggregate={option}"), 0.1)
        assert math.isfinite(value) and torch.isfinite(gradient).all() and not gradient[1].any()


def test_dropped_groups_leave_the_denominator_only_if_they_do_not_count():
    batch = random_batch(7)
    kept = batch["group"] != 0
    choice = knobs("aggregate=sequence_mean", "scale=none")
    without = evaluate(batch | {"kept": kept, "counted": kept}, choice)
    diluted = evaluate(batch | {"kept": kept}, choice)
    assert not without[1][~kept].any() and not diluted[1][~kept].any()
    torch.testing.assert_close(without[1] * 6 / 8, diluted[1], atol=1e-12, rtol=0)


def test_group_statistics_survive_the_loss_of_a_group_to_one_answer():
    """A group that filtering leaves with one answer has advantage 0 (trl#3199)."""
    made = grpo.advantages(from_table([1.0, 0.0, 1.0], [1, 1, 1], group=[0, 0, 1]), knobs(), 0.0)
    assert made["advantage"][2] == 0 and torch.isfinite(made["advantage"]).all()


def test_masks_are_four_and_separate():
    batch = random_batch(8) | {"truncated": torch.arange(8) == 0}
    choice = knobs("tokens=not_truncated")
    seen = grpo.masks(batch | grpo.advantages(batch, choice, 0.0), choice)
    assert isinstance(seen, Masks) and not seen.policy[0].any() and seen.policy[1].any()


@pytest.mark.parametrize(
    ("option", "band"),
    [("ppo_clip", (0.8, 1.2)), ("clip_higher", (0.8, 1.28)), ("gmpo", (math.exp(-0.4), math.exp(0.4))), ("sapo", None)],
)
def test_the_clip_fraction_is_counted_against_the_options_own_band(option, band):
    assert measure.trust_band(knobs(f"surrogate={option}").surrogate) == (band and pytest.approx(band))
