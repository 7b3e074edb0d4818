"""The objective of every preset, written out with loops over answers and tokens; none of it calls the package.

A formula takes the answers of one rollout and returns the loss as a scalar that can be differentiated. `right` is the
reward for being correct as the paper has it before its own conventions: 1 or 0, 0 where the answer was cut off; some
tests put other real numbers there.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

LENGTH = 36  # tokens, the longest answer allowed
FORMULAS: dict[str, Callable] = {}


class Answer(NamedTuple):
    group: int
    right: float
    formed: float
    truncated: bool
    new: list  # log-probabilities now, of every token: scalars with a gradient
    old: list[float]
    ref: list[float]
    entropy: list

    @property
    def length(self) -> int:
        return len(self.old)


Answers = Sequence[Answer]


def published(formula: Callable) -> Callable:
    FORMULAS[formula.__name__] = formula
    return formula


def fixed(x) -> float:
    """The number without its gradient."""
    return float(x.detach()) if isinstance(x, torch.Tensor) else float(x)


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs)


def spread(xs: Sequence[float], ddof: int) -> float:
    return math.sqrt(math.fsum((x - mean(xs)) ** 2 for x in xs) / (len(xs) - ddof))


def peers(xs: Sequence[float], answers: Answers, i: int) -> list[float]:
    """The numbers of the answers to the same prompt, the answer's own included."""
    return [x for x, other in zip(xs, answers, strict=True) if other.group == answers[i].group]


def right(answers: Answers) -> list[float]:
    return [a.right for a in answers]


def centred(r: Sequence[float], answers: Answers) -> list[float]:
    return [x - mean(peers(r, answers, i)) if differ(r, answers, i) else 0.0 for i, x in enumerate(r)]


def standardised(r: Sequence[float], answers: Answers, ddof: int, eps: float) -> list[float]:
    c = centred(r, answers)
    return [x / (spread(peers(r, answers, i), ddof) + eps) for i, x in enumerate(c)]


def leave_one_out(r: Sequence[float], answers: Answers) -> list[float]:
    others = [(math.fsum(peers(r, answers, i)) - x) / (len(peers(r, answers, i)) - 1) for i, x in enumerate(r)]
    return [x - o for x, o in zip(r, others, strict=True)]


def differ(r: Sequence[float], answers: Answers, i: int) -> bool:
    return len(set(peers(r, answers, i))) > 1


def informative(r: Sequence[float], answers: Answers) -> list[int]:
    """The answers to prompts of which not all answers have the same reward."""
    return [i for i in range(len(answers)) if differ(r, answers, i)]


def penalty_to_go(answers: Answers, beta: float) -> list[list[float]]:
    """beta * sum_(u >= t) (log pi_old - log pi_ref) for every token."""
    return [[beta * math.fsum(o - f for o, f in zip(a.old[t:], a.ref[t:], strict=True)) for t in range(a.length)]
            for a in answers]  # fmt: skip


def whitened(A: list[list[float]]) -> list[list[float]]:
    every = [x for row in A for x in row]
    centre, size = mean(every), math.sqrt(spread(every, 1) ** 2 + 1e-8)
    return [[(x - centre) / size for x in row] for row in A]


def overlong(answers: Answers) -> list[float]:
    """DAPO's rewards: 1 or -1, less a ramp over the last 7 tokens of the allowed length."""
    return [2 * a.right - 1 - min(max(a.length - (LENGTH - 7), 0) / 7, 1) for a in answers]


# --- token terms ------------------------------------------------------------------------------------------------------


def rho(a: Answer, t: int):
    return torch.exp(a.new[t] - a.old[t])


def log_rhos(a: Answer):
    return sum(a.new[t] - a.old[t] for t in range(a.length))


def clipped(ratio, advantage: float, low: float, high: float):
    return -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def k3(a: Answer, t: int):
    d = a.ref[t] - a.new[t]
    return torch.exp(d) - d - 1


# --- means ------------------------------------------------------------------------------------------------------------


def over_answers(answers: Answers, term: Callable, rows: Sequence[int] | None = None):
    """Mean over each answer's tokens, then over the answers."""
    rows = range(len(answers)) if rows is None else rows
    return sum(sum(term(i, t) for t in range(answers[i].length)) / answers[i].length for i in rows) / len(rows)


