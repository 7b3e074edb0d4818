"""A3 and A5.3 as runs: how long a prompt takes to be learnt, and where a penalised policy comes to rest.

For one prompt with logit th and success rate p = sigmoid(th), plain gradient ascent at rate eta follows th' = eta
f(th). The time from th0 to th1 is the integral of 1/f; steps of finite size eta need (eta/2) ln(f(th1) / f(th0)) more,
the first term of Euler's error.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from scipy.integrate import quad
from scipy.optimize import brentq

from ablations import grpo
from ablations.knobs import baseline, scale
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.oracles.advantage import is_last_token, one_over_std, weight
from ablations.oracles.kl import resting_points
from ablations.oracles.table import Row, exact, sampled
from ablations.policy.tabular import TwoClass
from ablations.tasks.tabular import Table


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class Law(NamedTuple):
    """f(th) at eta = 1 and G -> infinity, its time function F with F' = 1/f, and the knobs that follow it."""

    says: str
    f: Callable[[float], float]
    time: Callable[[float], float]
    knobs: Callable[[], grpo.Knobs]


LAWS = {
    "mean": Law(
        "no scale: th + sinh th = th0 + sinh th0 + eta t/2",
        lambda th: sigmoid(th) * sigmoid(-th),
        lambda th: 2 * (th + math.sinh(th)),
        rules.knobs,
    ),
    "std": Law(
        "group std: sinh(th/2) = sinh(th0/2) + eta t/4",
        lambda th: math.sqrt(sigmoid(th) * sigmoid(-th)),
        lambda th: 4 * math.sinh(th / 2),
        lambda: rules.knobs(scale=rules.group_std()),
    ),
    "max_rl": Law(
        "MaxRL: th + e^th = th0 + e^th0 + eta t",
        lambda th: sigmoid(-th),
        lambda th: th + math.exp(th),
        lambda: rules.knobs(scale=scale.max_rl),
    ),
}


def rates() -> Iterator[Row]:
    """A3, the speed at a moment, in groups that hold right and wrong answers exactly as often as they are likely (G ->
    infinity)."""
    points = (0.05, 0.25, 0.8)
    for number, law in enumerate(LAWS.values(), 1):
        measured = []
        for p in points:
            policy = TwoClass([p])
            crowd = groups.population(policy, groups.outcomes(policy, is_last_token(1)), 20)
            measured.append(groups.differentiate(policy, [crowd], law.knobs()).ascent.item())
        yield exact(f"A3.1.{number}", f"speed of the logit; {law.says}", [law.f(logit(p)) for p in points], measured)


def arrival(track: list[float], goal: float) -> float:
    """The number of steps, interpolated, after which the track first reaches the goal. Raises ValueError if it never
    does."""
    for step, (before, after) in enumerate(zip(track, track[1:], strict=False)):
        if after >= goal:
            return step + (goal - before) / (after - before)
    raise ValueError(
        f"The run ended at {track[-1]} after {len(track) - 1} steps and did not reach {goal}; give it more steps."
    )


def learning_times() -> Iterator[Row]:
    """A3, from p = .1 to 1/2 in sampled groups of 500 answers, 8 prompts side by side as 8 independent runs."""
    copies, size, p0 = 8, 500, 0.1
    for number, (name, eta) in enumerate((("mean", 0.3), ("std", 0.15), ("max_rl", 0.08)), 1):
        law = LAWS[name]
        start = logit(p0)
        due = (law.time(0.0) - law.time(start)) + eta / 2 * math.log(law.f(0.0) / law.f(start))
        policy = TwoClass([p0] * copies)
        tracks = []
        for row in runs.trained(
            policy,
            law.knobs(),
            runs.sampling(Table(copies, ["b"]), prompts=copies, group_size=size),
            steps=int(1.3 * due / eta),
            lr=eta * copies,  # the batch averages over prompts, each of which should move at eta
            seed=number,
            evaluate=lambda policy: {f"logit/{i}": x for i, x in enumerate(policy.logit.tolist())},
        ):
            tracks.append([row[f"logit/{i}"] for i in range(copies)])
            if min(tracks[-1]) >= 0:
                break
        times = [eta * arrival(list(track), 0.0) for track in zip(*tracks, strict=True)]
        yield sampled(f"A3.2.{number}", f"time from p = .1 to 1/2, G = 500; {law.says}", due, times)


