"""A4: what the aggregation does to the length of answers.

Lengths change only where the loss can tell lengths apart: `sequence_mean` divides an answer's gradient by its length,
so that of two wrong answers the shorter is punished more. In expectation the others move no length that is independent
of the reward.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ablations import grpo
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules
from ablations.oracles.advantage import a_bandit
from ablations.oracles.table import Row, exact
from ablations.policy.tabular import GeometricStop, Tabular

LENGTHS = (1, 2, 6, 2, 3, 4)  # of three wrong arms, then of three right ones
RIGHT_MODE = (2, 3)  # the tokens of a geometric-stop policy's right mode


def covariance_with_inverse(lengths: Tensor) -> float:
    """Cov(L, 1/L) over evenly likely lengths: negative unless they agree."""
    return (1 - lengths.mean() * (1 / lengths).mean()).item()


def mean_length(policy: Tabular, of: groups.Outcomes, paid: float) -> Tensor:
    """E[L | reward = paid], differentiable."""
    chance = of.probability(policy) * (of.rewards == paid)
    return (chance * of.mask.sum(1)).sum() / chance.sum()


def speed(policy: Tabular, of: groups.Outcomes, paid: float, measured: groups.Measured) -> float:
    """d/dt E[L | reward = paid] while the parameters follow the measured ascent."""
    return (groups.gradient(mean_length(policy, of, paid), policy) @ measured.ascent).item()


def arms() -> Iterator[Row]:
    """A4.1: arms of fixed lengths, evenly likely within the wrong and within the right ones; mean baseline."""
    size, p = 3, 0.4
    spread = math.log(p / (1 - p))  # as many right arms as wrong ones
    policy = a_bandit(0.0, 0.0, 0.0, spread, spread, spread, lengths=LENGTHS)
    of = groups.outcomes(policy, lambda ids: int(ids[0]) >= 3, longest=max(LENGTHS))
    wrong, right = numbers(LENGTHS[:3]), numbers(LENGTHS[3:])
    mean = (size - 1) / size
    by_length = groups.expected(policy, of, rules.knobs(), group_size=size)
    predicted = mean * -p * (1 - p) / 3 * covariance_with_inverse(wrong)
    yield exact(
        "A4.1a",
        "sequence mean: wrong answers lengthen, (G-1)/G * -p pi_w Cov(L,1/L)",
        predicted,
        speed(policy, of, 0.0, by_length),
    )
    predicted = mean * (1 - p) * p / 3 * covariance_with_inverse(right)
    yield exact(
        "A4.1b",
        "sequence mean: right answers shorten, (G-1)/G (1-p) pi_r Cov(L,1/L)",
        predicted,
        speed(policy, of, 1.0, by_length),
    )
    for number, (name, aggregate) in enumerate(
        (("constant", rules.constant(6.0)), ("sequence sum", rules.sequence_sum())), 1
    ):
        flat = groups.expected(policy, of, rules.knobs(aggregate=aggregate), group_size=size)
        measured = [speed(policy, of, paid, flat) for paid in (0.0, 1.0)]
        yield exact(f"A4.1c.{number}", f"{name}: neither wrong nor right answers change length", [0.0, 0.0], measured)


def kappa(hazard: float) -> float:
    """E[(1 - L h) / L] of a geometric L: h (-ln h / (1 - h) - 1), positive."""
    return inverse_length(hazard) - hazard


def inverse_length(hazard: float) -> float:
    """E[1 / L] = -h ln h / (1 - h)."""
    return -hazard * math.log(hazard) / (1 - hazard)


def stopping() -> Iterator[Row]:
    """A4.2: one hazard per mode. Ascent by parameter: (logit of being right, logit of the wrong hazard, logit of the
    right hazard).

    Answers of more than 27 tokens are left out of the enumeration: at these hazards they have a probability below
    1e-13.
    """
    p, hazards, size, longest = 0.3, (0.7, 0.75), 2, 27
    policy = GeometricStop([p], hazards)
    of = groups.outcomes(policy, lambda ids: int(ids[0]) in RIGHT_MODE, longest=longest)
    mean, signal = (size - 1) / size, p * (1 - p)
    why = "answers beyond 27 tokens left out"
    by_length = groups.expected(policy, of, rules.knobs(), group_size=size)
    predicted = [-mean * signal * kappa(hazards[0]), mean * signal * kappa(hazards[1])]
    yield exact(
        "A4.2a",
        "sequence mean: the stop logits move by (G-1)/G pi_m A_m kappa(h)",
        predicted,
        by_length.ascent[1:],
        because=why,
    )
    inverse = [inverse_length(h) for h in hazards]
    predicted_mode = mean * signal * ((1 - p) * inverse[1] + p * inverse[0])
    yield exact(
        "A4.2b",
        "sequence mean: the logit of being right by p (1-p) ((1-p) E[1/L|right] + p E[1/L|wrong])",
        predicted_mode,
        by_length.ascent[0],
        because=why,
    )
    flat = groups.expected(policy, of, rules.knobs(aggregate=rules.constant(8.0)), group_size=size)
    yield exact(
        "A4.2c",
        "constant length 8: stop logits do not move, the logit of being right by (G-1)/G p (1-p) / 8",
        [mean * signal / 8, 0, 0],
        flat.ascent,
        because=why,
    )


def shared_hazard() -> Iterator[Row]:
    """A4.3: one hazard for both modes, so that length says nothing about being right."""
    policy = GeometricStop([0.3], (0.7,))
    of = groups.outcomes(policy, lambda ids: int(ids[0]) in RIGHT_MODE, longest=27)
    for number, (name, aggregate) in enumerate(
        (
            ("sequence mean", rules.sequence_mean()),
            ("token mean", rules.token_mean()),
            ("constant", rules.constant(8.0)),
        ),
        1,
    ):
        measured = groups.expected(policy, of, rules.knobs(aggregate=aggregate), group_size=2)
        yield exact(
            f"A4.3.{number}",
            f"one hazard for right and wrong, {name}: no drift of the length",
            0.0,
            measured.ascent[1],
            because="answers beyond 27 tokens left out",
        )


def uneven_batch(aggregate) -> tuple[dict, grpo.Knobs, groups.Measured, Tabular]:
    """Two prompts' groups in one batch, with short answers to one and long ones to the other."""
    policy = a_bandit(0.3, 0.0, -0.2, 0.1, lengths=(1, 2, 5, 8))
    of = groups.outcomes(policy, lambda ids: int(ids[0]) in (0, 2), longest=8)
    batch = groups.Groups(of, torch.tensor([[0, 0, 1, 1], [3, 2, 3, 2]]), numbers([1.0, 1.0]))
    knobs = rules.knobs(aggregate=aggregate)
    measured = groups.differentiate(policy, [batch], knobs)
    return measured.batch, knobs, measured, policy


