"""A4: what the aggregation does to the length of answers.

Lengths change only where the loss can tell lengths apart: `sequence_mean` divides an answer's gradient by its length, so that of two wrong
answers the shorter is punished more. In expectation the others move no length that is independent of the reward.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ablations import grpo
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.oracles.advantage import a_bandit
from ablations.oracles.table import Row, exact, sampled
from ablations.policy.tabular import GeometricStop, Tabular
from ablations.tasks.tabular import Table

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
    yield exact("A4.1a", "sequence mean: wrong answers lengthen, (G-1)/G * -p pi_w Cov(L,1/L)", predicted, speed(policy, of, 0.0, by_length))
    predicted = mean * (1 - p) * p / 3 * covariance_with_inverse(right)
    yield exact("A4.1b", "sequence mean: right answers shorten, (G-1)/G (1-p) pi_r Cov(L,1/L)", predicted, speed(policy, of, 1.0, by_length))
    for number, (name, aggregate) in enumerate((("constant", rules.constant(6.0)), ("sequence sum", rules.sequence_sum())), 1):
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
    """A4.2: one hazard per mode. Ascent by parameter: (logit of being right, logit of the wrong hazard, logit of the right hazard).

    Answers of more than 27 tokens are left out of the enumeration: at these hazards they have a probability below 1e-13.
    """
    p, hazards, size, longest = 0.3, (0.7, 0.75), 2, 27
    policy = GeometricStop([p], hazards)
    of = groups.outcomes(policy, lambda ids: int(ids[0]) in RIGHT_MODE, longest=longest)
    mean, signal = (size - 1) / size, p * (1 - p)
    why = "answers beyond 27 tokens left out"
    by_length = groups.expected(policy, of, rules.knobs(), group_size=size)
    predicted = [-mean * signal * kappa(hazards[0]), mean * signal * kappa(hazards[1])]
    yield exact("A4.2a", "sequence mean: the stop logits move by (G-1)/G pi_m A_m kappa(h)", predicted, by_length.ascent[1:], because=why)
    inverse = [inverse_length(h) for h in hazards]
    predicted_mode = mean * signal * ((1 - p) * inverse[1] + p * inverse[0])
    yield exact("A4.2b", "sequence mean: the logit of being right by p (1-p) ((1-p) E[1/L|right] + p E[1/L|wrong])", predicted_mode, by_length.ascent[0], because=why)
    flat = groups.expected(policy, of, rules.knobs(aggregate=rules.constant(8.0)), group_size=size)
    yield exact("A4.2c", "constant length 8: stop logits do not move, the logit of being right by (G-1)/G p (1-p) / 8", [mean * signal / 8, 0, 0], flat.ascent, because=why)


def shared_hazard() -> Iterator[Row]:
    """A4.3: one hazard for both modes, so that length says nothing about being right."""
    policy = GeometricStop([0.3], (0.7,))
    of = groups.outcomes(policy, lambda ids: int(ids[0]) in RIGHT_MODE, longest=27)
    for number, (name, aggregate) in enumerate(
        (("sequence mean", rules.sequence_mean()), ("token mean", rules.token_mean()), ("constant", rules.constant(8.0))), 1
    ):
        measured = groups.expected(policy, of, rules.knobs(aggregate=aggregate), group_size=2)
        yield exact(f"A4.3.{number}", f"one hazard for right and wrong, {name}: no drift of the length", 0.0, measured.ascent[1], because="answers beyond 27 tokens left out")


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
    yield exact("A4.5.4", "weight of a prompt, sequence mean over token mean: mean L / mean L of the prompt", predicted, summed[1] / summed[2])


def micro_batches() -> Iterator[Row]:
    """A4.6: one update batch in pieces."""
    for number, (name, aggregate) in enumerate((("token mean", rules.token_mean()), ("sequence mean", rules.sequence_mean())), 1):
        batch, knobs, whole, policy = uneven_batch(aggregate)
        pieces = torch.arange(8).split([1, 4, 3])
        weight = grpo.weights(batch["masks"], batch["counted"], batch["group"], knobs)
        parts = [piece_loss(policy, batch, piece, knobs, grpo.Weights(*(w[piece] for w in weight))) for piece in pieces]
        ascent = -groups.gradient(torch.stack(parts).sum(), policy)
        yield exact(f"A4.6.{number}", f"{name}: the gradients of uneven micro-batches add up to the batch's", whole.ascent, ascent)
    batch, knobs, whole, policy = uneven_batch(rules.token_mean())
    naive, predicted = [], []
    terms, mask = -batch["advantages"], batch["mask"]
    for piece in torch.arange(8).split(4):
        own = grpo.select(batch, piece)
        weight = grpo.weights(own["masks"], own["counted"], own["group"], knobs)
        naive.append(piece_loss(policy, batch, piece, knobs, weight).item())
        predicted.append(((terms * mask)[piece].sum() / mask[piece].sum()).item())
    gap = sum(predicted) / 2 - ((terms * mask).sum() / mask.sum()).item()
    yield exact("A4.6.3", "a mean of micro-batch token means is another number: by how much it is off", gap, sum(naive) / 2 - whole.loss)


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
    yield exact("A4.7.2", "LUSPO on policy has the gradient of the token ratio under a sequence sum", by_token.ascent, luspo.ascent)


EXACT = (arms, stopping, shared_hazard, token_weights, micro_batches, luspo)


# --- as runs ---------------------------------------------------------------------------------------------------------


def arms_trained() -> Iterator[Row]:
    """A4.1 over 30 updates, every group in its exact share, against the same 30 steps in closed form."""
    size, rate, steps = 3, 3.0, 30
    lengths, rewards = numbers(LENGTHS), numbers([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    for number, (name, aggregate, divisor) in enumerate(
        (("sequence mean", rules.sequence_mean(), lengths), ("constant 6", rules.constant(6.0), torch.full_like(lengths, 6.0))), 1
    ):
        policy = a_bandit(*[0.0] * 6, lengths=LENGTHS)
        of = groups.outcomes(policy, lambda ids: int(ids[0]) >= 3, longest=max(LENGTHS))
        collect = runs.enumerating([of], size)
        knobs = groups.expecting(rules.knobs(aggregate=aggregate))
        runs.last(runs.trained(policy, knobs, collect, steps=steps, lr=rate, evaluate_every=0))
        logits = torch.zeros(6, dtype=torch.float64)
        for _ in range(steps):
            chance = logits.softmax(0)
            push = (size - 1) / size * chance * (rewards - (chance * rewards).sum()) / divisor
            logits = logits + rate * (push - chance * push.sum())
        due = [(logits[part].softmax(0) * lengths[part]).sum() for part in (slice(0, 3), slice(3, 6))]
        measured = [mean_length(policy, of, paid).item() for paid in (0.0, 1.0)]
        yield exact(f"A4.1r.{number}w", f"{name}: mean length of wrong answers after 30 updates, 3 at first", due[0], measured[0])
        yield exact(f"A4.1r.{number}r", f"{name}: mean length of right answers after 30 updates, 3 at first", due[1], measured[1])


def predicted_stopping(p: float, hazard: float, size: int, lr: float, steps: int, constant: float | None) -> tuple[float, float]:
    """Logits of the hazards (wrong, right) after `steps` expected updates of A4.2, under a sequence mean or over a constant length."""
    right, stop = math.log(p / (1 - p)), [math.log(hazard / (1 - hazard))] * 2
    for _ in range(steps):
        p = 1 / (1 + math.exp(-right))
        h = [1 / (1 + math.exp(-x)) for x in stop]
        push = (size - 1) / size * p * (1 - p) * lr
        if constant:
            right += push / constant
            continue
        right += push * ((1 - p) * inverse_length(h[1]) + p * inverse_length(h[0]))
        stop = [stop[0] - push * kappa(h[0]), stop[1] + push * kappa(h[1])]
    return stop[0], stop[1]


def stopping_trained() -> Iterator[Row]:
    """A4.2 and A4.3 in sampled groups of 8: 16 prompts side by side as 16 independent runs; answers of at most 600 tokens."""
    p, hazard, size, copies, steps = 0.5, 0.1, 8, 16, 60

    def ends(aggregate, lr: float, hazards, seed: int) -> list[list[float]]:
        """Logits of the hazards of all copies after the run, one list per mode."""
        policy = GeometricStop([p] * copies, hazards)
        collect = runs.sampling(Table(copies, ["c", "d"]), prompts=copies, group_size=size, max_new_tokens=600)
        rows = runs.trained(policy, rules.knobs(aggregate=aggregate), collect, steps=steps, lr=lr * copies, seed=seed, evaluate_every=0)
        runs.last(rows)
        return policy.hazard.detach().T.tolist()

    cases = (
        ("sequence mean", rules.sequence_mean(), 1.0, None),
        ("constant 10", rules.constant(10.0), 1.0, 10.0),
        ("token mean", rules.token_mean(), 1.0, 10.0),
    )
    for number, (name, aggregate, lr, length) in enumerate(cases, 1):
        due = predicted_stopping(p, hazard, size, lr, steps, length)
        found = ends(aggregate, lr, (hazard, hazard), number)
        for mode, target, seeds in zip(("wrong", "right"), due, found, strict=True):
            what = f"{name}: logit of the hazard of {mode} answers; mean length 10 -> {1 + math.exp(-target):.2f}"
            yield sampled(f"A4.2r.{number}{mode[0]}", what, target, seeds)
    (found,) = ends(rules.sequence_mean(), 1.0, (hazard,), 4)
    start = math.log(hazard / (1 - hazard))
    yield sampled("A4.3r", "one hazard for both modes, sequence mean: its logit stays, mean length 10", start, found)


TRAINED = (arms_trained, stopping_trained)