def finite_group_times() -> Iterator[Row]:
    """A3 at G = 8, rates matched at p = 1/2: how much sooner than without a scale a hard prompt is learnt. Every group
    in its exact share."""
    size, p0, eta = 8, 0.02, 0.5
    factors = {
        "no scale": (lambda p: (size - 1) / size, rules.knobs()),
        "group std": (lambda p: weight(p, size, one_over_std(size)), rules.knobs(scale=rules.group_std())),
        "MaxRL": (lambda p: (1 - (1 - p) ** (size - 1)) / p, rules.knobs(scale=scale.max_rl)),
    }
    due, took = {}, {}
    for name, (w, knobs) in factors.items():

        def f(th: float, w=w) -> float:
            p = sigmoid(th)
            return w(p) / w(0.5) * p * (1 - p)

        start = logit(p0)
        due[name] = quad(lambda th, f=f: 1 / f(th), start, 0.0)[0] + eta / 2 * math.log(f(0.0) / f(start))
        policy = TwoClass([p0])
        rows = runs.trained(
            policy,
            groups.expecting(knobs),
            runs.enumerating([groups.outcomes(policy, is_last_token(1))], size),
            steps=int(1.2 * due[name] / eta) + 2,
            lr=eta / w(0.5),
            evaluate=lambda policy: {"logit": policy.logit.item()},
        )
        track = []
        for row in rows:
            track.append(row["logit"])
            if track[-1] >= 0:
                break
        took[name] = eta * arrival(track, 0.0)
    why = "second order of a step of 0.5"
    for number, name in enumerate(("group std", "MaxRL"), 1):
        what = f"{name} over no scale, G=8, from p=.02: how many times sooner at 1/2"
        yield exact(f"A3.3.{number}", what, due["no scale"] / due[name], took["no scale"] / took[name], 0.01, why)


def resting_places() -> Iterator[Row]:
    """A5.3 as runs from p = .1 to rest, every group of 3 in its exact share."""
    size, p0, number = 3, 0.1, 0
    for beta, schedules in (
        (0.2, {"k2": (20.0, 70), "k1": (20.0, 150), "k3": (8.0, 60)}),
        (1.0, {"k2": (4.0, 60), "k1": (4.0, 60), "k3": (4.0, 60)}),
    ):
        for what, (point, name, place) in resting_points(p0, beta, size).items():
            number += 1
            lr, steps = schedules[
                name
            ]  # so that lr times the slope at rest is about 1: there is little way left after few steps
            knobs = rules.knobs(kl=rules.estimator(name), placement=getattr(rules, place)())
            end = at_rest(knobs, p0, beta, size, lr, steps)
            yield exact(
                f"A5.3r.{number}", f"run to rest: {what}, beta {beta}", point, end, 1e-8, "what is left of the way"
            )
    knobs = rules.knobs(kl=rules.estimator("k2"), scale=rules.group_std())
    point = rest_under_std("k2", p0, 1.0, size)
    what = "run to rest: group std moves the rest of k2 in the loss to logit p* = logit p0 + w(p*)/beta"
    yield exact("A5.3r.7", what, point, at_rest(knobs, p0, 1.0, size, 4.0, 80), 1e-8, "what is left of the way")
    knobs = rules.knobs(kl=rules.estimator("k1"))
    free = logit(p0)
    for _ in range(60):
        free += 4.0 * (size - 1) / size * sigmoid(free) * sigmoid(-free)
    what = "k1 in the loss anchors nothing: after 60 steps p is where it would be without a KL, on its way to 1"
    yield exact("A5.3r.8", what, sigmoid(free), at_rest(knobs, p0, 1.0, size, 4.0, 60))


# What a KL in the loss pulls a logit th by, over p (1 - p): the reverse KL (k2), the forward KL (k3).
PULLS: dict[str, Callable[[float, float], float]] = {
    "k2": lambda th, start: th - start,
    "k3": lambda th, start: (sigmoid(th) - sigmoid(start)) / (sigmoid(th) * sigmoid(-th)),
}


