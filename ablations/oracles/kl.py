"""A5: what each KL estimator, in each place, pulls towards; and where training then comes to rest.

RKL = KL(pi || ref), FKL = KL(ref || pi). With rewards of 0 and beta 1 the expected ascent is minus the expected
gradient of the penalty.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ablations.knobs import baseline, surrogate
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules
from ablations.oracles.advantage import a_bandit, is_last_token
from ablations.oracles.table import Row, exact
from ablations.policy.tabular import TwoClass, TwoTokens

POLICY, REFERENCE = (0.9, -0.2, 0.1), (-0.3, 0.4, 0.0)


def rkl(policy: Tensor, reference: Tensor) -> Tensor:
    """Gradient of KL(pi || ref) by the logits of pi: pi_k (d_k - sum_j pi_j d_j), d = log pi - log ref."""
    gap = policy.log() - reference.log()
    return policy * (gap - (policy * gap).sum())


def fkl(policy: Tensor, reference: Tensor) -> Tensor:
    """Gradient of KL(ref || pi) by the logits of pi: pi_k - ref_k."""
    return policy - reference


def squared(policy: Tensor, reference: Tensor) -> Tensor:
    """Gradient of E[k2] = sum pi d^2 / 2 by the logits of pi: the score part and the part of the estimate itself."""
    gap = policy.log() - reference.log()
    half = gap**2 / 2
    return policy * (half - (policy * half).sum()) + rkl(policy, reference)


PLACES = {
    "k1 in the loss: 0": (lambda p, q: torch.zeros_like(p), "k1", {}, "in_loss"),
    "k2 in the loss: grad RKL": (rkl, "k2", {}, "in_loss"),
    "k3 in the loss: grad FKL": (fkl, "k3", {}, "in_loss"),
    "k1 in the reward: grad RKL": (rkl, "k1", {}, "in_reward"),
    "k2 in the reward: grad E[k2] - grad RKL": (lambda p, q: squared(p, q) - rkl(p, q), "k2", {}, "in_reward"),
    "k3 in the reward: grad RKL - grad FKL": (lambda p, q: rkl(p, q) - fkl(p, q), "k3", {}, "in_reward"),
    "ratio * k3 in the loss: grad RKL": (rkl, "ratio_k3", {"attached": True}, "in_loss"),
    "ratio * k3, ratio detached: grad FKL": (fkl, "ratio_k3", {"attached": False}, "in_loss"),
    "ratio * k1 in the loss: grad RKL": (rkl, "ratio_k1", {"attached": True}, "in_loss"),
    "k3's value with k2's gradient: grad RKL": (rkl, "k3_value_k2_gradient", {}, "in_loss"),
}


def pull(
    policy, of, estimator: str, place: str, reference, sampler=None, beta: float = 1.0, **settings
) -> groups.Measured:
    """Loss and ascent of the penalty alone: rewards 0, no baseline, one answer at a time, no clip."""
    knobs = rules.knobs(
        baseline=baseline.none,
        surrogate=surrogate.unclipped_ratio,
        kl=rules.estimator(estimator, **settings),
        placement=getattr(rules, place)(),
        aggregate=rules.sequence_sum(),
    )
    return groups.expected(policy, of, knobs, group_size=1, beta=beta, reference=reference, sampler=sampler)


def placements() -> Iterator[Row]:
    """A5, the table of estimator and place, for a single choice."""
    policy, reference = a_bandit(*POLICY), a_bandit(*REFERENCE)
    of = groups.outcomes(policy)
    p, q = of.probability(policy).detach(), of.probability(reference).detach()
    for number, (what, (theory, name, settings, place)) in enumerate(PLACES.items(), 1):
        yield exact(f"A5.1.{number}", what, -theory(p, q), pull(policy, of, name, place, reference, **settings).ascent)


def old_samples() -> Iterator[Row]:
    """A5, when another policy drew the answers."""
    policy, reference, sampler = a_bandit(*POLICY), a_bandit(*REFERENCE), a_bandit(0.0, 0.5, -0.5)
    of = groups.outcomes(policy)
    p, q, old = (of.probability(each).detach() for each in (policy, reference, sampler))
    attached = pull(policy, of, "ratio_k3", "in_loss", reference, sampler, attached=True).ascent
    yield exact("A5.1.11", "ratio * k3, samples of another policy: grad RKL", -rkl(p, q), attached)
    plain = pull(policy, of, "k3", "in_loss", reference, sampler).ascent
    stale = (old * (1 - q / p)) - p * (old * (1 - q / p)).sum()
    yield exact(
        "A5.1.12",
        "k3 without the ratio, samples of another policy: E_old[(1 - ref/pi) s], no divergence's gradient",
        -stale,
        plain,
    )


def values() -> Iterator[Row]:
    """A5, the estimates as numbers."""
    policy, reference = a_bandit(*POLICY), a_bandit(*REFERENCE)
    of = groups.outcomes(policy)
    p, q = of.probability(policy).detach(), of.probability(reference).detach()
    gap = p.log() - q.log()
    true = (p * gap).sum().item()
    for number, name in enumerate(("k1", "k3", "k3_value_k2_gradient"), 13):
        yield exact(
            f"A5.1.{number}", f"E[{name}] = KL(pi || ref)", true, pull(policy, of, name, "in_loss", reference).loss
        )
    yield exact(
        "A5.1.16",
        "E[k2] = E[d^2]/2, which is not the KL",
        (p * gap**2 / 2).sum(),
        pull(policy, of, "k2", "in_loss", reference).loss,
    )


def whole_answers() -> Iterator[Row]:
    """A5.2: answers of two tokens, where a token's choice also changes the KL of what follows."""
    first, second = numbers([0.5, -0.4]), numbers([[0.2, -0.2], [0.9, -0.8]])
    policy, reference = TwoTokens(first, second), TwoTokens(numbers([0.0, 0.3]), numbers([[0.0, 0.1], [-0.2, 0.4]]))
    of = groups.outcomes(policy, longest=2)
    whole = whole_kl(policy, reference)
    for number, place in enumerate(("in_reward", "to_go"), 1):
        measured = pull(policy, of, "k1", place, reference).ascent
        yield exact(
            f"A5.2.{number}", f"k1, {place.replace('_', ' ')}: grad of the whole answer's RKL", -whole, measured
        )
    stepwise = stepwise_kl(policy, reference)
    measured = pull(policy, of, "k2", "in_loss", reference).ascent
    yield exact("A5.2.3", "k2 in the loss: the KL of each step with its prefix held fixed", -stepwise, measured)
    yield exact("A5.2.4", "that is right for the second token's parameters", -whole[2:], measured[2:])
    p = policy.first.detach().softmax(0)
    log_p, log_q = policy.second.detach().log_softmax(1), reference.second.detach().log_softmax(1)
    following = (log_p.exp() * (log_p - log_q)).sum(1)
    missed = p * (following - (p * following).sum())
    yield exact(
        "A5.2.5",
        "what it misses is the first token's effect on the KL of the second",
        -missed,
        -whole[:2] - measured[:2],
    )