def token_weights() -> Iterator[Row]:
    """A4.5: the weight of one token."""
    batch, _, _, _ = uneven_batch(rules.sequence_mean())
    lengths = batch["lengths"].double()
    rows, longest = len(lengths), 9.0
    cases = (
        ("sequence mean: 1/(N L_i)", rules.sequence_mean(), 1 / (rows * lengths)),
        ("token mean: 1/sum L", rules.token_mean(), torch.ones_like(lengths) / lengths.sum()),
        ("constant: 1/(N Lmax)", rules.constant(longest), torch.ones_like(lengths) / (rows * longest)),
    )
    summed = {}
    for number, (what, aggregate, predicted) in enumerate(cases, 1):
        weight = grpo.weights(batch["masks"], batch["counted"], batch["group"], rules.knobs(aggregate=aggregate)).policy
        summed[number] = weight.view(2, -1).sum(1)
        yield exact(f"A4.5.{number}", f"each token's weight, {what}", predicted, weight.sum(1) / batch["mask"].sum(1))
    predicted = lengths.mean() / lengths.view(2, 4).mean(1)
    yield exact(
        "A4.5.4",
        "weight of a prompt, sequence mean over token mean: mean L / mean L of the prompt",
        predicted,
        summed[1] / summed[2],
    )


def micro_batches() -> Iterator[Row]:
    """A4.6: one update batch in pieces."""
    for number, (name, aggregate) in enumerate(
        (("token mean", rules.token_mean()), ("sequence mean", rules.sequence_mean())), 1
    ):
        batch, knobs, whole, policy = uneven_batch(aggregate)
        pieces = torch.arange(8).split([1, 4, 3])
        weight = grpo.weights(batch["masks"], batch["counted"], batch["group"], knobs)
        parts = [piece_loss(policy, batch, piece, knobs, grpo.Weights(*(w[piece] for w in weight))) for piece in pieces]
        ascent = -groups.gradient(torch.stack(parts).sum(), policy)
        yield exact(
            f"A4.6.{number}",
            f"{name}: the gradients of uneven micro-batches add up to the batch's",
            whole.ascent,
            ascent,
        )
    batch, knobs, whole, policy = uneven_batch(rules.token_mean())
    naive, predicted = [], []
    terms, mask = -batch["advantages"], batch["mask"]
    for piece in torch.arange(8).split(4):
        own = grpo.select(batch, piece)
        weight = grpo.weights(own["masks"], own["counted"], own["group"], knobs)
        naive.append(piece_loss(policy, batch, piece, knobs, weight).item())
        predicted.append(((terms * mask)[piece].sum() / mask[piece].sum()).item())
    gap = sum(predicted) / 2 - ((terms * mask).sum() / mask.sum()).item()
    yield exact(
        "A4.6.3",
        "a mean of micro-batch token means is another number: by how much it is off",
        gap,
        sum(naive) / 2 - whole.loss,
    )


def piece_loss(policy, batch, piece: Tensor, knobs: grpo.Knobs, weight: grpo.Weights) -> Tensor:
    micro = grpo.select(batch, piece)
    inputs = (micro[name] for name in ("prompt_ids", "prompt_mask", "ids", "mask"))
    return grpo.loss(*policy.token_logp(*inputs, temperature=1.0), micro, knobs, weight, 0.0)[0]


def luspo() -> Iterator[Row]:
    """A4.7: GSPO's ratio, each answer times its length."""
    _, _, by_token, _ = uneven_batch(rules.sequence_sum())
    policy = a_bandit(0.3, 0.0, -0.2, 0.1, lengths=(1, 2, 5, 8))
    of = groups.outcomes(policy, lambda ids: int(ids[0]) in (0, 2), longest=8)
    batch = groups.Groups(of, torch.tensor([[0, 0, 1, 1], [3, 2, 3, 2]]), numbers([1.0, 1.0]))
    knobs = rules.knobs(aggregate=rules.sequence_sum(), ratio=rules.sequence_ratio("sequence_mean"))
    luspo = groups.differentiate(policy, [batch], knobs)
    lengths, rewards = luspo.batch["lengths"].double(), luspo.batch["total"].view(2, 4)
    centred = (rewards - rewards.mean(1, keepdim=True)).flatten()
    yield exact("A4.7.1", "LUSPO on policy: the loss is -mean(A L)", -(centred * lengths).mean(), luspo.loss)
    yield exact(
        "A4.7.2",
        "LUSPO on policy has the gradient of the token ratio under a sequence sum",
        by_token.ascent,
        luspo.ascent,
    )


EXACT = (arms, stopping, shared_hazard, token_weights, micro_batches, luspo)
