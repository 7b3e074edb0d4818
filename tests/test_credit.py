"""From an advantage per answer to one per token."""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs import credit
from ablations.knobs.call import call

NAN = math.nan
MASK = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
GROUP = torch.tensor([3, 3, 8])
ENDS = [[1, 3], [0, 1, 3], [2, 5]]
REWARDS = [[1.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.5]]


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, tensor(expected), rtol=0, atol=1e-12)


def test_outcome_gives_every_token_the_advantage_of_its_answer():
    close(credit.outcome(tensor([2, -1, 0.5]), MASK), [[2] * 5 + [0], [-1] * 4 + [0] * 2, [0.5] * 6])


def test_process_sums_the_normalised_rewards_of_the_steps_that_end_at_or_after_a_token():
    # group 3 has five steps, three of them 1: mean .6, population std sqrt(.24)
    good, bad = 0.4 / math.sqrt(0.24), -0.6 / math.sqrt(0.24)
    result = credit.process(MASK, GROUP, ENDS, REWARDS, ddof=0, eps=0.0)
    close(result[0], [good + bad] * 2 + [bad] * 2 + [0, 0])
    close(result[1], [2 * good + bad, good + bad, bad, bad, 0, 0])


def test_process_uses_ddof_and_eps():
    good = 0.4 / (math.sqrt(0.24 * 5 / 4) + 0.1)
    result = credit.process(MASK, GROUP, ENDS, REWARDS, ddof=1, eps=0.1)
    assert (result[1, 0] - result[1, 1]).item() == pytest.approx(good)


def test_a_group_whose_steps_agree_has_no_advantage():
    assert (credit.process(MASK, GROUP, ENDS, REWARDS, ddof=0, eps=0.0)[2] == 0).all()
    lone = credit.process(MASK, GROUP, [[], [2], []], [[], [0.3], []], ddof=1, eps=0.0)
    assert (lone == 0).all()


def test_the_first_tokens_of_a_group_sum_to_0():
    result = credit.process(MASK, GROUP, ENDS, REWARDS, ddof=0, eps=1e-6)
    assert result[:2, 0].sum().item() == pytest.approx(0, abs=1e-12)


def test_steps_without_a_score_are_worth_0_and_leave_the_statistics():
    some = credit.process(MASK, GROUP, [[0, 1, 3], *ENDS[1:]], [[NAN, 1.0, 0.0], *REWARDS[1:]], ddof=0, eps=0.0)
    torch.testing.assert_close(some, credit.process(MASK, GROUP, ENDS, REWARDS, ddof=0, eps=0.0), rtol=0, atol=1e-12)


def test_two_steps_may_end_on_one_token():
    result = credit.process(MASK[:1], GROUP[:1], [[1, 1, 3]], [[1.0, 1.0, 0.0]], ddof=0, eps=0.0)
    once = (1 / 3) / math.sqrt(2 / 9)
    close(result, [[0, 0, -2 * once, -2 * once, 0, 0]])


def test_masked_positions_get_0():
    result = credit.process(MASK[:1], GROUP[:1], [[0, 5]], [[1.0, 0.0]], ddof=0, eps=0.0)
    assert result[0, 5] == 0
    assert result[0, 4] == -1


def test_process_does_not_depend_on_row_order():
    order = [2, 0, 1]
    shuffled = credit.process(
        MASK[order], GROUP[order], [ENDS[i] for i in order], [REWARDS[i] for i in order], ddof=0, eps=1e-6
    )
    expected = credit.process(MASK, GROUP, ENDS, REWARDS, ddof=0, eps=1e-6)[order]
    torch.testing.assert_close(shuffled, expected, rtol=0, atol=1e-12)


def test_steps_that_do_not_fit_the_answer_are_refused():
    with pytest.raises(ValueError, match=r"Row 1 has step_ends \[0, 1, 3\] and step_rewards \[1.0\]"):
        credit.process(MASK, GROUP, ENDS, [REWARDS[0], [1.0], REWARDS[2]], ddof=0, eps=0.0)
    with pytest.raises(ValueError, match="from 0 to 5"):
        credit.process(MASK, GROUP, [[1, 6], *ENDS[1:]], REWARDS, ddof=0, eps=0.0)
    with pytest.raises(ValueError, match="the same number"):
        credit.process(MASK, GROUP, ENDS[:2], REWARDS[:2], ddof=0, eps=0.0)


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("conf/credit/*.yaml")), ids=lambda p: p.stem)
def test_a_credit_option_gives_a_number_per_token_and_0_where_masked(path):
    values = {"advantage": tensor([1, -1, 0]), "mask": MASK, "group": GROUP}
    result = call(instantiate(OmegaConf.load(path)), values | {"step_ends": ENDS, "step_rewards": REWARDS})
    assert (result.shape, result.dtype) == (MASK.shape, torch.float64)
    assert (result[~MASK] == 0).all()
    assert (result != 0).any()