def whole_kl(policy: TwoTokens, reference: TwoTokens) -> Tensor:
    """Gradient of KL(pi || ref) over whole answers, by differentiating its sum over answers."""
    first, first_ref = policy.first.log_softmax(0), reference.first.log_softmax(0).detach()
    second, second_ref = policy.second.log_softmax(1), reference.second.log_softmax(1).detach()
    joint, joint_ref = first[:, None] + second, first_ref[:, None] + second_ref
    return groups.gradient((joint.exp() * (joint - joint_ref)).sum(), policy)


def stepwise_kl(policy: TwoTokens, reference: TwoTokens) -> Tensor:
    """Gradient of sum_t E[KL of step t], the distribution of prefixes held fixed."""
    first, first_ref = policy.first.log_softmax(0), reference.first.log_softmax(0).detach()
    second, second_ref = policy.second.log_softmax(1), reference.second.log_softmax(1).detach()
    later = (first.exp().detach()[:, None] * second.exp() * (second - second_ref)).sum()
    return groups.gradient((first.exp() * (first - first_ref)).sum() + later, policy)


def resting_points(p0: float, beta: float, group_size: int) -> dict[str, tuple[float, str, str]]:
    """A5.3: where two classes come to rest -> {what: (p*, estimator, place)}.

    The group's own mean as baseline makes the reward's pull (G-1)/G as strong, so a KL in the loss acts like beta
    G/(G-1); in the reward it goes through the same baseline, and beta stays beta.
    """
    in_loss = beta * group_size / (group_size - 1)
    start = math.log(p0 / (1 - p0))

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    fkl_point = ((1 - in_loss) + math.sqrt((1 - in_loss) ** 2 + 4 * in_loss * p0)) / 2
    return {
        "k2 in the loss: logit p* = logit p0 + 1/b": (sigmoid(start + 1 / in_loss), "k2", "in_loss"),
        "k1 in the reward: logit p* = logit p0 + 1/beta": (sigmoid(start + 1 / beta), "k1", "in_reward"),
        "k3 in the loss: p* = (1-b + sqrt((1-b)^2 + 4 b p0))/2": (fkl_point, "k3", "in_loss"),
    }


