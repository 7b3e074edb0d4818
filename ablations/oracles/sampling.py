"""A2: groups that teach nothing, and what drawing others in their place does.

z(p) = p^G + (1-p)^G is the chance that the G answers to a prompt of success rate p agree; zbar its mean over the
prompts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ablations import grpo
from ablations.knobs import group as by_group
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.oracles.advantage import is_last_token, one_over_std, weight
from ablations.oracles.table import Row, exact, sampled
from ablations.policy.tabular import TwoClass
from ablations.tasks.tabular import Table


def agreement(p: float, group_size: int) -> float:
    """z(p)."""
    return p**group_size + (1 - p) ** group_size


def measured_agreement(p: float, group_size: int) -> float:
    """The probability of the groups that the metric calls zero-advantage."""
    policy = TwoClass([p])
    every = groups.every_group(policy, groups.outcomes(policy, is_last_token(1)), group_size)
    rewards = every.of.rewards[every.members].flatten()
    ids = torch.arange(len(every.members)).repeat_interleave(group_size)
    return (every.chance * by_group.zero_advantage_groups(rewards, ids).zero).sum().item()


def over_beta(a: int, b: int, function) -> float:
    """E[function(p)] for p ~ Beta(a, b) with whole a, b: Gauss-Legendre with 40 nodes, exact for polynomials of degree
    below 80."""
    nodes, shares = np.polynomial.legendre.leggauss(40)
    total = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    p = (nodes + 1) / 2
    density = np.exp((a - 1) * np.log(p) + (b - 1) * np.log(1 - p) - total)
    return float(sum(s / 2 * d * function(x) for s, d, x in zip(shares, density, p.tolist(), strict=True)))


def beta_agreement(a: int, b: int, group_size: int) -> float:
    """[B(a+G, b) + B(a, b+G)] / B(a, b)."""

    def log_beta(x: float, y: float) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    whole = log_beta(a, b)
    return math.exp(log_beta(a + group_size, b) - whole) + math.exp(log_beta(a, b + group_size) - whole)


def zero_advantage() -> Iterator[Row]:
    """A2.1."""
    for size in (2, 4, 8):
        rates = (0.02, 0.18, 0.5)
        yield exact(
            f"A2.1a.{size}",
            f"share of groups that agree: p^G + (1-p)^G, G={size}",
            [agreement(p, size) for p in rates],
            [measured_agreement(p, size) for p in rates],
        )
        uniform = over_beta(1, 1, lambda p, size=size: measured_agreement(p, size))
        yield exact(f"A2.1b.{size}", f"prompts of uniform success rate: 2/(G+1), G={size}", 2 / (size + 1), uniform)
    mixed = over_beta(2, 5, lambda p: measured_agreement(p, 4))
    yield exact(
        "A2.1c", "success rates from Beta(2, 5): [B(a+G,b) + B(a,b+G)] / B(a,b), G=4", beta_agreement(2, 5, 4), mixed
    )
    yield exact("A2.1d", "the same from the metric's own fit, on a population with these moments", *fitted(2, 5, 4))


def fitted(a: int, b: int, size: int) -> tuple[float, float]:
    """Prediction, and `predicted_zero_advantage` on a batch in which c right answers come as often as a beta-binomial
    says.

    The batch holds a whole number of groups of every c: a = 2, b = 5, G = 4 has chances in 210ths.
    """
    whole = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    counts = []
    for c in range(size + 1):
        log = math.lgamma(a + c) + math.lgamma(b + size - c) - math.lgamma(a + b + size)
        counts.append(round(210 * math.comb(size, c) * math.exp(log - whole)))
    correct = torch.cat([(torch.arange(size) < c).double().repeat(n) for c, n in enumerate(counts)])
    ids = torch.arange(sum(counts)).repeat_interleave(size)
    return beta_agreement(a, b, size), by_group.predicted_zero_advantage(correct, ids)


def mixture(rates: Sequence[float], size: int, knobs: grpo.Knobs) -> Tensor:
    """Expected ascent over prompts of these rates, by their logits."""
    policy = TwoClass(rates)
    of = [groups.outcomes(policy, is_last_token(1), prompt) for prompt in range(len(rates))]
    return groups.expected(policy, of, knobs, group_size=size).ascent


def refilled(rates: Sequence[float], size: int, knobs: grpo.Knobs) -> Tensor:
    """The same given that the group is kept, which is what a batch holds once the others have been replaced."""
    policy = TwoClass(rates)
    of = [groups.outcomes(policy, is_last_token(1), prompt) for prompt in range(len(rates))]
    every = [groups.every_group(policy, each, size) for each in of]
    chance = torch.cat([each.chance for each in every]) / len(rates)
    kept = groups.tensors(policy, every, knobs)["kept"].view(-1, size)[:, 0]
    chance = torch.where(kept, chance, 0.0)
    return groups.differentiate(policy, every, groups.expecting(knobs, chance / chance.sum())).ascent


def dynamic_sampling() -> Iterator[Row]:
    """A2.2 and A2.3: refilling draws 1/(1 - zbar) groups per kept one, and the step is longer by that, not turned."""
    rates, size = (0.02, 0.3, 0.9), 4
    share = sum(agreement(p, size) for p in rates) / len(rates)
    p = numbers(rates)
    for number, (name, scale, factor) in enumerate(
        (
            ("no scale", {}, [(size - 1) / size] * 3),
            ("group std", {"scale": rules.group_std()}, [weight(x, size, one_over_std(size)) for x in rates]),
        ),
        1,
    ):
        knobs = rules.knobs(keep=rules.informative(), **scale)
        true = numbers(factor) * p * (1 - p) / len(rates)
        plain = mixture(rates, size, rules.knobs(**scale))
        yield exact(f"A2.3a.{number}", f"no refilling, {name}: mean over prompts of w(p) grad p", true, plain)
        yield exact(
            f"A2.3b.{number}",
            f"refilled, {name}: the same ascent times 1/(1 - zbar)",
            true / (1 - share),
            refilled(rates, size, knobs),
        )
    dropped = mixture(rates, size, rules.knobs(keep=rules.informative(dropped_rows_count=True)))
    yield exact(
        "A2.3c",
        "dropped, not refilled, dropped rows in the denominator: nothing changes",
        mixture(rates, size, rules.knobs()),
        dropped,
    )


EXACT = (zero_advantage, dynamic_sampling)


# --- as runs ---------------------------------------------------------------------------------------------------------


def logged_share() -> Iterator[Row]:
    """A2.1 in the journal's own metrics: 200 prompts of success rates 1/400, 3/400 ... 399/400, at learning rate 0."""
    prompts, steps = 200, 5
    rates = [(i + 0.5) / prompts for i in range(prompts)]
    for size in (4, 8):
        collect = runs.sampling(Table(prompts, ["b"]), prompts=prompts, group_size=size)
        rows = list(runs.trained(TwoClass(rates), rules.knobs(), collect, steps=steps, lr=0.0, seed=size))[1:]
        spread = math.sqrt(sum(agreement(p, size) * (1 - agreement(p, size)) for p in rates)) / prompts
        logged = [row["groups/zero_advantage"] for row in rows]
        what = f"logged zero-advantage share, success rates spread evenly: 2/(G+1), G={size}"
        yield sampled(f"A2.1s.{size}", what, 2 / (size + 1), logged, spread)
        logged = [row["groups/zero_advantage_predicted"] for row in rows]
        yield sampled(
            f"A2.1p.{size}", "the share that the log predicts from the groups' success rates", 2 / (size + 1), logged
        )


