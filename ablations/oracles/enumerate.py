"""Expectations without sampling noise: every group that a small policy can produce, pushed through the code that
trains.

The expected update of one prompt is sum over groups of P(group) * gradient of the loss of an update batch that consists
of that group. Groups are enumerated as multisets (rewards and losses do not know the order of answers, which one oracle
checks), the advantages of all of them are computed in one call, and the probabilities enter as a factor of the weights
(`Expectation`), so that one backward pass through `ablations.grpo.loss` gives the whole expectation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ablations import grpo
from ablations.knobs.call import call
from ablations.policy.tabular import OVER, Tabular
from ablations.rollout import Rollout


class Outcomes(NamedTuple):
    """Everything that can come of one prompt: A answers with their rewards.

    ids (A, T) long; mask (A, T) bool; ended (A,) bool; rewards (A,) float64; share (A,): the probability of this reward
    given the answer, 1 where the reward follows from the answer.
    """

    prompt: int
    ids: Tensor
    mask: Tensor
    ended: Tensor
    rewards: Tensor
    share: Tensor

    def probability(self, policy: Tabular) -> Tensor:
        """(A,) float64, differentiable; sums to 1."""
        return self.logp(policy).exp() * self.share

    def logp(self, policy: Tabular) -> Tensor:
        """Log-probability of the whole answers, (A,) in nats."""
        prompt = torch.full((len(self.ids), 1), self.prompt)
        return policy.token_logp(
            prompt, torch.ones_like(prompt, dtype=torch.bool), self.ids, self.mask, temperature=1.0
        )[0].sum(1)

    def paid(self, rewards: Tensor) -> "Outcomes":
        """The same answers with these rewards, (A,)."""
        return self._replace(rewards=rewards.double())

    def randomly_paid(self, values: Sequence[float], chances: Sequence[float]) -> "Outcomes":
        """Every answer once per value, whatever it says: a reward that knows nothing."""
        times = len(values)
        repeated = [x.repeat_interleave(times, 0) for x in (self.ids, self.mask, self.ended)]
        each = (torch.tensor(x, dtype=torch.float64).repeat(len(self.ids)) for x in (values, chances))
        return Outcomes(self.prompt, *repeated, *each)


def outcomes(
    policy: Tabular, right: Callable[[Tensor], bool] | None = None, prompt: int = 0, longest: int = 1
) -> Outcomes:
    """All answers of at most `longest` tokens. `right`: ids (n,) of an answer -> whether its reward is 1; without it
    every reward is 0.

    An answer that is not over after `longest` tokens is one outcome more, truncated; its reward is 0.
    """
    possible = policy.logits().detach() > -math.inf
    open_, closed = [((), int(policy.start[prompt]))], []
    for _ in range(longest):
        steps = [
            ((*tokens, v), int(policy.after[s, v])) for tokens, s in open_ for v in possible[s].nonzero()[:, 0].tolist()
        ]
        closed += [(tokens, True) for tokens, state in steps if state == OVER]
        open_ = [(tokens, state) for tokens, state in steps if state != OVER]
    every = closed + [(tokens, False) for tokens, _ in open_]
    width = max(len(tokens) for tokens, _ in every)
    ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens, _ in every])
    mask = torch.tensor([[True] * len(tokens) + [False] * (width - len(tokens)) for tokens, _ in every])
    paid = [float(over and right is not None and right(torch.tensor(tokens))) for tokens, over in every]
    ended = torch.tensor([over for _, over in every])
    return Outcomes(
        prompt, ids, mask, ended, torch.tensor(paid, dtype=torch.float64), torch.ones(len(every), dtype=torch.float64)
    )


class Groups(NamedTuple):
    """members (M, G): which outcome each row is; chance (M,): probability of the group, or how often it stands in a
    population."""

    of: Outcomes
    members: Tensor
    chance: Tensor


def every_group(sampler: Tabular, of: Outcomes, group_size: int, ordered: bool = False) -> Groups:
    """All groups of `group_size` answers that `sampler` can draw, with their probabilities.

    Multisets with their multinomial coefficient; `ordered`: all A^G sequences instead.
    """
    size = len(of.ids)
    rows = (
        product(range(size), repeat=group_size) if ordered else combinations_with_replacement(range(size), group_size)
    )
    members = torch.tensor(list(rows))
    counts = torch.nn.functional.one_hot(members, size).sum(1).double()
    ways = torch.ones(len(members), dtype=torch.float64)
    if not ordered:
        ways = (torch.lgamma(torch.tensor(group_size + 1.0).double()) - torch.lgamma(counts + 1).sum(1)).exp()
        ways = ways.round() if group_size < 20 else ways
    with torch.no_grad():
        chance = ways * of.probability(sampler).pow(counts).prod(1)
    return Groups(of, members, chance)


def population(sampler: Tabular, of: Outcomes, size: int) -> Groups:
    """One group of `size` rows that has every outcome exactly as often as it is likely: what a group tends to as G
    grows.

    Raises ValueError unless all probabilities are multiples of 1 / size.
    """
    with torch.no_grad():
        counts = of.probability(sampler) * size
    if (counts - counts.round()).abs().max() > 1e-9 * size:
        raise ValueError(
            f"A population of {size} cannot hold these outcomes exactly: they would be {counts.tolist()} rows."
        )
    members = torch.arange(len(counts)).repeat_interleave(counts.round().long())
    return Groups(of, members[None], torch.ones(1, dtype=torch.float64))


class Expectation:
    """An aggregate that weights every group's own update batch by the group's probability.

    aggregate: any option of that room. chance (M,): by group id 0 .. M-1. Groups stand one after the other and are
    equally large.
    """

    def __init__(self, aggregate: Callable, chance: Tensor | None = None):
        self.aggregate, self.chance = aggregate, chance

    def __call__(self, mask: Tensor, counted: Tensor, group: Tensor) -> Tensor:
        """mask (N, T), counted and group (N,) -> weights (N, T)."""
        groups, size = len(self.chance), len(group) // len(self.chance)
        pattern = torch.cat([mask, counted[:, None]], 1).view(groups, -1)
        distinct, which = torch.unique(pattern, dim=0, return_inverse=True)
        one = torch.zeros(size, dtype=torch.long)
        each = []
        for rows in distinct.view(len(distinct), size, -1):
            values = {"mask": rows[:, :-1], "counted": rows[:, -1], "group": one}
            each.append(call(self.aggregate, values))
        return (torch.stack(each)[which] * self.chance[:, None, None]).flatten(0, 1)


class Measured(NamedTuple):
    """loss: its value. ascent (D,): minus the gradient of the loss by all parameters, which is where training goes.
    batch: as prepared."""

    loss: float
    ascent: Tensor
    batch: dict[str, Any]
    parts: Mapping[str, Tensor]


class _Parties(NamedTuple):
    policy: Tabular
    reference: Tabular | None
    knobs: grpo.Knobs


def tensors(sampler: Tabular, groups: Sequence[Groups], knobs: grpo.Knobs) -> dict[str, Any]:
    """The groups as one rollout batch, as `ablations.rollout.graded` makes it of sampled answers."""
    width = max(each.of.ids.shape[1] for each in groups)
    columns: dict[str, list[Tensor]] = {
        name: [] for name in ("prompt_ids", "ids", "mask", "truncated", "total", "group")
    }
    for each in groups:
        rows = each.members.flatten()
        gap = (0, width - each.of.ids.shape[1])
        first = sum(len(ids) for ids in columns["group"])
        columns["prompt_ids"].append(torch.full((len(rows), 1), each.of.prompt))
        columns["ids"].append(torch.nn.functional.pad(each.of.ids[rows], gap))
        columns["mask"].append(torch.nn.functional.pad(each.of.mask[rows], gap))
        columns["truncated"].append(~each.of.ended[rows])
        columns["total"].append(each.of.rewards[rows])
        columns["group"].append(first + torch.arange(len(each.members)).repeat_interleave(each.members.shape[1]))
    batch: dict[str, Any] = {name: torch.cat(parts) for name, parts in columns.items()}
    batch["prompt_mask"] = torch.ones_like(batch["prompt_ids"], dtype=torch.bool)
    inputs = (batch[name] for name in ("prompt_ids", "prompt_mask", "ids", "mask"))
    with torch.no_grad():
        batch["logp_sampler"], batch["entropies"] = sampler.token_logp(*inputs, temperature=1.0)
    batch["lengths"] = batch["mask"].sum(1)
    batch["parts"], batch["part_weights"] = batch["total"][:, None], torch.ones(1, dtype=torch.float64)
    batch["part_names"] = ["reward"]
    total = grpo.total_rewards(batch["parts"], batch["part_weights"], knobs.transform, batch["truncated"])
    batch["kept"] = call(knobs.keep.rule, {"rewards": total, "group": batch["group"]})
    return batch


def prepared(
    sampler: Tabular, groups: Sequence[Groups], knobs: grpo.Knobs, beta: float = 0.0, reference: Tabular | None = None
) -> dict:
    """The update batch with its advantages."""
    rollout = Rollout(tensors(sampler, groups, knobs), {}, [])
    return grpo.prepare(rollout, _Parties(sampler, reference, knobs), beta, 1.0, False, False, 1_000_000)


def differentiate(
    policy: Tabular,
    groups: Sequence[Groups],
    knobs: grpo.Knobs,
    *,
    beta: float = 0.0,
    reference: Tabular | None = None,
    sampler: Tabular | None = None,
) -> Measured:
    """Loss and ascent direction of one update batch that holds these groups. `sampler` drew them; `policy` itself if
    not given."""
    sampler = sampler or policy
    batch = grpo.select_across(prepared(sampler, groups, knobs, beta, reference), knobs, {})
    weight = grpo.weights(batch["masks"], batch["counted"], batch["group"], knobs)
    inputs = (batch[name] for name in ("prompt_ids", "prompt_mask", "ids", "mask"))
    logp, entropies = policy.token_logp(*inputs, temperature=1.0)
    value, parts = grpo.loss(logp, entropies, batch, knobs, weight, beta)
    gradients = torch.autograd.grad(value, list(policy.parameters()), allow_unused=True, materialize_grads=True)
    return Measured(value.item(), -torch.cat([g.flatten() for g in gradients]), batch, parts)


def expected(
    policy: Tabular,
    of: Sequence[Outcomes] | Outcomes,
    knobs: grpo.Knobs,
    *,
    group_size: int,
    beta: float = 0.0,
    reference: Tabular | None = None,
    sampler: Tabular | None = None,
    ordered: bool = False,
) -> Measured:
    """Expected loss and ascent of an update on one prompt, drawn evenly from those in `of`, over all groups of
    `group_size`."""
    of = [of] if isinstance(of, Outcomes) else of
    groups = [every_group(sampler or policy, each, group_size, ordered) for each in of]
    chance = torch.cat([each.chance for each in groups]) / len(groups)
    return differentiate(policy, groups, expecting(knobs, chance), beta=beta, reference=reference, sampler=sampler)


def expecting(knobs: grpo.Knobs, chance: Tensor | None = None) -> grpo.Knobs:
    """The same knobs, with the groups of a batch weighted by their probabilities."""
    rooms = ("aggregate", "aggregate_kl", "aggregate_entropy")
    return knobs._replace(**{room: Expectation(getattr(knobs, room), chance) for room in rooms})


def gradient(value: Tensor, policy: Tabular) -> Tensor:
    """Derivative of a scalar by all parameters of the policy, (D,)."""
    parts = torch.autograd.grad(value, list(policy.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])
