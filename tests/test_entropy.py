"""The entropy bonus and its control loop."""

import pytest
from token_rooms import evaluate, load, options_of, random_batch

from ablations.knobs.entropy import Adaptive, Constant


def test_a_constant_coefficient_does_not_follow_the_entropy():
    bonus = Constant(0.01)
    for measured in (0.0, 5.0):
        bonus.update(measured)
        assert bonus.coefficient == 0.01


def test_the_coefficient_rises_below_the_target_falls_above_it_and_is_off_there():
    """alpha_k = c_k where e_k <= target, else 0; c moves by one step after each rollout (arXiv:2505.22312)."""
    bonus = Adaptive(coefficient=0.0, target=0.2, step=0.5, low=0.0, high=1.0)
    applied = []
    for measured in (0.1, 0.1, 0.1, 0.1, 0.3, 0.1, 0.2, 0.2):
        bonus.update(measured)
        applied.append(bonus.coefficient)
    assert applied == [0.0, 0.5, 1.0, 1.0, 0.0, 0.5, 1.0, 1.0]


def test_the_coefficient_stays_within_its_bounds():
    bonus = Adaptive(coefficient=0.5, target=0.2, step=0.4, low=0.3, high=0.6)
    for measured, right in ((0.0, 0.5), (0.0, 0.6), (0.9, 0.0), (0.9, 0.0), (0.0, 0.3)):
        bonus.update(measured)
        assert bonus.coefficient == right


def test_nothing_is_applied_before_the_first_measurement():
    assert load("entropy", "adaptive", coefficient=0.5).coefficient == 0.0


def test_a_saved_controller_goes_on_where_it_was():
    bonus, resumed = (load("entropy", "adaptive", step=0.25) for _ in range(2))
    bonus.update(0.1)
    bonus.update(0.1)
    resumed.load_state_dict(bonus.state_dict())
    assert resumed.coefficient == bonus.coefficient == 0.25
    for measured in (0.1, 0.3, 0.1):
        bonus.update(measured)
        resumed.update(measured)
        assert resumed.coefficient == bonus.coefficient


def test_impossible_bounds_are_refused():
    with pytest.raises(ValueError, match=r"coefficient 2, bounds \[0, 1\] and step 0.1"):
        Adaptive(coefficient=2, target=0.2, step=0.1, low=0, high=1)


@pytest.mark.parametrize("option", options_of("entropy"))
def test_the_bonus_raises_entropy_and_moves_no_log_probability(option):
    batch = random_batch()
    _, on_logp, on_entropy = evaluate(batch, entropy=option)
    assert on_logp.equal(evaluate(batch)[1])
    sign = on_entropy[batch["mask"]]
    assert (sign == 0).all() if option == "none" else (sign < 0).all()  # descending the loss raises H
