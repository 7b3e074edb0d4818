"""The knobs of a prediction: the plainest option in every room, except for those that the prediction is about.

Options are looked up in their modules when a set of knobs is made, so that a changed function is the one that is
measured.
"""

from functools import partial
from typing import Any

from ablations import grpo
from ablations.knobs import (
    aggregate,
    baseline,
    combine,
    correction,
    credit,
    entropy,
    keep,
    kl,
    ratio,
    reward,
    scale,
    surrogate,
    whiten,
)


def knobs(**rooms: Any) -> grpo.Knobs:
    """Mean-centred rewards, token ratio, PPO clip at 0.2, answers averaged: `rooms` replaces any of these.

    The KL and entropy terms have the policy term's aggregate unless given their own.
    """
    shared = rooms.get("aggregate", sequence_mean())
    plain = {
        "reward": {"correctness": {"part": reward.correctness, "weight": 1.0}},
        "transform": reward.none,
        "keep": everything(),
        "combine": combine.sum_then_normalise,
        "baseline": baseline.group_mean,
        "scale": scale.none,
        "credit": credit.outcome,
        "whiten": whiten.none,
        "tokens": {},
        "ratio": partial(ratio.token, clamp=None),
        "surrogate": ppo_clip(0.2, 0.2),
        "correction": correction.none,
        "kl": estimator("k3"),
        "placement": kl.Placement(in_loss=1, before_baseline=0, to_go=0),
        "aggregate": shared,
        "aggregate_kl": shared,
        "aggregate_entropy": shared,
        "entropy": entropy.Constant(0.0),
    }
    return grpo.Knobs(**(plain | rooms))


def group_std(ddof: int = 0, eps: float = 0.0):
    """Published theory divides by the population's deviation and adds nothing."""
    return partial(scale.group_std, ddof=ddof, eps=eps)


def ppo_clip(eps_low: float, eps_high: float, dual_clip: float | None = None, delta: float | None = None):
    return partial(surrogate.ppo_clip, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip, delta=delta)


def estimator(name: str, **settings):
    """A KL estimator of that name, unclamped."""
    return partial(getattr(kl, name), log_ratio_clamp=None, value_clamp=None, **settings)


def sequence_ratio(name: str):
    """A ratio of that name, unclamped."""
    return partial(getattr(ratio, name), token_clamp=None, clamp=None)


def in_loss() -> kl.Placement:
    return kl.Placement(in_loss=1, before_baseline=0, to_go=0)


def in_reward() -> kl.Placement:
    return kl.Placement(in_loss=0, before_baseline=1, to_go=0)


def to_go() -> kl.Placement:
    return kl.Placement(in_loss=0, before_baseline=0, to_go=1)


def to_old() -> kl.Placement:
    return kl.Placement(in_loss=1, before_baseline=0, to_go=0, to_old=True)


def sequence_mean():
    return partial(aggregate.sequence_mean, rows="all")


def token_mean():
    return partial(aggregate.token_mean, rows="all")


def sequence_sum():
    return partial(aggregate.sequence_sum, rows="all")


def constant(length: float):
    return partial(aggregate.constant, rows="all", length=length)


def everything() -> keep.Keep:
    return keep.Keep(rule=keep.everything, dropped_rows_count=True, refill_rounds=0, retire_at=None)


def informative(refill_rounds: int = 0, dropped_rows_count: bool = False) -> keep.Keep:
    """Only groups whose rewards differ; with rounds of refilling, dynamic sampling."""
    return keep.Keep(
        rule=keep.informative, dropped_rows_count=dropped_rows_count, refill_rounds=refill_rounds, retire_at=None
    )
