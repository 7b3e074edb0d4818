"""The curves of the length and of the KL ablation: their laws, and that a wrong law or a changed knob would show."""

import functools
import math
from collections.abc import Callable

import pytest
from composing import composed
from scipy.optimize import brentq

from ablations import build
from ablations.knobs import aggregate, scale
from ablations.oracles.dynamics import rest_under_std
from ablations.oracles.kl import resting_points
from ablations.predictions import kl, length

STOPPING = {"success": 0.5, "hazard": 0.1, "group_size": 8, "constant": 10.0, "lr": 1.0, "longest": 600}
STOPPING |= {"copies": 8, "updates": 8, "every": 8, "seed": 1}
REST = {"start": 0.1, "group_size": 8, "betas": [0.31], "eps": 1e-6, "updates": 60, "tolerance": 1e-5}
EPS = 1e-6


def missed(points) -> set[tuple[str, str]]:
    return {(point.panel, point.line) for point in points if not point.holds}


def test_wrong_answers_lengthen_and_right_ones_shorten_under_a_sequence_mean_alone():
    ends = {(point.panel, point.line): point for point in length.stopping(**STOPPING) if point.x == 8}
    assert not missed(ends.values())
    law = {key: point.predicted for key, point in ends.items()}
    assert law["wrong answers", "sequence_mean"] > 12 and law["right answers", "sequence_mean"] < 8
    assert [law[key] for key in law if "sequence_mean" not in key] == pytest.approx([10] * 6)
    assert law["one hazard for both", "sequence_mean"] == pytest.approx(10)
    assert all(point.error > 0 for point in ends.values())


def test_the_curve_of_the_length_begins_at_the_start_and_has_a_point_every_so_many_updates():
    points = list(length.stopping(**STOPPING | {"copies": 2, "updates": 4, "every": 2}))
    assert sorted({point.x for point in points}) == [0, 2, 4] and len(points) == 3 * 3 * 3
    assert all(point.holds and point.measured == pytest.approx(10) for point in points if point.x == 0)


def test_an_aggregate_that_does_not_divide_by_the_length_shows_as_a_curve_that_does_not_hold(monkeypatch):
    monkeypatch.setattr(aggregate, "sequence_mean", functools.partial(aggregate.constant, length=10.0))
    points = length.stopping(**STOPPING)
    assert missed(points) >= {("wrong answers", "sequence_mean"), ("right answers", "sequence_mean")}


def test_training_rests_where_the_closed_forms_say_and_the_std_moves_what_is_in_the_loss():
    points = {(point.panel, point.line): point for point in kl.rest(**REST)}
    assert len(points) == 6 and not missed(points.values())
    rest = {key: point.measured for key, point in points.items()}
    reward, k2, k3 = "k1 in the reward", "k2 in the loss", "k3 in the loss"
    assert rest["no scale", reward] == pytest.approx(rest["group_std", reward], abs=1e-5)
    assert rest["group_std", k2] > rest["no scale", k2] + 0.1 < rest["group_std", k3]


def test_a_scale_that_divides_twice_does_not_rest_there(monkeypatch):
    once = scale.group_std
    monkeypatch.setattr(scale, "group_std", lambda centred, rewards, group, **given: 2 * once(
        centred, rewards, group, **given))  # fmt: skip
    found = missed(kl.rest(**REST))
    assert found == {("group_std", "k2 in the loss"), ("group_std", "k3 in the loss")}


def flip(one: Callable[[float], float], other: Callable[[float], float]) -> float:
    """The beta at which two places of rest agree; k3, the other, is the lower one before it."""
    found = brentq(lambda beta: one(beta) - other(beta), 0.1, 1.5, xtol=1e-8)
    assert one(found / 1.2) > other(found / 1.2) and one(found * 1.2) < other(found * 1.2)
    return found


def test_the_coefficients_at_which_k3_and_the_reverse_kl_change_their_order_are_those_that_the_ablation_file_says():
    def plain(size: int, what: int) -> Callable[[float], float]:
        return lambda beta: list(resting_points(0.1, beta, size).values())[what][0]

    def under_std(name: str) -> Callable[[float], float]:
        return lambda beta: rest_under_std(name, 0.1, beta, 8, EPS)

    k2, k1, k3 = (plain(8, what) for what in range(3))
    flips = [flip(k2, k3), flip(k1, k3), flip(plain(10**9, 0), plain(10**9, 2))]
    flips += [flip(under_std("k2"), under_std("k3")), flip(k1, under_std("k3"))]
    assert flips == pytest.approx([0.27, 0.35, 0.31, 0.63, 0.22], abs=0.005)
    part = build.plain(composed("ablation=kl_placement"))["predictions"]["rest"]
    assert all(f"{value:.2f}" in part["says"] for value in flips)
    assert part["measure"]["group_size"] == 8 and min(part["measure"]["betas"]) < flips[0] < max(
        part["measure"]["betas"]
    )


def test_under_a_std_the_reverse_kl_in_the_loss_rests_where_the_weight_balances_it():
    """With G = 2 the std only rescales, w = 1: logit p* = logit p0 + 1/beta."""
    assert rest_under_std("k2", 0.1, 1.0, 2) == pytest.approx(1 / (1 + math.exp(math.log(9) - 1)), abs=1e-12)
    assert rest_under_std("k2", 0.1, 0.001, 8) == pytest.approx(1, abs=1e-12)
