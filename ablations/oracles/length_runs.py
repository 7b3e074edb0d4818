"""A4 as runs: how far lengths drift while a table is trained."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.oracles.advantage import a_bandit
from ablations.oracles.length import LENGTHS, inverse_length, kappa, mean_length
from ablations.oracles.table import Row, exact, sampled
from ablations.policy.tabular import GeometricStop
from ablations.tasks.tabular import Table


def arms_trained() -> Iterator[Row]:
    """A4.1 over 30 updates, every group in its exact share, against the same 30 steps in closed form."""
    size, rate, steps = 3, 3.0, 30
    lengths, rewards = numbers(LENGTHS), numbers([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    for number, (name, aggregate, divisor) in enumerate(
        (
            ("sequence mean", rules.sequence_mean(), lengths),
            ("constant 6", rules.constant(6.0), torch.full_like(lengths, 6.0)),
        ),
        1,
    ):
        policy = a_bandit(*[0.0] * 6, lengths=LENGTHS)
        of = groups.outcomes(policy, lambda ids: int(ids[0]) >= 3, longest=max(LENGTHS))
        collect = runs.enumerating([of], size)
        knobs = groups.expecting(rules.knobs(aggregate=aggregate))
        runs.finish(runs.trained(policy, knobs, collect, steps=steps, lr=rate, evaluate_every=0))
        logits = torch.zeros(6, dtype=torch.float64)
        for _ in range(steps):
            chance = logits.softmax(0)
            push = (size - 1) / size * chance * (rewards - (chance * rewards).sum()) / divisor
            logits = logits + rate * (push - chance * push.sum())
        due = [(logits[part].softmax(0) * lengths[part]).sum() for part in (slice(0, 3), slice(3, 6))]
        measured = [mean_length(policy, of, paid).item() for paid in (0.0, 1.0)]
        yield exact(
            f"A4.1r.{number}w",
            f"{name}: mean length of wrong answers after 30 updates, 3 at first",
            due[0],
            measured[0],
        )
        yield exact(
            f"A4.1r.{number}r",
            f"{name}: mean length of right answers after 30 updates, 3 at first",
            due[1],
            measured[1],
        )


def predicted_stopping(
    p: float, hazard: float, size: int, lr: float, steps: int, constant: float | None
) -> Iterator[tuple[float, float]]:
    """Logits of the hazards (wrong, right) after 0, 1, .. `steps` expected updates of A4.2, under a sequence mean or
    over a constant length."""
    right, stop = math.log(p / (1 - p)), [math.log(hazard / (1 - hazard))] * 2
    yield stop[0], stop[1]
    for _ in range(steps):
        p = 1 / (1 + math.exp(-right))
        h = [1 / (1 + math.exp(-x)) for x in stop]
        push = (size - 1) / size * p * (1 - p) * lr
        if constant:
            right += push / constant
        else:
            right += push * ((1 - p) * inverse_length(h[1]) + p * inverse_length(h[0]))
            stop = [stop[0] - push * kappa(h[0]), stop[1] + push * kappa(h[1])]
        yield stop[0], stop[1]


def sampled_stopping(
    aggregate: Callable,
    *,
    p: float,
    hazards: Sequence[float],
    size: int,
    lr: float,
    steps: int,
    copies: int,
    longest: int,
    seed: int,
) -> Iterator[list[list[float]]]:
    """The same in sampled groups: `copies` prompts side by side as as many independent runs. After 0, 1, .. `steps`
    updates the logits of the hazards of all copies, one list per mode. Answers of at most `longest` tokens."""
    policy = GeometricStop([p] * copies, hazards)
    collect = runs.sampling(Table(copies, ["c", "d"]), prompts=copies, group_size=size, max_new_tokens=longest)
    knobs = rules.knobs(aggregate=aggregate)  # the batch averages over prompts, each of which should move at lr
    for _ in runs.trained(policy, knobs, collect, steps=steps, lr=lr * copies, seed=seed, evaluate_every=0):
        yield policy.hazard.detach().T.tolist()


def stopping_trained() -> Iterator[Row]:
    """A4.2 and A4.3 in sampled groups of 8, 16 runs; answers of at most 600 tokens."""
    p, hazard, size, steps = 0.5, 0.1, 8, 60

    def ends(aggregate, hazards, seed: int) -> list[list[float]]:
        """Logits of the hazards of all copies after the run, one list per mode."""
        course = sampled_stopping(
            aggregate, p=p, hazards=hazards, size=size, lr=1.0, steps=steps, copies=16, longest=600, seed=seed
        )
        return runs.finish(course)

    cases = (
        ("sequence mean", rules.sequence_mean(), None),
        ("constant 10", rules.constant(10.0), 10.0),
        ("token mean", rules.token_mean(), 10.0),
    )
    for number, (name, aggregate, length) in enumerate(cases, 1):
        due = runs.finish(predicted_stopping(p, hazard, size, 1.0, steps, length))
        found = ends(aggregate, (hazard, hazard), number)
        for mode, target, seeds in zip(("wrong", "right"), due, found, strict=True):
            what = f"{name}: logit of the hazard of {mode} answers; mean length 10 -> {1 + math.exp(-target):.2f}"
            yield sampled(f"A4.2r.{number}{mode[0]}", what, target, seeds)
    (found,) = ends(rules.sequence_mean(), (hazard,), 4)
    start = math.log(hazard / (1 - hazard))
    yield sampled("A4.3r", "one hazard for both modes, sequence mean: its logit stays, mean length 10", start, found)


TRAINED = (arms_trained, stopping_trained)
