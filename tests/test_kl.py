"""KL estimators: values, expected gradients by enumeration, bounds, and the place where they enter.

Expectations are exact: every action (or every answer of two tokens) is enumerated with its probability.
"""

import math

import pytest
import torch
from token_rooms import close, evaluate, load, options_of, random_batch

from ablations.knobs import kl
from ablations.knobs.call import call
from ablations.knobs.kl import Placement, kl_to_go, sequence_kl

OFF = {"log_ratio_clamp": None, "value_clamp": None}
ESTIMATORS = options_of("kl")
THETA = torch.tensor([0.3, -0.8, 1.1, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 0.1, 0.9], dtype=torch.float64).log_softmax(0)
OLD = torch.tensor([0.9, -0.2, 0.3, 0.6], dtype=torch.float64).log_softmax(0)


def gradient(objective, theta=THETA):
    """d objective(log pi) / d theta, with pi = softmax(theta)."""
    theta = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(theta.log_softmax(0)), theta)
    return slope


def reverse(logp, logp_ref=REFERENCE):
    return (logp.exp() * (logp - logp_ref)).sum()


def forward(logp, logp_ref=REFERENCE):
    return (logp_ref.exp() * (logp_ref - logp)).sum()


def estimate(option, logp, logp_ref=REFERENCE, old=None, **changes):
    values = {"logp": logp, "logp_ref": logp_ref, "ratio": (logp - (logp.detach() if old is None else old)).exp()}
    return call(load("kl", option, **changes), values)


def in_loss(option, old=None, **changes):
    """Expected gradient of the estimator as a loss term, over actions of the old policy (default: the current one)."""

    def objective(logp):
        drawn = logp.detach() if old is None else old
        return (drawn.exp() * estimate(option, logp, old=old, **changes)).sum()

    return gradient(objective)


def in_reward(option):
    """Expected gradient of the estimator as a cost: its constant value times the score."""
    return gradient(lambda logp: (logp.detach().exp() * estimate(option, logp).detach() * logp).sum())


# --- what an estimator does as a loss --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "right"),
    [("k1", 0.0), ("k2", 0.3466), ("k3", 0.3), ("k3_value_k2_gradient", 0.3466), ("ratio_k3", 0.3466)],
)
def test_the_worked_example_of_estimators_as_losses(option, right):
    """open-instruct#534: pi = (.5, .5), reference (.8, .2)."""
    reference = torch.tensor([0.8, 0.2], dtype=torch.float64).log()
    slope = gradient(
        lambda logp: (logp.detach().exp() * estimate(option, logp, reference)).sum(), torch.zeros(2).double()
    )
    close(slope, [-right, right], 5e-5)


GRADIENTS = {
    "k1": lambda: torch.zeros(4).double(),
    "k2": lambda: gradient(reverse),
    "k3": lambda: gradient(forward),
    "k3_value_k2_gradient": lambda: gradient(reverse),
    "ratio_k1": lambda: gradient(reverse),
    "ratio_k1_detached": lambda: torch.zeros(4).double(),
    "ratio_k3": lambda: gradient(reverse),
    "ratio_k3_detached": lambda: gradient(forward),
}


@pytest.mark.parametrize("option", GRADIENTS)
def test_the_expected_gradient_in_the_loss_is_that_of_the_stated_divergence(option):
    """Exact zero, gradient of KL(pi || ref) or of KL(ref || pi)."""
    close(in_loss(option), GRADIENTS[option](), 1e-10)


@pytest.mark.parametrize("option", ["ratio_k1", "ratio_k1_detached", "ratio_k3", "ratio_k3_detached"])
def test_with_the_ratio_the_expected_gradient_survives_old_samples(option):
    """Both divergences and the zero are kept with actions drawn from another policy."""
    close(in_loss(option, old=OLD), GRADIENTS[option](), 1e-10)


@pytest.mark.parametrize("option", ["k2", "k3"])
def test_without_the_ratio_it_does_not(option):
    assert (in_loss(option, old=OLD) - GRADIENTS[option]()).abs().max() > 0.01


def test_the_expected_gradient_in_the_reward():
    """k1: that of RKL, k2 grad E[k2] - grad RKL, k3 grad RKL - grad FKL."""
    rkl, fkl = gradient(reverse), gradient(forward)
    close(in_reward("k1"), rkl, 1e-10)
    mean_k2 = gradient(lambda logp: (logp.exp() * (logp - REFERENCE).square() / 2).sum())
    close(in_reward("k2"), mean_k2 - rkl, 1e-10)
    close(in_reward("k3"), rkl - fkl, 1e-10)


