"""Which tokens count, in four places. Rules take tokens away, in the order they are given."""

import math

import pytest
import torch
from token_rooms import evaluate, load, options_of, random_batch

from ablations.knobs import tokens
from ablations.knobs.call import call
from ablations.knobs.tokens import Masks

MASK = torch.tensor([[True, True, True], [True, True, False]])
WHOLE = Masks(MASK, MASK, MASK, MASK)
CUT = torch.tensor([True, False])


def test_a_cut_answer_leaves_exactly_the_masks_that_are_named():
    seen = tokens.not_truncated(WHOLE, CUT, touches=["policy", "denominator"])
    assert not seen.policy[0].any() and not seen.denominator[0].any()
    assert seen.kl.equal(MASK) and seen.entropy.equal(MASK)
    assert seen.policy[1].equal(MASK[1])


def test_the_default_takes_a_cut_answer_out_of_all_four():
    seen = call(load("tokens", "not_truncated")["not_truncated"], {"masks": WHOLE, "truncated": CUT})
    for mask in seen:
        assert not mask[0].any() and mask[1].equal(MASK[1])


def test_an_unknown_mask_is_refused_with_the_four_names():
    with pytest.raises(ValueError, match=r"\['loss'\]; allowed are policy, kl, entropy, denominator"):
        tokens.not_truncated(WHOLE, CUT, touches=["loss"])


def test_without_the_denominator_the_step_shrinks_and_with_it_the_mean_is_over_the_rest():
    batch = random_batch() | {"logp_ref": random_batch()["logp"]}  # KL 0
    rule = load("tokens", "not_truncated")
    kept = {"not_truncated": lambda masks, truncated: tokens.not_truncated(masks, truncated, touches=["policy"])}
    shrunk = evaluate(batch, tokens=kept, aggregate="token_mean")[0]
    full = evaluate(batch, tokens=rule, aggregate="token_mean")[0]
    assert shrunk * 15 == pytest.approx(full * 10)  # 15 tokens, of which 5 are in the cut answer


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9, 1.0])
def test_high_entropy_keeps_what_is_at_or_above_the_quantile_of_the_unmasked_tokens(share):
    generator = torch.Generator().manual_seed(0)
    entropies = torch.rand(7, 11, generator=generator, dtype=torch.float64)
    mask = torch.rand(7, 11, generator=generator) < 0.7
    seen = tokens.high_entropy(Masks(mask, mask, mask, mask), entropies, keep_share=share)
    assert seen.policy.equal(mask & (entropies >= torch.quantile(entropies[mask], 1 - share)))


def test_high_entropy_interpolates_between_neighbours_and_keeps_a_token_at_the_threshold():
    mask = torch.ones(1, 5, dtype=torch.bool)
    entropies = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])
    kept = [tokens.high_entropy(Masks(*[mask] * 4), entropies, keep_share=share).policy.sum() for share in (0.25, 0.3)]
    assert kept == [2, 2]  # thresholds 3.0, at a token, and 2.8, between two
    long = torch.arange(11.0)[None]
    assert (
        tokens.high_entropy(Masks(*[torch.ones(1, 11, dtype=torch.bool)] * 4), long, keep_share=0.3).policy.sum() == 4
    )


def test_high_entropy_is_not_moved_by_padding_however_large_its_entropy():
    entropies = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 1e9]])
    seen = tokens.high_entropy(WHOLE, entropies, keep_share=0.5)
    assert seen.policy.equal(torch.tensor([[False, False, True], [True, True, False]]))


def test_high_entropy_leaves_kl_entropy_and_denominator_alone():
    seen = tokens.high_entropy(WHOLE, torch.rand(2, 3, generator=torch.Generator().manual_seed(0)), keep_share=0.2)
    assert seen.policy.sum() == 1
    assert all(mask.equal(MASK) for mask in seen[1:])


def test_high_entropy_of_nothing_is_nothing():
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert not tokens.high_entropy(Masks(*[nothing] * 4), torch.full((2, 3), math.nan), keep_share=0.2).policy.any()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        tokens.high_entropy(WHOLE, torch.zeros(2, 3), keep_share=share)


def test_an_answer_the_policy_has_left_is_dropped_only_where_its_advantage_is_negative():
    old = torch.zeros(4, 3, dtype=torch.float64)
    logp = torch.tensor([[-0.6] * 3, [-0.6] * 3, [0.6] * 3, [-0.4] * 3], dtype=torch.float64)
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0], dtype=torch.float64)[:, None].expand(4, 3)
    mask = torch.ones(4, 3, dtype=torch.bool)
    seen = tokens.off_policy_sequence(Masks(*[mask] * 4), advantages, old, logp, threshold=0.5)
    assert seen.policy.all(1).tolist() == [False, True, True, True]
    assert seen.kl.all() and seen.entropy.all() and seen.denominator.all()


def test_the_distance_of_an_answer_is_a_mean_over_its_own_tokens():
    old = torch.tensor([[0.0, 0.0, math.inf]], dtype=torch.float64)
    logp = torch.tensor([[-1.2, 0.0, -math.inf]], dtype=torch.float64)
    mask, advantages = torch.tensor([[True, True, False]]), torch.full((1, 3), -1.0)
    seen = [tokens.off_policy_sequence(Masks(*[mask] * 4), advantages, old, logp, threshold=t) for t in (0.59, 0.61)]
    assert [bool(each.policy.any()) for each in seen] == [False, True]


def test_no_answer_is_dropped_before_the_first_update():
    batch = random_batch()
    whole = Masks(*[batch["mask"]] * 4)
    seen = tokens.off_policy_sequence(whole, batch["advantages"] - 5, batch["logp"], batch["logp"], threshold=0.0)
    assert seen.policy.equal(batch["mask"])


def test_rules_apply_in_order_and_each_sees_what_the_last_one_left():
    entropies = torch.tensor([[9.0, 8.0, 7.0], [1.0, 2.0, 0.0]])

    def masks(order):
        seen = WHOLE
        for name in order:
            seen = call(load("tokens", name)[name], {"masks": seen, "truncated": CUT, "entropies": entropies})
        return seen.policy

    assert masks(["not_truncated", "high_entropy"]).equal(torch.tensor([[False] * 3, [False, True, False]]))
    assert not masks(["high_entropy", "not_truncated"]).any()  # the highest entropies were in the cut answer


def test_the_default_is_no_rule():
    assert load("tokens", "all") == {}
    assert all(list(load("tokens", option)) == [option] for option in options_of("tokens") if option != "all")