def over_tokens(answers: Answers, term: Callable, rows: Sequence[int] | None = None):
    rows = range(len(answers)) if rows is None else rows
    return sum(term(i, t) for i in rows for t in range(answers[i].length)) / sum(answers[i].length for i in rows)


def whole_answers(answers: Answers, term: Callable):
    """Sum over each answer's tokens, mean over the answers."""
    return sum(term(i, t) for i in range(len(answers)) for t in range(answers[i].length)) / len(answers)


# --- the algorithms ---------------------------------------------------------------------------------------------------


@published
def grpo(answers):
    A = standardised(right(answers), answers, 0, 1e-6)
    return over_answers(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.2) + 0.04 * k3(answers[i], t))


FORMULAS["deepseek_math"] = grpo


@published
def deepseek_r1(answers):
    A = standardised([a.right + a.formed for a in answers], answers, 0, 1e-6)
    return over_answers(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 10, 10) + 0.001 * k3(answers[i], t))


@published
def dr_grpo(answers):
    A = centred(right(answers), answers)
    return whole_answers(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.2)) / LENGTH


@published
def dapo(answers):
    r = overlong(answers)
    A, rows = standardised(r, answers, 0, 1e-6), informative(r, answers)
    return over_tokens(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.28), rows)


@published
def bnpo(answers):
    A = standardised(right(answers), answers, 1, 1e-4)
    return over_tokens(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.2))


@published
def rloo(answers):
    kl = [row[0] for row in penalty_to_go(answers, 0.03)]
    A = leave_one_out([a.right - k for a, k in zip(answers, kl, strict=True)], answers)
    return whole_answers(answers, lambda i, t: -A[i] * answers[i].new[t])


@published
def reinforce(answers):
    b = 0.1 * mean(right(answers))  # the running mean after one rollout with the same rewards, started at 0
    return whole_answers(answers, lambda i, t: -(answers[i].right - b) * answers[i].new[t])


def _plus_plus(answers, A, beta):
    A = whitened([[a - kl for kl in row] for a, row in zip(A, penalty_to_go(answers, beta), strict=True)])
    return over_tokens(answers, lambda i, t: clipped(rho(answers[i], t), A[i][t], 0.2, 0.2))


@published
def reinforce_pp(answers):
    return _plus_plus(answers, right(answers), 0.001)


@published
def reinforce_pp_baseline(answers):
    return _plus_plus(answers, centred(right(answers), answers), 0.0)


@published
def rlvr_tulu3(answers):
    r = [-10.0 if a.truncated else 10 * a.right for a in answers]
    return _plus_plus(answers, leave_one_out(r, answers), 0.05)


@published
def lite_ppo(answers):
    r = right(answers)
    A = [c / (spread(r, 1) + 1e-4) for c in centred(r, answers)]
    return over_tokens(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.2))


def _sequence_losses(answers, low, high):
    A = standardised(right(answers), answers, 0, 1e-6)
    return [clipped(torch.exp(log_rhos(a) / a.length), A[i], low, high) for i, a in enumerate(answers)]


@published
def gspo(answers):
    return sum(_sequence_losses(answers, 3e-4, 4e-4)) / len(answers)


@published
def luspo(answers):
    losses = _sequence_losses(answers, 2e-3, 2.5e-3)
    return sum(a.length * loss for a, loss in zip(answers, losses, strict=True)) / len(answers)


def _weighted(answers, A, low, high):
    """-sg[clip(rho)] A log pi of a token."""
    return lambda i, t: -min(max(fixed(rho(answers[i], t)), low), high) * A[i] * answers[i].new[t]


@published
def cispo(answers):
    r = overlong(answers)
    A = standardised(r, answers, 0, 1e-6)
    return over_tokens(answers, _weighted(answers, A, 0, 5.0), informative(r, answers))


@published
def cispo_trl(answers):
    A = standardised(right(answers), answers, 1, 1e-4)
    return over_tokens(answers, _weighted(answers, A, 0, 0.2))


@published
def cispo_verl(answers):
    A = standardised(right(answers), answers, 1, 1e-6)
    return over_tokens(answers, _weighted(answers, A, 0.8, 1.2))


@published
def cispo_open_instruct(answers):
    r = right(answers)
    policy, rows = _weighted(answers, centred(r, answers), 0, 1.272), informative(r, answers)
    return over_tokens(answers, lambda i, t: policy(i, t) + 0.05 * k3(answers[i], t), rows)