def test_k3_in_loss_and_in_reward_together_are_the_attached_ratio():
    close(in_loss("k3") + in_reward("k3"), in_loss("ratio_k3"), 1e-10)


def test_k1_and_k3_are_unbiased_as_numbers_and_k2_is_not():
    logp = THETA.log_softmax(0)
    for option in ESTIMATORS:
        mean = (logp.exp() * estimate(option, logp)).sum()
        if option in ("k2", "abs"):
            assert abs(mean - reverse(logp)) > 0.01
        else:
            close(mean, reverse(logp), 1e-12)


def answers_of_two_tokens():
    """A policy table of two binary tokens, theta (2, 3): logits of the first and, given it, of the second."""
    parameters = torch.tensor([0.4, -0.7, 1.2], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.3, 0.5, 0.1], dtype=torch.float64)

    def tokens(logits):
        def pick(value, chosen):
            return torch.nn.functional.logsigmoid(value if chosen else -value)

        return torch.stack([torch.stack([pick(logits[0], a), pick(logits[1 + a], b)]) for a in (0, 1) for b in (0, 1)])

    return parameters, tokens(parameters), tokens(reference)


@pytest.mark.parametrize("enters", ["whole", "to_go"])
def test_k1_in_the_reward_is_the_gradient_of_the_whole_answers_kl_and_k2_in_the_loss_is_not(enters):
    """Enumerated: in the loss a token's KL does not reach back to the tokens that led to it."""
    parameters, new, ref = answers_of_two_tokens()
    mask, drawn = torch.ones(4, 2, dtype=torch.bool), new.detach().sum(1).exp()
    (exact,) = torch.autograd.grad((new.sum(1).exp() * (new - ref).sum(1)).sum(), parameters, retain_graph=True)
    tokens = kl.k1(new, ref, **OFF)
    cost = kl_to_go(tokens, mask) if enters == "to_go" else sequence_kl(tokens, mask)[:, None]
    (reward,) = torch.autograd.grad((drawn[:, None] * cost * new).sum(), parameters, retain_graph=True)
    close(reward, exact, 1e-12)
    (loss,) = torch.autograd.grad((drawn[:, None] * kl.k2(new, ref, **OFF)).sum(), parameters)
    assert abs(loss[0] - exact[0]) > 0.01
    close(loss[1:], exact[1:], 1e-12)


# --- values and bounds -----------------------------------------------------------------------------------------------


def test_the_values_of_the_estimators_at_a_gap_of_plus_and_minus_1():
    logp_ref, logp = torch.tensor([-1.0, 1.0]).double(), torch.zeros(2).double()
    close(kl.k1(logp, logp_ref, **OFF), [1.0, -1.0])
    close(kl.k2(logp, logp_ref, **OFF), [0.5, 0.5])
    close(kl.k3(logp, logp_ref, **OFF), [0.36787944, 0.71828183], 1e-8)
    close(kl.absolute(logp, logp_ref, **OFF), [1.0, 1.0])
    close(kl.k3_value_k2_gradient(logp, logp_ref, **OFF), kl.k3(logp, logp_ref, **OFF))


def test_the_ratio_multiplies_the_bounded_estimate():
    logp, logp_ref, rho = (torch.tensor([value]).double() for value in (0.0, 2.0, 3.0))
    clamps = {"log_ratio_clamp": 1.0, "value_clamp": 0.5}
    close(kl.ratio_k3(logp, logp_ref, rho, attached=True, **clamps), [1.5])
    close(kl.ratio_k1(logp, logp_ref, rho, attached=False, **clamps), [-1.5])


def test_k3_is_never_negative_and_keeps_its_digits_near_0_in_float32():
    gap = torch.logspace(-6, 1, 200)
    for d in (gap, -gap):
        value = kl.k3(torch.zeros(200), d, **OFF)
        assert (value >= 0).all()
    close(kl.k3(torch.zeros(1), torch.tensor([1e-3]), **OFF).double(), [1e-6 / 2 + 1e-9 / 6], 1e-10)


@pytest.mark.parametrize("option", ESTIMATORS)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_gap_of_100_nats_is_finite_in_float32(option, gap):
    """trl#3015: exp(100) overflows, and a clamp after it would leave NaN in the gradient."""
    logp = torch.tensor([[-0.5 - max(gap, 0)]], requires_grad=True)
    value = estimate(option, logp, logp.detach() + gap)
    value.sum().backward()
    assert torch.isfinite(value).all() and torch.isfinite(logp.grad).all()


