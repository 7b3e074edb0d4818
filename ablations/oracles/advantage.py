"""A1: what the choice of baseline and scale does to the expected gradient.

p success probability of a prompt, G answers per group, c of them right, sigma_c = sqrt(c (G - c)) / G. For advantages
(r - mean) f(c) the expected gradient is w_f(p) grad p with w_f(p) = E[sigma_c^2 f(c)] / (p (1 - p)): the difficulty
weight of the normaliser.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ablations import grpo
from ablations.knobs import baseline, reward, scale
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules
from ablations.oracles.table import Row, exact
from ablations.policy.tabular import Bandit, TwoClass

RATES = (0.02, 0.3, 0.5, 0.9)


def a_bandit(*logits: float, lengths=None) -> Bandit:
    """One prompt, one arm per number."""
    return Bandit(numbers([logits]), lengths)


def is_last_token(token: int) -> Callable[[Tensor], bool]:
    """Answers that end on this token are right."""
    return lambda ids: int(ids[-1]) == token


def policy_gradient(probability: Tensor, rewards: Tensor) -> Tensor:
    """Gradient of the expected reward of a softmax by its logits: pi_k (r_k - J). (K,), (K,) -> (K,)."""
    return probability * (rewards - (probability * rewards).sum())


def weight(p: float, group_size: int, f: Callable[[Tensor], Tensor]) -> float:
    """w_f(p) = sum_c Bin(c; G, p) sigma_c^2 f(c) / (p (1 - p)); f maps c = 1 .. G-1 to a factor."""
    c = torch.arange(1.0, group_size, dtype=torch.float64)
    ways = numbers([math.comb(group_size, int(k)) for k in c])
    chance = ways * p**c * (1 - p) ** (group_size - c)
    return (chance * c * (group_size - c) / group_size**2 * f(c)).sum().item() / (p * (1 - p))


def one_over_std(group_size: int, eps: float = 0.0) -> Callable[[Tensor], Tensor]:
    """f of group-std normalisation: 1 / (sigma_c + eps)."""
    return lambda c: 1 / ((c * (group_size - c)).sqrt() / group_size + eps)


def measured_weight(p: float, group_size: int, knobs: grpo.Knobs) -> float:
    """The weight in the expected gradient of the training code: ascent / (p (1 - p)), for one prompt of success rate
    p."""
    policy = TwoClass([p])
    of = groups.outcomes(policy, is_last_token(1))
    return groups.expected(policy, of, knobs, group_size=group_size).ascent.item() / (p * (1 - p))


def weights(knobs: grpo.Knobs, group_size: int, rates=RATES) -> Tensor:
    return numbers([measured_weight(p, group_size, knobs) for p in rates])


def unbiasedness() -> Iterator[Row]:
    """A1.1, for rewards of any size."""
    policy, size = a_bandit(0.4, -0.3, 1.1, 0.0), 3
    paid = numbers([0.3, -1.0, 2.0, 0.7])
    of = groups.outcomes(policy).paid(paid)
    true = policy_gradient(of.probability(policy), paid)
    centred = groups.expected(policy, of, rules.knobs(), group_size=size)
    left_out = groups.expected(policy, of, rules.knobs(baseline=baseline.leave_one_out), group_size=size)
    yield exact("A1.1a", f"group mean: E[g] = (G-1)/G grad J, G={size}", (size - 1) / size * true, centred.ascent)
    yield exact("A1.1b", f"leave one out: E[g] = grad J, G={size}", true, left_out.ascent)
    ratio = size / (size - 1) * centred.batch["advantage"]
    yield exact("A1.1c", "leave one out = G/(G-1) * (r - mean), in every group", ratio, left_out.batch["advantage"])
    ordered = groups.expected(policy, of, rules.knobs(), group_size=size, ordered=True)
    yield exact(
        "A1.1d",
        "groups as sequences = groups as multisets: the order of answers is no one's business",
        centred.ascent,
        ordered.ascent,
    )


def difficulty() -> Iterator[Row]:
    """A1.2, the weight of a prompt by its success rate."""
    for size in (2, 5, 16):
        flat = [(size - 1) / size] * len(RATES)
        yield exact(f"A1.2a.{size}", f"no scale: w = (G-1)/G at any p, G={size}", flat, weights(rules.knobs(), size))
    by_std = rules.knobs(scale=rules.group_std())
    for size in (2, 3, 4, 8, 16, 64):
        predicted = [weight(p, size, one_over_std(size)) for p in RATES]
        yield exact(
            f"A1.2b.{size}",
            f"group std, ddof 0: w = E[sqrt(c(G-c))] / (G p (1-p)), G={size}",
            predicted,
            weights(by_std, size),
        )
    size, eps = 4, 0.1
    predicted = [weight(p, size, one_over_std(size, eps)) for p in RATES]
    with_eps = rules.knobs(scale=rules.group_std(eps=eps))
    yield exact(
        "A1.2c",
        "group std, eps 0.1: w = E[sigma^2 / (sigma + eps)] / (p (1-p)), G=4",
        predicted,
        weights(with_eps, size),
    )
    by_sample_std = rules.knobs(scale=rules.group_std(ddof=1))
    for size in (2, 8):
        predicted = [math.sqrt((size - 1) / size) * weight(p, size, one_over_std(size)) for p in RATES]
        yield exact(
            f"A1.2d.{size}", f"ddof 1 is sqrt((G-1)/G) times ddof 0, G={size}", predicted, weights(by_sample_std, size)
        )
    for size in (2, 3):
        flat = [math.sqrt(size - 1)] * len(RATES)
        yield exact(
            f"A1.2e.{size}",
            f"group std, G={size}: w = sqrt(G-1) at any p, no bias towards hard or easy",
            flat,
            weights(by_std, size),
        )
    for size in (8, 64):
        why = "p = 1e-9; the next term of the limit is of order G p"
        yield exact(
            f"A1.2f.{size}",
            f"group std, p -> 0: w = sqrt(G-1), G={size}",
            math.sqrt(size - 1),
            measured_weight(1e-9, size, by_std),
            1e-6,
            why,
        )
    yield from difficulty_of_max_rl()
    yield from difficulty_of_large_groups()


def difficulty_of_max_rl() -> Iterator[Row]:
    """A1.2, dividing by the group's mean; and the off-by-one between its two forms."""
    size, rates = 5, numbers(RATES)
    centred = rules.knobs(scale=scale.max_rl)
    uncentred = rules.knobs(scale=scale.max_rl, baseline=baseline.none)
    predicted = (1 - (1 - rates) ** (size - 1)) / rates
    yield exact(
        "A1.2g",
        "(r - mean)/mean, 0 without a right answer: w = (1 - (1-p)^(G-1)) / p, order G-1",
        predicted,
        weights(centred, size),
    )
    yield exact(
        "A1.2h",
        "r/mean, not centred: w = (1 - (1-p)^G) / p, order G",
        (1 - (1 - rates) ** size) / rates,
        weights(uncentred, size),
    )


