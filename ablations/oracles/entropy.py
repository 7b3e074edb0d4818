"""A7: entropy, and how many tries a policy needs."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ablations import evaluate
from ablations.knobs import baseline, reward, surrogate
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.oracles.advantage import a_bandit, is_last_token
from ablations.oracles.table import Row, exact, sampled
from ablations.policy.tabular import Bandit, TwoClass
from ablations.tasks.tabular import Table


def entropy_of(policy: Bandit) -> Tensor:
    """Entropy of the choice, as the policy reports it to the loss."""
    one = torch.zeros(1, 1, dtype=torch.long)
    return policy.token_logp(one, one == 0, one, one == 0, temperature=1.0)[1].sum()


def covariance(chance: Tensor, x: Tensor, y: Tensor) -> float:
    return ((chance * x * y).sum() - (chance * x).sum() * (chance * y).sum()).item()


def entropy_speed() -> Iterator[Row]:
    """A7.1: dH/dt = -Cov_pi(log pi, d logits / dt)."""
    policy, size = a_bandit(0.8, 0.1, -0.5, 0.0), 3
    of = groups.outcomes(policy, is_last_token(0))
    pi = of.probability(policy).detach()
    up = groups.gradient(entropy_of(policy), policy)
    measured = groups.expected(policy, of, rules.knobs(), group_size=size).ascent
    advantage = (size - 1) / size * (of.rewards - (pi * of.rewards).sum())
    vanilla = -covariance(pi, pi.log(), pi * advantage)
    yield exact(
        "A7.1a", "policy gradient: dH/dt = -Cov(log pi, pi A), the code's ascent", vanilla, (up @ measured).item()
    )
    yield exact(
        "A7.1b",
        "natural gradient, d logits = A: dH/dt = -Cov(log pi, A)",
        -covariance(pi, pi.log(), advantage),
        (up @ advantage).item(),
    )


def diffusion() -> Iterator[Row]:
    """A7.2: rewards that mean nothing move the policy nowhere on average, and every move costs entropy.

    From the uniform policy on K arms one step of size eta changes the logits by eta g, and H by -eta^2/2 Var(g) to
    second order; over all groups of G answers and coin rewards, E Var(g) = q (1-q) (G-1)/G^2 (1 - 1/K) / K.
    """
    arms, size, q, step = 3, 2, 0.3, 1e-3
    policy = a_bandit(*[0.0] * arms)
    of = groups.outcomes(policy).randomly_paid([1.0, 0.0], [q, 1 - q])
    every = groups.every_group(policy, of, size)
    change = torch.zeros(len(every.members), dtype=torch.float64)
    for i, members in enumerate(every.members):
        ascent = groups.differentiate(policy, [every._replace(members=members[None])], rules.knobs()).ascent
        moved = a_bandit(*(step * ascent).tolist())
        change[i] = entropy_of(moved).item() - math.log(arms)
    expected = (every.chance * change).sum().item() / step**2
    predicted = -q * (1 - q) * (size - 1) / size**2 * (1 - 1 / arms) / arms / 2
    yield exact(
        "A7.2",
        "coin rewards, no clip: E[dH] = -eta^2/2 E Var(g) < 0",
        predicted,
        expected,
        1e-5,
        "next order in a step of 1e-3",
    )


def several_tries() -> Iterator[Row]:
    """A7.3: pass@k and its gradient."""
    n, k, p = 7, 3, 0.3
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(chance * evaluate.pass_at_k(n, c, k) for c, chance in enumerate(chances))
    yield exact(
        "A7.3a", "the estimator 1 - C(n-c,k)/C(n,k) is unbiased for 1 - (1-p)^k, n=7, k=3", 1 - (1 - p) ** k, mean
    )
    size = 4
    rates = (0.05, 0.4, 0.8)
    predicted, measured = [], []
    for p in rates:
        policy = TwoClass([p])
        of = groups.outcomes(policy, is_last_token(1))
        # Of a group, only the best answer and only if it alone is right: the gradient of the best of G, over G.
        knobs = rules.knobs(baseline=baseline.best_minus_second, aggregate=rules.sequence_sum())
        measured.append(size * groups.expected(policy, of, knobs, group_size=size).ascent.item())
        predicted.append(size * (1 - p) ** (size - 1) * p * (1 - p))
    yield exact(
        "A7.3b",
        f"best minus second, times G: grad pass@G = G (1-p)^(G-1) grad p, G={size}",
        numbers(predicted),
        measured,
    )


EXACT = (entropy_speed, diffusion, several_tries)


# --- as runs ---------------------------------------------------------------------------------------------------------


def diffusion_trained() -> Iterator[Row]:
    """A7.2 over 40 sampled updates of the uniform policy on 5 arms, coin rewards, no clip; 64 prompts side by side as
    64 runs.

    Near the uniform policy the moves of different updates add up in variance: dH = -steps eta^2/2 E Var(g), with the E
    Var(g) above.
    """
    arms, size, q, eta, steps, copies = 5, 4, 0.5, 0.2, 40, 64
    policy = Bandit(torch.zeros(copies, arms))
    coin = {"coin": {"part": partial(reward.random, probability=q), "weight": 1.0}}
    knobs = rules.knobs(reward=coin, surrogate=surrogate.unclipped_ratio)
    collect = runs.sampling(Table(copies, ["a"]), prompts=copies, group_size=size)
    runs.finish(runs.trained(policy, knobs, collect, steps=steps, lr=eta * copies, seed=2, evaluate_every=0))
    final = policy.arms.detach().softmax(1)
    change = (-(final * final.log()).sum(1) - math.log(arms)).tolist()
    due = -steps * eta**2 * q * (1 - q) * (size - 1) / size**2 * (1 - 1 / arms) / arms / 2
    yield sampled("A7.2r", "coin rewards, no clip, 40 updates: entropy falls by diffusion alone", due, change)
    yield sampled(
        "A7.2s",
        "coin rewards, no clip: the probability of an arm does not move on average",
        1 / arms,
        final[:, 0].tolist(),
    )


def same_against_same() -> Iterator[Row]:
    """A7.5: one configuration against itself, 40 pairs of runs with different draws."""
    pairs, steps = 40, 25
    policy = TwoClass([0.2] * (2 * pairs))
    collect = runs.sampling(Table(2 * pairs, ["b"]), prompts=2 * pairs, group_size=4)
    runs.finish(runs.trained(policy, rules.knobs(), collect, steps=steps, lr=2 * pairs, seed=3, evaluate_every=0))
    one, other = policy.logit.detach().sigmoid().view(2, pairs)
    yield sampled("A7.5a", "A/A: difference in final success rate, 40 pairs", 0.0, (one - other).tolist())
    better = ((one > other).double() + (one == other).double() / 2).tolist()
    yield sampled("A7.5b", "A/A: probability that one is better than the other", 0.5, better, 0.5)


TRAINED = (diffusion_trained, same_against_same)
