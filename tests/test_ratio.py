"""Importance ratios, and the weight for a sampler that is not quite the policy."""

import math

import pytest
import torch
from token_rooms import close, evaluate, extreme_batch, load, on_policy, options_of, padded, random_batch

from ablations.knobs import correction, ratio
from ablations.knobs.call import call

MASK = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
OLD = padded(torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -1.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64), MASK)
NEW = padded(torch.tensor([[-0.7, -2.3, -2.4], [-0.6, -1.2, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64), MASK)
OFF = {"token_clamp": None, "clamp": None}


def test_the_token_ratio_is_a_quotient_of_probabilities_and_1_at_padding():
    rho = ratio.token(NEW, OLD, MASK, clamp=None)
    close(rho, [[math.exp(0.3), math.exp(-0.3), math.exp(0.6)], [math.exp(-0.1), math.exp(0.3), 1], [1, 1, 1]])


def test_sequence_ratios_take_the_mean_and_the_sum_over_the_answers_own_tokens():
    mean, total = ratio.sequence_mean(NEW, OLD, MASK, **OFF), ratio.sequence_sum(NEW, OLD, MASK, **OFF)
    close(mean, [[math.exp(0.2)] * 3, [math.exp(0.1), math.exp(0.1), 1], [1, 1, 1]])
    close(total, [[math.exp(0.6)] * 3, [math.exp(0.2), math.exp(0.2), 1], [1, 1, 1]])


def test_the_sequence_sum_is_the_product_of_the_token_ratios():
    close(ratio.sequence_sum(NEW, OLD, MASK, **OFF)[:, 0], ratio.token(NEW, OLD, MASK, clamp=None).prod(1))


def test_straight_through_has_the_value_of_the_sequence_mean_and_the_gradient_of_the_token():
    new = torch.where(MASK, NEW, 0.0).requires_grad_()
    rho = ratio.sequence_mean_straight_through(new, OLD, MASK, **OFF)
    close(rho, ratio.sequence_mean(NEW, OLD, MASK, **OFF))
    (gradient,) = torch.autograd.grad(rho[0, 1], new)
    close(gradient, [[0, math.exp(0.2), 0], [0, 0, 0], [0, 0, 0]])


def test_both_forms_of_gspo_agree_where_the_weights_of_a_row_are_equal():
    batch = random_batch()
    for option in ("sequence_mean", "token_mean", "constant"):
        one = evaluate(batch, beta=0.0, ratio="sequence_mean", aggregate=option)
        other = evaluate(batch, beta=0.0, ratio="sequence_mean_straight_through", aggregate=option)
        close(one[0], other[0])
        close(one[1], other[1])


def test_rloo_scales_an_answer_by_its_length_on_policy():
    """sequence_sum under a sequence mean is the token ratio under a sequence sum: the likelihood of whole answers."""
    batch = on_policy(random_batch())
    rloo = evaluate(batch, beta=0.0, ratio="sequence_sum", aggregate="sequence_mean")[1]
    close(rloo, evaluate(batch, beta=0.0, ratio="token", aggregate="sequence_sum")[1], 1e-15)


def test_a_sequence_ratio_trains_the_tokens_that_a_token_mask_silences():
    """So the ratio is no inert choice at the first update: the gradient goes through the mean over the whole answer."""
    batch = on_policy(random_batch())
    token, sequence = (evaluate(batch, beta=0.0, ratio=r, tokens="high_entropy")[1] for r in ("token", "sequence_mean"))
    answered = (sequence != 0).any(1)
    assert answered.any()
    assert (sequence != 0).equal(batch["mask"] & answered[:, None])
    assert (token != 0).sum() < (sequence != 0).sum()


@pytest.mark.parametrize("option", options_of("ratio"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ratio_is_exactly_1_before_the_first_update(option, dtype):
    """trl#3234: with the sampler's own log-probabilities the first minibatch sees 1, so no clip can bind."""
    batch = on_policy(random_batch(dtype=dtype))
    assert (call(load("ratio", option), batch) == 1).all()


@pytest.mark.parametrize("option", options_of("ratio"))
def test_the_default_bounds_keep_float32_finite_in_value_and_gradient(option):
    batch = extreme_batch(torch.float32)
    logp = batch["logp"].requires_grad_()
    rho = call(load("ratio", option), batch)
    rho.sum().backward()
    assert torch.isfinite(rho).all()
    assert rho.max() <= math.exp(20) * 1.001
    assert torch.isfinite(logp.grad).all()


def test_a_clamp_bounds_the_logarithm_and_has_gradient_0_outside_it():
    new = torch.tensor([[3.0, 0.5, -3.0]], dtype=torch.float64, requires_grad=True)
    rho = ratio.token(new, torch.zeros_like(new), torch.ones_like(new, dtype=torch.bool), clamp=[-1.0, 1.0])
    close(rho, [[math.e, math.exp(0.5), 1 / math.e]])
    rho.sum().backward()
    close(new.grad, [[0.0, math.exp(0.5), 0.0]])


def test_a_token_clamp_acts_before_the_mean_and_a_clamp_after_it():
    new, old, mask = torch.tensor([[3.0, 0.0]]).double(), torch.zeros(1, 2).double(), torch.ones(1, 2, dtype=torch.bool)
    close(ratio.sequence_mean(new, old, mask, token_clamp=[None, 1], clamp=None), [[math.exp(0.5)] * 2])
    close(ratio.sequence_mean(new, old, mask, token_clamp=None, clamp=[None, 1]), [[math.exp(1.0)] * 2])
    close(ratio.sequence_sum(new, old, mask, token_clamp=[None, 1], clamp=None), [[math.exp(1.0)] * 2])


def test_a_reversed_clamp_is_refused():
    with pytest.raises(ValueError, match=r"low < high; got \[1, -1\]"):
        ratio.token(NEW, OLD, MASK, clamp=[1, -1])


def test_the_whole_answer_ratio_makes_old_samples_unbiased_and_the_token_ratio_does_not():
    """By enumeration of two-token answers: E_old[rho R] is E_new[R] for the product of the ratios only."""
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(2, 2, generator=generator, dtype=torch.float64).log_softmax(1)  # old and new, (policy, token)
    second = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64).log_softmax(2)  # given the first token
    answers = [(a, b) for a in range(2) for b in range(2)]
    old, new = (torch.stack([torch.stack([first[p, a], second[p, a, b]]) for a, b in answers]) for p in range(2))
    reward, mask = torch.tensor([1.0, 0.0, 0.3, 2.0], dtype=torch.float64), torch.ones(4, 2, dtype=torch.bool)
    expected = (new.sum(1).exp() * reward).sum()
    close((old.sum(1).exp() * ratio.sequence_sum(new, old, mask, **OFF)[:, 0] * reward).sum(), expected)
    by_token = (old.sum(1).exp() * ratio.token(new, old, mask, clamp=None)[:, 1] * reward).sum()
    assert abs(by_token - expected) > 0.01


def test_the_sampler_weight_is_capped_and_has_no_gradient():
    old = torch.tensor([[0.0, -1.0, -100.0, 100.0]], dtype=torch.float64, requires_grad=True)
    sampler = torch.tensor([[-0.5, -0.5, 0.0, -1e4]], dtype=torch.float64)
    weight = correction.truncated_token_ratio(old, sampler, torch.ones(1, 4, dtype=torch.bool), cap=2.0)
    close(weight, [[math.exp(0.5), math.exp(-0.5), math.exp(-100), 2.0]])
    assert not weight.requires_grad


def test_the_sampler_weight_is_1_at_padding_and_without_a_gap():
    gone = torch.full((1, 2), -math.inf, dtype=torch.float64)
    masked = correction.truncated_token_ratio(gone, gone, torch.zeros(1, 2, dtype=torch.bool), cap=2.0)
    close(masked, [[1.0, 1.0]])
    close(correction.truncated_token_ratio(NEW, NEW, MASK, cap=2.0), torch.ones(3, 3))
    close(correction.none(NEW), torch.ones(3, 3))


def test_the_sampler_weight_touches_the_policy_term_and_not_the_kl():
    batch = random_batch()
    still = batch | {"advantages": torch.zeros_like(batch["advantages"])}
    close(evaluate(still, correction="truncated_token_ratio")[1], evaluate(still)[1], 0)


def test_a_cap_of_0_is_refused():
    with pytest.raises(ValueError, match="correction.cap is 0"):
        correction.truncated_token_ratio(OLD, OLD, MASK, cap=0)
