"""How long a prompt takes to be learnt, by its success rate at the start: oracle A3 at any group size.

One prompt with logit th and success rate p = sigmoid(th). A step of plain gradient ascent moves th by lr X, where X =
sigma_c^2 f(c) for a group with c right answers (`ablations.predictions.weights`), on average w(p) p (1-p).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from scipy.integrate import quad

from ablations import grpo
from ablations.knobs import baseline
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.oracles.advantage import is_last_token
from ablations.oracles.dynamics import arrival, logit, sigmoid
from ablations.policy.tabular import TwoClass
from ablations.predictions import unbiased
from ablations.predictions.points import Point
from ablations.predictions.weights import factor, strengths
from ablations.rollout import Rollout
from ablations.state import State
from ablations.tasks.tabular import Table

GOAL = 0.5  # a success rate
SECOND_ORDER = 1 / 16  # times the square of a step, in its own unit of time: more than the prediction leaves out

Move = Callable[[float], tuple[float, float]]  # success rate -> mean and mean square of X


def sampled_move(f: Callable, size: int) -> Move:
    """Of a sampled group of `size` answers."""
    values = strengths(f, size)
    c = torch.arange(size + 1, dtype=torch.float64)
    ways = numbers([math.comb(size, k) for k in range(size + 1)])

    def move(p: float) -> tuple[float, float]:
        chance = ways * p**c * (1 - p) ** (size - c)
        return (chance * values).sum().item(), (chance * values**2).sum().item()

    return move


def expected_move(f: Callable, size: int) -> Move:
    """Of an update that is its own expectation over groups of `size` answers."""
    sampled = sampled_move(f, size)
    return lambda p: ((mean := sampled(p)[0]), mean**2)


def proportional_move(f: Callable) -> Move:
    """Of infinitely many answers: p (1-p) f(p)."""
    return lambda p: ((mean := p * (1 - p) * f(numbers(p)).item()), mean**2)


def steps_due(move: Move, start: float, lr: float) -> float:
    """Steps from success rate `start` to GOAL: the integral over th of 1 / (lr m) + m2 m' / (2 m^3), m and m2 the mean
    and the mean square of X.

    The first term is the law of the flow. The second is what finite and noisy steps add to first order, from the
    backward equation of the expected time, -1 = lr m T' + lr^2 m2 T'' / 2; without noise it is ln(m(th1) / m(th0)) / 2.
    """

    def each(th: float, h: float = 1e-5) -> float:
        mean, square = move(sigmoid(th))
        slope = (move(sigmoid(th + h))[0] - move(sigmoid(th - h))[0]) / (2 * h)
        return 1 / (lr * mean) + square * slope / (2 * mean**3)

    return quad(each, logit(start), logit(GOAL))[0]


def steps_taken(policy: TwoClass, knobs: grpo.Knobs, collect: Callable, *, most: float, **settings) -> list[float]:
    """Steps until each prompt of `policy` first has success rate GOAL, interpolated, in the loop that trains language
    models; ValueError if that takes more than `most`."""
    tracks = []
    evaluate = {"evaluate": lambda policy: {f"logit/{i}": x for i, x in enumerate(policy.logit.tolist())}}
    there = [False] * len(policy.logit)
    for row in runs.trained(policy, knobs, collect, steps=math.ceil(most), **settings, **evaluate):
        tracks.append([row[f"logit/{i}"] for i in range(len(there))])
        there = [before or now >= logit(GOAL) for before, now in zip(there, tracks[-1], strict=True)]
        if all(there):
            break
    return [arrival(list(track), logit(GOAL)) for track in zip(*tracks, strict=True)]


def enumerated(start: float, knobs: grpo.Knobs, size: int, **settings) -> float:
    """Steps from `start` to GOAL when every group of `size` answers has its exact share in every update."""
    policy = TwoClass([start])
    collect = runs.enumerating([groups.outcomes(policy, is_last_token(1))], size)
    return steps_taken(policy, groups.expecting(knobs), collect, **settings)[0]


def in_proportion(start: float, knobs: grpo.Knobs, rows: int, **settings) -> float:
    """The same when every update is on one group of `rows` answers, of which as many are right as is likely.

    What is rounded to whole answers in one update is made good in the next, so that it does not add up.
    """
    policy, owed = TwoClass([start]), 0.0
    of = groups.outcomes(policy, is_last_token(1))

    def collect(state: State) -> Rollout:
        nonlocal owed
        owed += state.policy.logit.sigmoid().item() * rows
        right = round(owed)
        owed -= right
        members = (torch.arange(rows) < right).long()[None]  # outcome 1 is the right answer
        one = groups.Groups(of, members, numbers([1.0]))
        return Rollout(groups.tensors(state.policy, [one], state.knobs), {}, [])

    return steps_taken(policy, knobs, collect, **settings)[0]


def sampled(start: float, knobs: grpo.Knobs, size: int, *, copies: int, lr: float, **settings) -> list[float]:
    """The same in sampled groups; `copies` prompts side by side are that many independent runs."""
    policy = TwoClass([start] * copies)
    collect = runs.sampling(Table(copies, ["b"]), prompts=copies, group_size=size)
    # a batch averages over its prompts, each of which should move at lr
    return steps_taken(policy, knobs, collect, lr=lr * copies, **settings)


def laws(
    *,
    starts: Sequence[float],
    scales: Mapping[str, Callable],
    exact_sizes: Sequence[int],
    sampled_sizes: Sequence[int],
    copies: int,
    rows: int,
    step: float,
    seed: int,
) -> Iterator[Point]:
    """Time from each of `starts` to GOAL, in steps times learning rate times w(GOAL): the unit in which all scales are
    equally fast at p = 1/2.

    exact_sizes: group sizes at which every update is its own expectation. An infinite group is one of `rows` answers
    with as many right ones as is likely. sampled_sizes: sampled groups, `copies` independent runs each. step: learning
    rate times w(GOAL).
    """
    for name, divide in scales.items():
        knobs, limit = rules.knobs(scale=divide), factor(divide, math.inf)
        exact: list[tuple[str, Move, Callable, float]] = [
            (f"G = {size}", expected_move(factor(divide, size), size), partial(enumerated, size=size), 0.0)
            for size in exact_sizes
        ]
        exact += [("G → infinity", proportional_move(limit), partial(in_proportion, rows=rows), 1 / rows)]
        for panel, move, run, rounding in exact:
            lr = step * GOAL * (1 - GOAL) / move(GOAL)[0]
            for start in starts:
                due = steps_due(move, start, lr)
                took = run(start, knobs, lr=lr, most=1.5 * due + 10)
                # an answer that is still owed at the end is worth 1 / (rows p) of time where p is smallest
                tolerance = SECOND_ORDER * step**2 + rounding / start
                yield Point(panel, name, start, due * step, took * step, 0.0, tolerance)
        for size in sampled_sizes:
            move = sampled_move(factor(divide, size), size)
            lr = step * GOAL * (1 - GOAL) / move(GOAL)[0]
            for start in starts:
                due = steps_due(move, start, lr)
                settings = {"lr": lr, "copies": copies, "seed": seed, "most": 5 * due + 10}
                times = numbers(sampled(start, knobs, size, **settings)) * step
                error = unbiased.standard_error(times)
                yield Point(f"G = {size}, sampled", name, start, due * step, times.mean().item(), error, 4 * error)


def baselines(*, sizes: Sequence[int], start: float, step: float, adam_step: float) -> Iterator[Point]:
    """How many times the steps of leave-one-out a group-mean baseline needs from `start` to GOAL, every group in its
    exact share.

    The group mean's gradient is (G-1)/G of the other (oracle A1.1). SGD takes G/(G-1) times the steps, a little less
    because steps are finite; Adam divides by the gradient's size and takes equally many (oracle A1.9). step, adam_step:
    learning rates.
    """

    def adam(parameters, lr):
        return torch.optim.Adam(parameters, lr=lr, eps=1e-300)

    whole = steps_due(lambda p: (p * (1 - p), (p * (1 - p)) ** 2), start, step)
    for size in sizes:
        less = steps_due(expected_move(torch.ones_like, size), start, step)
        for name, optimizer, lr, most, predicted, tolerance in (
            ("SGD", torch.optim.SGD, step, 2 * less, less / whole, 2 * SECOND_ORDER * step / whole),
            ("Adam", adam, adam_step, -2 * logit(start) / adam_step, 1.0, 1e-10),
        ):
            settings = {"size": size, "lr": lr, "optimizer": optimizer, "most": most}
            mean, left_out = (
                enumerated(start, rules.knobs(baseline=chosen), **settings)
                for chosen in (baseline.group_mean, baseline.leave_one_out)
            )
            yield Point("", name, size, predicted, mean / left_out, 0.0, tolerance)