def logged_draws() -> Iterator[Row]:
    """A2.2: batches of one group, filled by dynamic sampling, at learning rate 0: groups drawn per kept one."""
    rates, size, steps = (0.02, 0.3, 0.9), 4, 250
    share = sum(agreement(p, size) for p in rates) / len(rates)
    collect = runs.sampling(Table(len(rates), ["b"]), prompts=1, group_size=size)
    knobs = rules.knobs(keep=rules.informative(refill_rounds=1000))
    rows = list(runs.trained(TwoClass(rates), knobs, collect, steps=steps, lr=0.0, seed=1))[1:]
    drawn = [row["samples/generated"] / size for row in rows]
    what = "groups drawn until one is kept: 1/(1 - zbar)"
    yield sampled("A2.2", what, 1 / (1 - share), drawn, math.sqrt(share) / (1 - share))


class Race(NamedTuple):
    """Prompts of different difficulty trained until their mean success rate is `goal`; `rows` groups of `size` per
    update."""

    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 0.6)
    size: int = 4
    rows: int = 64
    goal: float = 0.7


def predicted_race(race: Race, w: Callable[[float], float], lr: float, refill: bool) -> tuple[float, float]:
    """Steps (interpolated) and answers generated on the way, when every update is its own expectation.

    A prompt's logit moves by lr w(p) p (1-p) / P per step, divided by 1 - zbar with refilling. Refilling draws whole
    rounds of `rows` groups until at least that many were kept.
    """
    theta = [math.log(p / (1 - p)) for p in race.rates]
    track, generated = [sum(race.rates) / len(theta)], [0.0]
    while track[-1] < race.goal:
        rates = [1 / (1 + math.exp(-x)) for x in theta]
        kept = [1 - agreement(p, race.size) for p in rates]
        faster = len(kept) / sum(kept) if refill else 1.0
        theta = [x + lr * faster * w(p) * p * (1 - p) / len(theta) for x, p in zip(theta, rates, strict=True)]
        rounds = expected_rounds(kept, race.rows) if refill else 1.0
        generated.append(generated[-1] + rounds * race.rows * race.size)
        track.append(sum(1 / (1 + math.exp(-x)) for x in theta) / len(theta))
    return interpolated(track, generated, race.goal)