def rest_under_std(estimator: str, p0: float, beta: float, size: int, eps: float = 0.0) -> float:
    """p* at which the group-std reward's pull w_G(p) and that of beta times an estimator in the loss balance."""
    start = logit(p0)

    def left(th: float) -> float:
        return weight(sigmoid(th), size, one_over_std(size, eps)) - beta * PULLS[estimator](th, start)

    highest = min(start + math.sqrt(size) / beta + 1, 30.0)  # w_G is below sqrt(G); at 30 p is 1 to 13 digits
    return sigmoid(brentq(left, start, highest, xtol=1e-14) if left(highest) < 0 else highest)


def at_rest(
    knobs: grpo.Knobs,
    p0: float,
    beta: float,
    size: int,
    lr: float,
    steps: int,
    optimizer: Callable = torch.optim.SGD,
) -> float:
    """Success rate after training from p0, which is the reference too."""
    policy = TwoClass([p0])
    collect = runs.enumerating([groups.outcomes(policy, is_last_token(1))], size)
    settings = {"steps": steps, "lr": lr, "beta": beta, "optimizer": optimizer, "evaluate_every": 0}
    runs.finish(runs.trained(policy, groups.expecting(knobs), collect, **settings))
    return policy.logit.sigmoid().item()


def sampled_rest() -> Iterator[Row]:
    """A5.3 in sampled groups of 128: 8 prompts side by side as 8 independent runs from p = .25, each averaged over its
    last 70 steps.

    A step of eta leaves the mean of the logit off by the order of eta / G, which is why both are chosen to make that
    small beside the standard error. With k1 in the reward no noise is left at rest, where right and wrong answers are
    worth the same.
    """
    size, p0, copies, beta = 128, 0.1, 8, 1.0
    for number, (what, (point, name, place)) in enumerate(resting_points(p0, beta, size).items(), 1):
        knobs = rules.knobs(kl=rules.estimator(name), placement=getattr(rules, place)())
        policy, late = TwoClass([0.25] * copies), []
        for row in runs.trained(
            policy,
            knobs,
            runs.sampling(Table(copies, ["b"]), prompts=copies, group_size=size),
            steps=140,
            lr=0.5 * copies,
            seed=number,
            beta=beta,
            reference=TwoClass([p0] * copies),
            evaluate=lambda policy: {"all": policy.logit.sigmoid().tolist()},
        ):
            late.append(row["all"])
        id, what = f"A5.3s.{number}", f"sampled in groups of {size}, p at rest: {what}, beta {beta}"
        if place == "in_reward":
            yield exact(
                id, what, point, numbers(late[-1]).mean(), 1e-5, "what is left of the way; there is no noise at rest"
            )
        else:
            yield sampled(id, what, point, numbers(late[-70:]).mean(0).tolist())


def learning_rates() -> Iterator[Row]:
    """A1.9: leave one out and group mean differ by a learning rate, in sampled runs with equal seeds."""
    size = 4

    def end(steps: int, lr: float, optimizer, **rooms) -> torch.Tensor:
        policy = TwoClass([0.1, 0.3, 0.6])
        collect = runs.sampling(Table(3, ["b"]), prompts=6, group_size=size)
        runs.finish(
            runs.trained(
                policy, rules.knobs(**rooms), collect, steps=steps, lr=lr, optimizer=optimizer, evaluate_every=0
            )
        )
        return policy.logit.detach()

    lone = {"baseline": baseline.leave_one_out}
    sgd, plain = end(60, 0.8 * (size - 1) / size, torch.optim.SGD, **lone), end(60, 0.8, torch.optim.SGD)
    yield exact("A1.9a", "60 sampled steps: RLOO at lr (G-1)/G ends where the group mean at lr ends", plain, sgd, 1e-12)

    def adam(parameters, lr):
        return torch.optim.Adam(parameters, lr=lr, eps=1e-300)

    yield exact(
        "A1.9b", "the same with Adam, eps -> 0, at equal lr", end(60, 0.05, adam), end(60, 0.05, adam, **lone), 1e-12
    )


EXACT = (rates,)
TRAINED = (learning_times, finite_group_times)
TRAINED_AT_REST = (resting_places, sampled_rest)
TRAINED_BASELINE = (learning_rates,)