@pytest.mark.parametrize("option", ESTIMATORS)
def test_a_value_clamp_alone_sends_no_nan_backwards(option):
    logp = torch.tensor([[-100.0, -1.0]], requires_grad=True)
    value = estimate(option, logp, torch.tensor([[0.0, -1.5]]), log_ratio_clamp=None, value_clamp=10.0)
    value.sum().backward()
    assert value.abs()[0, 0] == 10
    assert torch.isfinite(logp.grad).all()


@pytest.mark.parametrize("option", ESTIMATORS)
def test_outside_a_clamp_there_is_no_gradient_and_inside_no_difference(option):
    logp_ref, detached = (
        torch.tensor([[0.5, 3.0, -3.0]]).double(),
        "_detached" in option or not option.startswith("ratio"),
    )
    for clamps in ({"log_ratio_clamp": 1.0, "value_clamp": None}, {"log_ratio_clamp": None, "value_clamp": 1.0}):
        slopes = []
        for settings in (clamps, OFF):
            logp = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
            estimate(option, logp, logp_ref, **settings).sum().backward()
            slopes.append(logp.grad[0])
        close(slopes[0][0], slopes[1][0], 0)
        straight_through = option == "k3_value_k2_gradient" and clamps["value_clamp"]
        if detached and not straight_through:  # an attached ratio keeps a gradient of its own
            assert not slopes[0][1:].any()


def test_the_straight_through_gradient_is_cut_where_its_value_is():
    for value_clamp, value, slope in ((10.0, 10.0, 0.0), (None, math.exp(4) - 5, -4.0)):
        logp = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        reference = torch.tensor([4.0]).double()
        estimate = kl.k3_value_k2_gradient(logp, reference, log_ratio_clamp=20.0, value_clamp=value_clamp)
        estimate.backward()
        close(estimate, [value])
        close(logp.grad, [slope])


@pytest.mark.parametrize("option", ESTIMATORS)
def test_the_penalty_has_a_gradient_without_any_advantage(option):
    """Flow-Factory#122: a KL that is logged but computed without gradient."""
    batch = random_batch()
    still = batch | {"advantages": torch.zeros_like(batch["advantages"])}
    assert evaluate(still, beta=1e3, kl=option)[1].norm() > 0
    assert evaluate(still, beta=0.0, kl=option)[1].norm() == 0


@pytest.mark.parametrize("option", ESTIMATORS)
def test_it_is_0_where_the_policies_agree(option):
    logp = THETA.log_softmax(0)
    assert (estimate(option, logp, logp) == 0).all()


# --- placement -------------------------------------------------------------------------------------------------------


def test_a_sum_over_the_answer_is_what_the_reward_loses():
    """verl#265: k1 of 0.2 on 5 tokens, beta 0.1, reward 1 -> 0.9."""
    mask = torch.arange(7) < torch.tensor([5, 0])[:, None]
    tokens = torch.where(mask, 0.2, math.nan)
    cost = sequence_kl(tokens.requires_grad_(), mask)
    close(1 - 0.1 * cost, [0.9, 1.0], 1e-8)
    assert cost.dtype == torch.float64 and not cost.requires_grad


def test_the_kl_to_go_is_the_sum_from_each_token_to_the_end():
    mask = torch.tensor([[True, True, True, False], [True, False, True, False]])
    tokens = torch.tensor([[1.0, 2.0, 4.0, math.inf], [1.0, math.nan, 3.0, -math.inf]], requires_grad=True)
    to_go = kl_to_go(tokens, mask)
    close(to_go, [[7.0, 6.0, 4.0, 0.0], [4.0, 0.0, 3.0, 0.0]])
    assert not to_go.requires_grad
    close(to_go[:, 0], sequence_kl(tokens, mask), 0)


def test_the_options_are_one_place_each():
    places = {option: load("placement", option) for option in options_of("placement")}
    assert places["none"] == (0, 0, 0, False)
    assert places["loss"] == (1, 0, 0, False)
    assert places["loss_to_old"] == (1, 0, 0, True)
    assert places["reward_before_baseline"] == (0, 1, 0, False)
    assert places["reward_to_go"] == (0, 0, 1, False)
    assert Placement(1, 0, 0) == places["loss"]


@pytest.mark.parametrize("both", [(1, 1, 0), (0, 1, 1), (1, 0, 1), (2, 0, 0), (0.5, 0, 0)])
def test_two_places_at_once_are_refused(both):
    with pytest.raises(ValueError, match="the KL counts twice. Choose placement=none, loss"):
        Placement(*both)


def test_a_reward_penalty_on_the_policy_before_the_update_is_refused():
    with pytest.raises(ValueError, match="placement=loss_to_old"):
        Placement(0, 1, 0, True)
