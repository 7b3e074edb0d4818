"""Where a policy comes to rest under a KL penalty, by estimator, place and scale."""

import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from ablations.oracles import rules
from ablations.oracles.dynamics import at_rest, rest_under_std
from ablations.oracles.kl import resting_points
from ablations.predictions.points import Point

PLACES = {"in_reward": "in the reward", "in_loss": "in the loss"}


def rest(
    *, start: float, group_size: int, betas: Sequence[float], eps: float, updates: int, tolerance: float
) -> Iterator[Point]:
    """Success rate p* at which one prompt comes to rest against beta: k1 in the reward, k2 and k3 in the loss, without
    a scale and with the group's standard deviation (A5.3).

    Predicted: the reverse KL (k1 in the reward, k2 in the loss) rests at logit p* = logit p0 + 1/beta, the forward KL
    (k3 in the loss) at the root of p^2 - (1-beta) p = beta p0; in the loss with beta G/(G-1) for beta, because the
    group's own mean takes that much from the reward. Dividing by the group's standard deviation leaves the rest of k1
    in the reward, where all answers are worth the same, and moves those in the loss to where w_G(p) balances the KL.

    Measured: training from p0 with every group in its exact share, so without noise; by Rprop, which looks at the sign
    of the gradient alone, because the gradient vanishes with 1 - p and a place of rest does not depend on the
    optimiser. start: p0, also the reference's. eps: of the group's standard deviation, reward. tolerance: of p*, what
    is left of the way after the updates.
    """
    for panel, rooms, points in (
        ("no scale", {}, resting_points),
        ("group_std", {"scale": rules.group_std(eps=eps)}, functools.partial(_under_std, eps=eps)),
    ):
        for beta in betas:
            for due, estimator, place in points(start, beta, group_size).values():
                knobs = rules.knobs(kl=rules.estimator(estimator), placement=getattr(rules, place)(), **rooms)
                found = at_rest(knobs, start, beta, group_size, 0.5, updates, optimizer=_by_sign)
                yield Point(panel, f"{estimator} {PLACES[place]}", beta, due, found, 0.0, tolerance)


def _under_std(start: float, beta: float, group_size: int, eps: float) -> dict[str, tuple[float, str, str]]:
    """As `resting_points`, for rewards that are divided by the group's standard deviation."""
    return {
        what: (point if place == "in_reward" else rest_under_std(name, start, beta, group_size, eps), name, place)
        for what, (point, name, place) in resting_points(start, beta, group_size).items()
    }


def _by_sign(parameters, lr: float) -> Callable:
    return torch.optim.Rprop(parameters, lr=lr, etas=(0.2, 1.1), step_sizes=(1e-12, 4.0))
