"""From token terms to one loss. Worked batch: lengths 2 and 6, advantages +1 and -1, ratio 1, so the terms are -A."""

import pytest
import torch
from token_rooms import close, evaluate, load, on_policy, options_of, random_batch, rows_of

from ablations.knobs import aggregate

VALUES = {"sequence_mean": 0.0, "token_mean": 0.5, "constant": 0.2}
SPLITS = [[[0, 1]], [[0], [1]], [[1], [0]]]
ONES = torch.ones(2, dtype=torch.bool)


def worked(width=6):
    mask = torch.arange(width) < torch.tensor([2, 6])[:, None]
    return mask, torch.where(mask, torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None], torch.nan)


def weights(option, mask, counted=None, group=None, **changes):
    counted = torch.ones(len(mask), dtype=torch.bool) if counted is None else counted
    knob = load("aggregate", option, **changes)
    return knob(mask, counted, group) if option == "group_token_mean" else knob(mask, counted)


def lengths(*counts, width=10):
    return torch.arange(width) < torch.tensor(counts)[:, None]


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("width", [6, 7, 10])
def test_each_of_three_aggregations_called_grpo_has_its_value_in_every_split_and_width(option, splits, width):
    """trl#3021, open-instruct#1161, verl#7321, trl#2995: 0.0, 0.5 and, with L = 10, 0.2."""
    mask, terms = worked(width)
    weight = weights(option, mask)
    loss = sum(torch.where(mask[rows], weight[rows] * terms[rows], 0.0).sum() for rows in map(torch.tensor, splits))
    close(loss, VALUES[option])


@pytest.mark.parametrize("option", options_of("aggregate"))
def test_accumulating_over_micro_batches_leaves_the_gradient_norm(option):
    """ms-swift#10117, trl#6024: a further division by the number of micro-batches would halve it."""
    batch = random_batch()
    whole = evaluate(batch, aggregate=option)[1].norm()
    cut = evaluate(batch, [[0, 1, 2], [3, 4, 5]], aggregate=option)[1].norm()
    close(cut, whole)


def test_the_constant_is_no_width_of_the_batch():
    """verl#990, trl#3256: the padded width 6 in its place would give 0.3333."""
    for width in (6, 7, 10):
        assert set(weights("constant", lengths(2, 6, width=width)).unique().tolist()) == {0.0, 1 / 20}


def test_a_token_of_a_long_answer_weighs_less_under_a_sequence_mean_only():
    """1 / (N L_i), 1 / sum L and 1 / (N L_max)."""
    mask = lengths(2, 5)
    close(weights("sequence_mean", mask)[:, 0], [1 / 4, 1 / 10])
    close(weights("token_mean", mask)[:, 0], [1 / 7, 1 / 7])
    close(weights("constant", mask)[:, 0], [1 / 20, 1 / 20])
    close(weights("sequence_sum", mask)[:, 0], [1 / 2, 1 / 2])
    close(weights("sum_over_constant", mask)[:, 0], [1 / 10, 1 / 10])


def test_a_prompts_weight_under_a_token_mean_is_its_share_of_the_tokens():
    """sequence_mean over token_mean, per token, is the mean length over the prompt's length."""
    mask = lengths(3, 3, 9, 9)
    ratio = weights("sequence_mean", mask)[:, 0] / weights("token_mean", mask)[:, 0]
    close(ratio, [6 / 3, 6 / 3, 6 / 9, 6 / 9])


def test_group_token_mean_gives_every_prompt_the_same_weight_and_within_it_every_token():
    mask, group = lengths(1, 8, 3, 4), torch.tensor([5, 2, 5, 2])
    weight = weights("group_token_mean", mask, group=group)
    close(weight[:, 0], [1 / 8, 1 / 24, 1 / 8, 1 / 24])
    close(weight[group == 5].sum(), 0.5)
    close(weight[group == 2].sum(), 0.5)


def test_group_token_mean_is_token_mean_for_one_group():
    mask = lengths(1, 8, 3, 4)
    close(weights("group_token_mean", mask, group=torch.zeros(4, dtype=torch.long)), weights("token_mean", mask), 0)


@pytest.mark.parametrize(
    ("option", "all_rows", "non_empty"),
    [
        ("sequence_mean", 1 / 3, 1 / 2),
        ("sequence_sum", 2 / 3, 2 / 2),
        ("constant", 2 / 30, 2 / 20),
        ("token_mean", 1 / 3, 1 / 3),
    ],
)
def test_rows_says_whether_an_empty_answer_is_in_the_number_of_rows(option, all_rows, non_empty):
    mask = lengths(2, 0, 4)
    close(weights(option, mask, rows="all")[0].sum(), all_rows)
    close(weights(option, mask, rows="non_empty")[0].sum(), non_empty)


def test_rows_says_whether_an_empty_group_is_in_the_number_of_prompts():
    mask, group = lengths(2, 0, 2), torch.tensor([0, 1, 0])
    close(weights("group_token_mean", mask, group=group, rows="all").sum(), 1 / 2)
    close(weights("group_token_mean", mask, group=group, rows="non_empty").sum(), 1.0)


@pytest.mark.parametrize("option", options_of("aggregate"))
@pytest.mark.parametrize("rows", ["all", "non_empty"])
def test_a_row_that_does_not_count_is_in_no_denominator(option, rows):
    mask, group = lengths(2, 7, 4, 1), torch.tensor([0, 0, 1, 2])
    counted = torch.tensor([True, False, True, False])
    weight = weights(option, mask, counted, group, rows=rows)
    assert not weight[~counted].any()
    close(weight[counted], weights(option, mask[counted], None, group[counted], rows=rows), 0)


@pytest.mark.parametrize("option", options_of("aggregate"))
def test_weights_are_float64_and_zero_outside_the_mask(option):
    mask = lengths(2, 0, 4)
    weight = weights(option, mask, group=torch.arange(3))
    assert weight.dtype == torch.float64
    assert not weight[~mask].any()
    assert (weight[mask] > 0).all()


def test_luspo_is_gspo_with_a_sequence_sum():
    """The gradient of GSPO's row i times n_i, and on policy that of plain token ratios under a sequence sum."""
    batch = random_batch()
    luspo = evaluate(batch, beta=0.0, ratio="sequence_mean", aggregate="sequence_sum")[1]
    gspo = evaluate(batch, beta=0.0, ratio="sequence_mean", aggregate="sequence_mean")[1]
    close(luspo, gspo * batch["mask"].sum(1, keepdim=True))
    fresh = on_policy(batch)
    luspo = evaluate(fresh, beta=0.0, ratio="sequence_mean", aggregate="sequence_sum")[1]
    close(luspo, evaluate(fresh, beta=0.0, ratio="token", aggregate="sequence_sum")[1], 1e-15)


def test_rows_all_dilutes_the_loss_by_the_empty_rows_exactly():
    batch = random_batch()
    full = rows_of(batch, batch["mask"].any(1).nonzero()[:, 0])
    close(evaluate(batch)[0] * 6, evaluate(full)[0] * 5)


def test_bad_settings_are_refused_with_what_is_allowed():
    mask = lengths(2, 3)
    with pytest.raises(ValueError, match="aggregate.rows is 'some'; allowed are 'all' and 'non_empty'"):
        aggregate.token_mean(mask, ONES, rows="some")
    with pytest.raises(ValueError, match="aggregate.length is 0; the constant length must be above 0"):
        aggregate.constant(mask, ONES, rows="all", length=0)
