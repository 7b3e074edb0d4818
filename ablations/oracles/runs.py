"""Training a table with the loop that trains language models: sampled, or with every group in its exact share."""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ablations import grpo, rollout
from ablations.oracles import enumerate as groups
from ablations.policy.tabular import Tabular
from ablations.rollout import Rollout
from ablations.state import State, frozen


def trained(
    policy: Tabular,
    knobs: grpo.Knobs,
    collect: Callable[[State], Rollout],
    *,
    steps: int,
    lr: float,
    seed: int = 0,
    beta: float = 0.0,
    optimizer: Callable = torch.optim.SGD,
    reference: Tabular | None = None,
    evaluate: Callable[[Any], dict[str, float]] = lambda policy: {},
    **settings: Any,
) -> Iterator[dict[str, float]]:
    """Rows of `ablations.grpo.train` while it trains `policy` in place; one row per rollout, then whatever `evaluate`
    says.

    Constant learning rate, one update per rollout, the whole batch in one pass, nothing clipped; `settings` replaces
    any of grpo.train's.
    """
    descent = optimizer(policy.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(descent, lambda step: 1.0)
    state = State(policy, reference or frozen(policy), descent, schedule, knobs, seed)
    plain = {
        "temperature": 1.0,
        "epochs": 1,
        "minibatches": 1,
        "tokens_per_micro_batch": 1_000_000,
        "clip": functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=float("inf")),
        "recompute_logp": False,
        "evaluate_every": 1,
        "measure_kl_every": 0,
        "sync_every": 0,
        "sync_mix": 1.0,
    }
    yield from grpo.train(state, collect, evaluate, steps=steps, beta=beta, **(plain | settings))


def sampling(task, *, prompts: int, group_size: int, max_new_tokens: int = 1) -> Callable[[State], Rollout]:
    """Rollouts as any run has them."""
    shape = {"prompts": prompts, "group_size": group_size, "max_new_tokens": max_new_tokens, "temperature": 1.0}
    return lambda state: rollout.collect(state, task, **shape)


def enumerating(of: Sequence[groups.Outcomes], group_size: int) -> Callable[[State], Rollout]:
    """Rollouts that hold every group of every prompt; the state's knobs are those of `groups.expecting`, told the
    chances each time.

    An update is then the expectation of the update on one sampled prompt.
    """

    def collect(state: State) -> Rollout:
        every = [groups.every_group(state.policy, each, group_size) for each in of]
        chance = torch.cat([each.chance for each in every]) / len(every)
        for aggregate in (state.knobs.aggregate, state.knobs.aggregate_kl, state.knobs.aggregate_entropy):
            aggregate.chance = chance
        return Rollout(groups.tensors(state.policy, every, state.knobs), {}, [])

    return collect


def finish(rows: Iterator[Any]) -> Any:
    """Run to the end -> what came after the last update."""
    return collections.deque(rows, maxlen=1)[0]