def difficulty_of_large_groups() -> Iterator[Row]:
    """A1.2, G -> infinity and a batch of infinitely many groups, as populations that hold every case as often as it is
    likely."""
    rates = numbers([0.01, 0.25, 0.5])
    measured = []
    for p in rates.tolist():
        policy = TwoClass([p])
        crowd = groups.population(policy, groups.outcomes(policy, is_last_token(1)), 100)
        measured.append(
            groups.differentiate(policy, [crowd], rules.knobs(scale=rules.group_std())).ascent.item() / (p * (1 - p))
        )
    yield exact("A1.2i", "group std, G -> infinity: w = 1 / sqrt(p (1-p))", (rates * (1 - rates)) ** -0.5, measured)
    policy, size = TwoClass([0.25, 0.5]), 2
    batch = []
    for prompt in (0, 1):
        each = groups.every_group(policy, groups.outcomes(policy, is_last_token(1), prompt), size)
        copies = (each.chance * 16).round().long()
        batch.append(each._replace(members=each.members.repeat_interleave(copies, 0)))
    knobs = rules.knobs(scale=partial(scale.batch_std, ddof=0, eps=0.0))
    p = numbers([0.25, 0.5])
    spread = (p.mean() * (1 - p.mean())).sqrt()
    predicted = (size - 1) / size / spread * p * (1 - p) / 2
    yield exact(
        "A1.2j",
        "batch std, many groups: w = (G-1)/G / sigma_batch for every prompt",
        predicted,
        groups.differentiate(policy, batch, knobs).ascent,
    )


def advantages_of(rewards: list[float], knobs: grpo.Knobs) -> Tensor:
    """Advantages of one group with these rewards, from the training code."""
    policy = a_bandit(*[0.0] * len(rewards))
    of = groups.outcomes(policy).paid(numbers(rewards))
    one = groups.Groups(of, torch.arange(len(rewards))[None], numbers([1.0]))
    return groups.prepared(policy, [one], knobs)["advantage"]


