"""Which groups are kept, and that every keep option says what becomes of the others."""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs import keep
from ablations.knobs.call import call

OPTIONS = sorted((Path(__file__).parents[1] / "conf" / "keep").glob("*.yaml"))
NAN = math.nan
#        alive          all right   all wrong   one scored  none scored  alive with an unscored row
REWARDS = [1, 0, 1, 0.2, 1, 1, 0, 0, 1, NAN, NAN, NAN, 1, 0, NAN]
GROUP = [4, 4, 4, 4, 2, 2, 9, 9, 1, 1, 5, 5, 7, 7, 7]
ALIVE = [4, 7]


def rows(order=slice(None)):
    return torch.tensor(REWARDS, dtype=torch.float64)[order], torch.tensor(GROUP)[order]


def test_everything_keeps_every_row():
    assert keep.everything(rows()[0]).all()


@pytest.mark.parametrize("order", [list(range(15)), list(range(15))[::-1], torch.randperm(15).tolist()])
def test_informative_groups_have_more_than_one_distinct_scored_reward(order):
    rewards, group = rows(order)
    assert torch.equal(keep.informative(rewards, group), torch.isin(group, torch.tensor(ALIVE)))


def test_rewards_that_agree_up_to_their_mean_s_rounding_are_not_informative():
    assert not keep.informative(torch.full((3,), 0.1, dtype=torch.float64), torch.zeros(3).long()).any()


def test_strictly_between_0_and_1_is_informative_for_right_and_wrong():
    rewards, group = rows()
    assert torch.equal(keep.between(rewards, group, low=0.0, high=1.0), keep.informative(rewards, group))


def test_between_leaves_out_its_bounds():
    rewards, group = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    assert keep.between(rewards, group, low=0.25, high=0.5).sum() == 0
    assert keep.between(rewards, group, low=0.24, high=0.5).tolist() == [True] * 4 + [False] * 4


def test_bounds_with_nothing_between_are_refused():
    with pytest.raises(ValueError, match="low 0.5 and high 0.5"):
        keep.between(*rows(), low=0.5, high=0.5)


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.stem)
def test_a_keep_option_gives_a_rule_and_three_settings(path):
    option = instantiate(OmegaConf.load(path))
    assert isinstance(option, keep.Keep)
    rewards, group = rows()
    kept = call(option.rule, {"rewards": rewards, "group": group})
    assert (kept.dtype, kept.shape) == (torch.bool, (15,))
    assert isinstance(option.dropped_rows_count, bool)
    assert option.refill_rounds >= 0
    assert option.retire_at is None or 0 < option.retire_at <= 1


def test_the_options_are_the_published_ones():
    settings = {path.stem: instantiate(OmegaConf.load(path)) for path in OPTIONS}
    assert {name: (o.dropped_rows_count, o.refill_rounds > 0, o.retire_at) for name, o in settings.items()} == {
        "all": (True, False, None),
        "drop": (False, False, None),
        "refill": (False, True, None),
        "between": (False, True, None),
        "no_positive_resampling": (True, False, 0.9),
        "drop_and_retire": (False, False, 0.9),
    }