def at_rest() -> Iterator[Row]:
    """A5.3: the expected ascent is 0 at the predicted points (trained runs go there from the start:
    `ablations.oracles.dynamics`)."""
    size, p0, number = 3, 0.1, 0
    for beta in (0.2, 1.0):
        for what, (point, name, place) in resting_points(p0, beta, size).items():
            number += 1
            knobs = rules.knobs(kl=rules.estimator(name), placement=getattr(rules, place)())
            yield exact(
                f"A5.3.{number}",
                f"no drift at p* = {point:.4f}; {what}, beta {beta}",
                0.0,
                drift(point, p0, knobs, size, beta),
            )
    at_reward = resting_points(p0, 1.0, size)["k1 in the reward: logit p* = logit p0 + 1/beta"][0]
    # Right and wrong answers are worth the same there, up to rounding, which a std without eps would blow up to size 1.
    knobs = rules.knobs(kl=rules.estimator("k1"), placement=rules.in_reward(), scale=rules.group_std(eps=1e-6))
    yield exact(
        "A5.3.7",
        "group std (eps 1e-6) does not move the rest of k1 in the reward",
        0.0,
        drift(at_reward, p0, knobs, size, 1.0),
    )
    knobs = rules.knobs(kl=rules.estimator("k1"))
    free = (size - 1) / size * 0.9 * 0.1
    yield exact(
        "A5.3.8",
        "k1 in the loss anchors nothing: at p=.9, beta=1 the drift is (G-1)/G p (1-p)",
        free,
        drift(0.9, p0, knobs, size, 1.0),
    )


def drift(p: float, p0: float, knobs, size: int, beta: float) -> float:
    policy = TwoClass([p])
    of = groups.outcomes(policy, is_last_token(1))
    return groups.expected(policy, of, knobs, group_size=size, beta=beta, reference=TwoClass([p0])).ascent.item()


def recursion() -> Iterator[Row]:
    """A5.4: rounds of maximising E[A] - beta KL exactly, with the advantages of the round before; G -> infinity.

    The round's objective has no drift at the predicted p_n. Samples are those of the policy of round n-1, held in a
    population.
    """
    p0, beta = 0.25, 0.7
    start = math.log(p0 / (1 - p0))

    def spread(p: float) -> float:
        return math.sqrt(p * (1 - p))

    cases: list[tuple[str, Callable[[float], float], dict]] = [
        (
            "group std: logit p_n = logit p0 + 1/(b sqrt(p(1-p)))",
            lambda p: start + 1 / (beta * spread(p)),
            {"scale": rules.group_std()},
        ),
        ("no scale: logit p_n = logit p0 + 1/b", lambda p: start + 1 / beta, {}),
        (
            "KL to the round before: logit p_n = logit p + 1/(b sqrt(p(1-p)))",
            lambda p: math.log(p / (1 - p)) + 1 / (beta * spread(p)),
            {"scale": rules.group_std(), "placement": rules.to_old()},
        ),
    ]
    for number, (what, theory, rooms) in enumerate(cases, 1):
        found = []
        for before in (0.125, 0.25, 0.75):
            sampler, policy = TwoClass([before]), TwoClass([0.5])
            with torch.no_grad():
                policy.logit.fill_(theory(before))
            of = groups.outcomes(sampler, is_last_token(1))
            knobs = rules.knobs(
                surrogate=surrogate.unclipped_ratio, kl=rules.estimator("ratio_k3", attached=True), **rooms
            )
            crowd = groups.population(sampler, of, 8)
            found.append(
                groups.differentiate(
                    policy, [crowd], knobs, beta=beta, reference=TwoClass([p0]), sampler=sampler
                ).ascent.item()
            )
        yield exact(f"A5.4.{number}", f"no drift at p_n; {what}", [0.0] * 3, found)


EXACT = (placements, old_samples, values, whole_answers, at_rest, recursion)