def pairs_and_shaping() -> Iterator[Row]:
    """A1.3 and A1.6: values that can be worked out by hand."""
    pair = numbers([1.0, -1.0])
    for number, (name, knobs, size) in enumerate(
        (
            ("ddof 0: +-1", rules.knobs(scale=rules.group_std()), 1.0),
            ("ddof 1: +-1/sqrt 2", rules.knobs(scale=rules.group_std(ddof=1)), 0.5**0.5),
            ("no scale: +-1/2", rules.knobs(), 0.5),
        ),
        1,
    ):
        yield exact(f"A1.3.{number}", f"G=2, one right: {name}", size * pair, advantages_of([1.0, 0.0], knobs))
    eps = 1e-4
    for number, d in enumerate((0.01, 0.001), 1):
        shaped, shape = [1.0, 1.0, 1.0, 1.0 - d], numbers([1.0, 1.0, 1.0, -3.0])
        full = advantages_of(shaped, rules.knobs(scale=rules.group_std(ddof=1, eps=eps)))
        yield exact(
            f"A1.6.{number}a",
            f"rewards 1,1,1,1-d: the std blows d={d} up to (d/4) / (d/2 + eps)",
            shape * d / 4 / (d / 2 + eps),
            full,
        )
        yield exact(
            f"A1.6.{number}b",
            f"rewards 1,1,1,1-d: no scale keeps d={d} small",
            shape * d / 4,
            advantages_of(shaped, rules.knobs()),
        )


def affine_rewards() -> Iterator[Row]:
    """A1.4: rewards a r + b."""
    a, b, size = 2.5, -0.7, 4
    policy, reference = a_bandit(0.5, 0.0, -0.4), a_bandit(0.0, 0.0, 0.0)
    of = groups.outcomes(policy, is_last_token(1))
    change = partial(reward.affine, scale=a, shift=b)
    cases = (("group std, eps 0: nothing changes", {"scale": rules.group_std()}, 1.0), ("no scale: a times", {}, a))
    for number, (name, rooms, factor) in enumerate(cases, 1):
        plain = groups.expected(policy, of, rules.knobs(**rooms), group_size=size).ascent
        changed = groups.expected(policy, of, rules.knobs(transform=change, **rooms), group_size=size).ascent
        yield exact(f"A1.4.{number}", f"rewards 2.5 r - 0.7, {name}", factor * plain, changed)
    beta, pair = 0.3, {"group_size": size, "reference": reference}
    changed = groups.expected(policy, of, rules.knobs(transform=change), beta=beta, **pair).ascent
    rescaled = groups.expected(policy, of, rules.knobs(), beta=beta / a, **pair).ascent
    yield exact("A1.4.3", "no scale, KL in the loss: a r with beta is a times r with beta/a", a * rescaled, changed)


def loss_values() -> Iterator[Row]:
    """A1.5: what the logged loss is at ratio 1."""
    lengths = (1, 2, 4)
    policy, reference, size, beta = (
        a_bandit(0.5, 0.0, -0.4, lengths=lengths),
        a_bandit(0.0, 0.1, 0.2, lengths=lengths),
        3,
        0.2,
    )
    of = groups.outcomes(policy, is_last_token(1), longest=4)
    every = groups.every_group(policy, of, size)
    each = [every._replace(members=members[None]) for members in every.members]
    zero, kl, by_token, predicted = [], [], [], []
    of_answer = numbers(lengths)
    gap = (of.logp(reference) - of.logp(policy)).detach()
    k3 = torch.expm1(gap) - gap  # only the first token is a choice, so this is the answer's whole k3
    for one in each:
        rewards, n = of.rewards[one.members[0]], of_answer[one.members[0]]
        zero.append(groups.differentiate(policy, [one], rules.knobs()).loss)
        with_kl = groups.differentiate(policy, [one], rules.knobs(), beta=beta, reference=reference)
        kl.append(with_kl.loss - beta * (k3[one.members[0]] / n).mean().item())
        by_token.append(groups.differentiate(policy, [one], rules.knobs(aggregate=rules.token_mean())).loss)
        predicted.append((-((rewards - rewards.mean()) * n).sum() / n.sum()).item())
    yield exact("A1.5a", "sequence mean: the loss is 0 in every group", [0.0] * len(each), zero)
    yield exact("A1.5b", "sequence mean with a KL: the loss is beta * KL", [0.0] * len(each), kl)
    yield exact("A1.5c", "token mean: the loss is -sum A L / sum L", predicted, by_token)


def one_sided_rewards() -> Iterator[Row]:
    """A1.7: only the right, only the wrong, or both, without a baseline."""
    policy, lam = a_bandit(0.5, 0.0, -0.4), 0.1
    of = groups.outcomes(policy, is_last_token(1))
    true = policy_gradient(of.probability(policy), of.rewards)
    cases = (
        ("right answers only (PSR): grad p", reward.psr, 1.0),
        ("wrong answers only (NSR): grad p", reward.nsr, 1.0),
        ("W-REINFORCE, lam 0.1: (1 + lam) grad p", partial(reward.w_reinforce, lam=lam), 1 + lam),
    )
    for number, (name, transform, factor) in enumerate(cases, 1):
        knobs = rules.knobs(baseline=baseline.none, transform=transform)
        yield exact(f"A1.7.{number}", name, factor * true, groups.expected(policy, of, knobs, group_size=2).ascent)


EXACT = (unbiasedness, difficulty, pairs_and_shaping, affine_rewards, loss_values, one_sided_rewards)