def expected_rounds(kept: Sequence[float], rows: int) -> float:
    """E[rounds until `rows` groups are kept], each round having rows/P groups of every prompt, kept with these
    chances."""
    each = rows // len(kept)
    one = np.ones(1)
    for chance in kept:
        one = np.convolve(one, [math.comb(each, k) * chance**k * (1 - chance) ** (each - k) for k in range(each + 1)])
    total, expected = np.ones(1), 0.0
    while (short := total[:rows].sum()) > 1e-12:
        expected += short
        total = np.convolve(total, one)[:rows]
    return float(expected)


def interpolated(track: Sequence[float], generated: Sequence[float], goal: float) -> tuple[float, float]:
    """Where the last step of the track crosses the goal: (steps, answers generated)."""
    part = (goal - track[-2]) / (track[-1] - track[-2])
    return len(track) - 2 + part, generated[-2] + part * (generated[-1] - generated[-2])


def run_race(race: Race, knobs: grpo.Knobs, lr: float, seed: int) -> tuple[float, float]:
    policy = TwoClass(race.rates)
    collect = runs.sampling(Table(len(race.rates), ["b"]), prompts=race.rows, group_size=race.size)
    track, generated = [], [0.0]
    evaluate = {"evaluate": lambda policy: {"mean": policy.logit.sigmoid().mean().item()}}
    for row in runs.trained(policy, knobs, collect, steps=1000, lr=lr, seed=seed, **evaluate):
        track.append(row["mean"])
        if row["step"]:
            generated.append(generated[-1] + row["samples/generated"])
        if track[-1] >= race.goal:
            break
    return interpolated(track, generated, race.goal)


def races() -> Iterator[Row]:
    """A2.3 as runs: prompts of rates .03, .1, .3 and .6 until their mean is .7, G=4, plain gradient descent at a fixed
    rate."""
    race, seeds = Race(), range(5)
    for number, (name, w, lr, scale) in enumerate(
        (
            ("group std", lambda p: weight(p, race.size, one_over_std(race.size)), 1.1, {"scale": rules.group_std()}),
            ("no scale", lambda p: (race.size - 1) / race.size, 3.0, {}),
        ),
        1,
    ):
        plain = [run_race(race, rules.knobs(**scale), lr, seed) for seed in seeds]
        filled = [
            run_race(race, rules.knobs(keep=rules.informative(refill_rounds=100), **scale), lr, seed) for seed in seeds
        ]
        due, due_filled = (predicted_race(race, w, lr, refill) for refill in (False, True))
        ratios = [b[0] / a[0] for a, b in zip(plain, filled, strict=True)]
        what = f"{name}: steps with refilling over steps without, about 1 - zbar; {due_filled[0]:.0f} of {due[0]:.0f}"
        yield sampled(f"A2.3s.{number}", what, due_filled[0] / due[0], ratios)
        ratios = [b[1] / a[1] for a, b in zip(plain, filled, strict=True)]
        yield sampled(
            f"A2.3g.{number}",
            f"{name}: answers generated with refilling over without: not fewer",
            due_filled[1] / due[1],
            ratios,
        )


TRAINED = (logged_share, logged_draws, races)
