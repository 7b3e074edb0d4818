"""Normalisation of finished advantages, over answers or over tokens."""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs import whiten
from ablations.knobs.call import call

NAN = math.nan
FORMS = [whiten.added_to_std, whiten.added_to_variance, whiten.variance_floor]
MASK = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.bool)
ADVANTAGE = torch.tensor([1.0, -2.0, 4.0, 3.0], dtype=torch.float64)
SPREAD = torch.where(MASK, ADVANTAGE[:, None], 0.0)
SCORED = torch.zeros(4, dtype=torch.float64)


def settings(**changed):
    whole = {"subtract_mean": True, "divide": True, "ddof": 1, "eps": 0.0, "eps_form": whiten.added_to_std}
    return whole | changed


def sequences(advantages=SPREAD, advantage=ADVANTAGE, mask=MASK, rewards=SCORED, **changed):
    return whiten.sequences(advantages, advantage, mask, rewards, **settings(**changed))


def tokens(advantages=SPREAD, mask=MASK, rewards=SCORED, **changed):
    return whiten.tokens(advantages, mask, rewards, **settings(**changed))


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_three_ways_of_adding_eps():
    variance = torch.tensor([4.0, 0.01], dtype=torch.float64)
    close(whiten.added_to_std(variance, 0.5), [2.5, 0.6])
    close(whiten.added_to_variance(variance, 0.5), [math.sqrt(4.5), math.sqrt(0.51)])
    close(whiten.variance_floor(variance, 0.5), [2.0, math.sqrt(0.5)])


@pytest.mark.parametrize("form", FORMS)
def test_far_above_eps_the_three_ways_are_one(form):
    torch.testing.assert_close(tokens(eps=1e-14, eps_form=form), tokens(eps=0.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_sequences_count_every_answer_once_and_the_empty_one_too(ddof):
    spread = math.sqrt(21 / (4 - ddof))  # deviations from the mean 1.5: .5, 3.5, 2.5, 1.5
    result = sequences(ddof=ddof)
    close(result[:, 0], [-0.5 / spread, -3.5 / spread, 2.5 / spread, 0.0])
    assert (result[~MASK] == 0).all()


@pytest.mark.parametrize("ddof", [0, 1])
def test_tokens_count_an_answer_by_its_length(ddof):
    flat = torch.tensor([1.0, -2, -2, -2, 4, 4], dtype=torch.float64)
    expected = (flat - flat.mean()) / flat.std(correction=ddof)
    close(tokens(ddof=ddof)[MASK], expected)
    assert (tokens(ddof=ddof)[~MASK] == 0).all()


@pytest.mark.parametrize("knob", [sequences, tokens])
def test_whitening_ignores_the_unit_and_origin_of_the_advantage(knob):
    moved = {"advantages": torch.where(MASK, 3 * SPREAD - 7, 0.0)}
    if knob is sequences:
        moved["advantage"] = 3 * ADVANTAGE - 7
    torch.testing.assert_close(knob(**moved), knob(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("knob", [sequences, tokens])
def test_each_step_can_be_left_out(knob):
    centred = knob(divide=False, ddof=None, eps=None, eps_form=None)
    assert (centred - SPREAD)[MASK].std() < 1e-12
    scaled = knob(subtract_mean=False)
    assert (scaled[MASK] / SPREAD[MASK]).std() < 1e-12
    close(knob(subtract_mean=False, divide=False), SPREAD)


@pytest.mark.parametrize("knob", [sequences, tokens])
def test_an_unscored_row_stays_0_and_moves_nothing(knob):
    rewards = torch.tensor([0.0, NAN, 0.0, 0.0], dtype=torch.float64)
    keep = [0, 2, 3]
    there = {"advantages": SPREAD[keep], "mask": MASK[keep], "rewards": SCORED[keep]}
    if knob is sequences:
        there["advantage"] = ADVANTAGE[keep]
    result = knob(rewards=rewards)
    close(result[keep], knob(**there))
    assert (result[1] == 0).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_advantages_that_agree_become_0(form, value):
    alike = {"advantages": torch.where(MASK, value, 0.0).double(), "eps": 1e-8, "eps_form": form}
    assert (tokens(**alike) == 0).all()
    assert (sequences(**alike, advantage=torch.full((4,), value, dtype=torch.float64)) == 0).all()


@pytest.mark.parametrize("knob", [sequences, tokens])
def test_without_division_advantages_that_agree_lose_exactly_their_mean_or_nothing(knob):
    three = torch.full((3, 1), 0.1, dtype=torch.float64)  # whose mean in floating point is not .1
    alike = {"advantages": three, "mask": torch.ones_like(three, dtype=torch.bool), "rewards": SCORED[:3]}
    if knob is sequences:
        alike["advantage"] = three[:, 0]
    assert (knob(**alike, divide=False) == 0).all()
    assert torch.equal(knob(**alike, divide=False, subtract_mean=False), three)


@pytest.mark.parametrize("knob", [sequences, tokens])
def test_what_stands_at_masked_positions_has_no_effect(knob):
    close(knob(advantages=torch.where(MASK, SPREAD, torch.nan)), knob())


def test_nothing_to_whiten_is_0_and_not_an_error():
    assert (tokens(mask=torch.zeros_like(MASK)) == 0).all()
    assert (tokens(rewards=torch.full((4,), NAN, dtype=torch.float64)) == 0).all()


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("conf/whiten/*.yaml")), ids=lambda p: p.stem)
def test_a_whiten_option_gives_a_number_per_token_and_0_where_masked(path):
    values = {"advantages": SPREAD, "advantage": ADVANTAGE, "mask": MASK, "rewards": SCORED}
    result = call(instantiate(OmegaConf.load(path)), values)
    assert (result.shape, result.dtype) == (MASK.shape, torch.float64)
    assert (result[~MASK] == 0).all()
    if path.stem == "none":
        close(result, SPREAD)
    else:
        assert result[MASK].abs().max() < SPREAD.abs().max()


def test_a_mean_is_subtracted_from_token_advantages_even_if_the_answers_agree():
    agreeing = torch.full((2,), 0.1, dtype=torch.float64)
    per_token = agreeing[:, None] - torch.tensor([[0.3, 0.0], [0.0, 0.2]], dtype=torch.float64)  # a KL to go, say
    settings = {"subtract_mean": True, "divide": False, "ddof": 0, "eps": 0.0, "eps_form": whiten.added_to_std}
    out = whiten.sequences(per_token, agreeing, torch.ones(2, 2, dtype=torch.bool), agreeing, **settings)
    assert torch.equal(out, per_token - 0.1)