@published
def cispo_roll(answers):
    A = standardised(right(answers), answers, 1, 1e-6)
    return over_answers(answers, _weighted(answers, A, 0.9, 1.1))


@published
def scale_rl(answers):
    r = [2 * x - 1 for x in right(answers)]
    c, rows = centred(r, answers), informative(r, answers)
    term = _weighted(answers, [x / (spread(c, 1) + 1e-6) for x in c], 0, 5.0)
    prompts = sorted({answers[i].group for i in rows})
    return sum(over_tokens(answers, term, [i for i in rows if answers[i].group == g]) for g in prompts) / len(prompts)


@published
def gmpo(answers):
    A, total = standardised(right(answers), answers, 0, 1e-6), 0.0
    for i, a in enumerate(answers):
        logs = [a.new[t] - a.old[t] for t in range(a.length)]
        cut = [min(x, 0.4) if A[i] > 0 else max(x, -0.4) for x in logs]
        total = total - A[i] * torch.exp(torch.as_tensor(sum(cut) / a.length, dtype=torch.float64))
    return total / len(answers)


@published
def sapo(answers):
    A = standardised(right(answers), answers, 0, 1e-6)

    def gate(i, t):
        tau = 1.0 if A[i] > 0 else 1.05
        return -4 / tau * torch.sigmoid(tau * (rho(answers[i], t) - 1)) * A[i]

    return over_answers(answers, gate)


@published
def vespo(answers):
    A = standardised(right(answers), answers, 1, 1e-4)
    weights = []
    for i, a in enumerate(answers):
        k, rate = (2, 3) if A[i] >= 0 else (3, 2)
        w = math.exp(fixed(log_rhos(a)))
        weights.append(math.exp(rate) * w**k * math.exp(-rate * w))
    return over_tokens(answers, lambda i, t: -weights[i] * A[i] * answers[i].new[t])


@published
def maxrl(answers):
    r = right(answers)
    means = [mean(peers(r, answers, i)) for i in range(len(r))]
    A = [c / m if m > 0 else 0.0 for c, m in zip(centred(r, answers), means, strict=True)]
    return over_tokens(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.2))


@published
def opo(answers):
    r, n, A = right(answers), [a.length for a in answers], []
    for i, x in enumerate(r):
        weighted = math.fsum(peers([a * b for a, b in zip(r, n, strict=True)], answers, i))
        A.append(x - weighted / sum(peers(n, answers, i)) if differ(r, answers, i) else 0.0)
    return over_tokens(answers, lambda i, t: -A[i] * answers[i].new[t])


@published
def gpg(answers):
    r = right(answers)
    scale = len(r) / sum(x != 0 for x in r)
    A = [scale * c for c in centred(r, answers)]
    return over_tokens(answers, lambda i, t: -A[i] * answers[i].new[t])


def _signed(answers, A):
    return over_tokens(answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.2))


@published
def psr(answers):
    return _signed(answers, right(answers))


@published
def nsr(answers):
    return _signed(answers, [x - 1 for x in right(answers)])


@published
def w_reinforce(answers):
    return _signed(answers, [0.1 * x - (1 - x) for x in right(answers)])


@published
def kimi_k15(answers):
    A = centred(right(answers), answers)
    return whole_answers(
        answers,
        lambda i, t: -A[i] * answers[i].new[t] + 0.1 / 2 * (answers[i].new[t] - answers[i].old[t]) ** 2,
    )


@published
def topr(answers):
    r = [2 * x - 1 for x in right(answers)]
    weights = [1.0 if x > 0 else min(math.exp(fixed(log_rhos(a))), 1.0) for x, a in zip(r, answers, strict=True)]
    return whole_answers(answers, lambda i, t: -weights[i] * r[i] * answers[i].new[t])


@published
def skywork_or1(answers):
    """After two rollouts with an entropy below the target: the coefficient has been raised once, from 0 to 0.005."""
    r = right(answers)
    A, rows = standardised(r, answers, 0, 1e-6), informative(r, answers)
    return over_tokens(
        answers, lambda i, t: clipped(rho(answers[i], t), A[i], 0.2, 0.2) - 0.005 * answers[i].entropy[t], rows
    )
