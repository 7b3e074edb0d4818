"""Several reward parts to one advantage: summed before or after normalising."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs import baseline, combine, scale
from ablations.knobs.call import call

NAN = math.nan
GROUP = torch.arange(2).repeat_interleave(4)
PARTS = torch.tensor(
    [[1, 0, 0, 1, 1, 1, 1, 1], [10, 0, 20, 30, -40, 10, 0, 0]], dtype=torch.float64
).T  # the second part is in another unit


def normalise(rewards, ddof=0):
    return scale.group_std(baseline.group_mean(rewards, GROUP), rewards, GROUP, ddof=ddof, eps=0.0)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12, equal_nan=True)


def test_the_total_is_the_weighted_sum():
    close(combine.weighted_sum(PARTS, tensor(1, 0.1)), PARTS[:, 0] + 0.1 * PARTS[:, 1])


def test_an_answer_without_the_score_of_a_part_is_unscored():
    parts = tensor([1, 0.5], [NAN, 1.0], [0, NAN])
    close(combine.weighted_sum(parts, tensor(1, 1)), tensor(1.5, NAN, NAN))


def test_a_part_of_weight_0_has_no_effect_even_where_it_is_unscored():
    parts = tensor([1, NAN], [0, 3.0])
    close(combine.weighted_sum(parts, tensor(1, 0)), tensor(1, 0))


def test_weights_and_parts_must_pair_up():
    with pytest.raises(ValueError, match="2 reward parts and 3 weights"):
        combine.weighted_sum(PARTS, tensor(1, 1, 1))


def test_sum_then_normalise_normalises_the_total():
    total = combine.weighted_sum(PARTS, tensor(1, 0.1))
    close(combine.sum_then_normalise(total, normalise), normalise(total))


def test_normalise_each_then_sum_makes_the_unit_of_a_part_irrelevant():
    weights = tensor(1, 0.5)
    result = combine.normalise_each_then_sum(PARTS, weights, normalise)
    close(result, normalise(PARTS[:, 0]) + 0.5 * normalise(PARTS[:, 1]))
    close(combine.normalise_each_then_sum(PARTS * tensor(1, 100), weights, normalise), result)


def test_with_one_part_both_orders_are_one():
    one = PARTS[:, :1]
    close(combine.normalise_each_then_sum(one, tensor(1), normalise), combine.sum_then_normalise(one[:, 0], normalise))


def test_a_missing_score_takes_the_row_out_of_every_part():
    parts = PARTS.clone()
    parts[2, 1] = NAN
    result = combine.normalise_each_then_sum(parts, tensor(1, 1), normalise)
    without = parts[:, 0].clone()
    without[2] = NAN
    assert result[2] == 0
    close(result, normalise(without) + normalise(parts[:, 1]))


def test_a_part_of_weight_0_is_not_even_normalised():
    parts = PARTS.clone()
    parts[:, 1] = NAN
    close(combine.normalise_each_then_sum(parts, tensor(1, 0), normalise), normalise(PARTS[:, 0]))
    close(combine.normalise_each_then_sum(parts, tensor(0, 0), normalise), torch.zeros(8, dtype=torch.float64))


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("conf/combine/*.yaml")), ids=lambda p: p.stem)
def test_a_combine_option_gives_one_advantage_per_answer(path):
    weights = tensor(1, 0.1)
    values = {"parts": PARTS, "weights": weights, "rewards": combine.weighted_sum(PARTS, weights)}
    result = call(instantiate(OmegaConf.load(path)), values | {"normalise": partial(normalise, ddof=1)})
    assert (result.shape, result.dtype) == ((8,), torch.float64)
    assert (result != 0).any()
