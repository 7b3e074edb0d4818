"""Group relative policy optimisation, read from top to bottom.

    sample G answers to each prompt -> grade -> reward (N,)
    -> advantage: reward minus a baseline, over a scale, spread over the tokens (N, T)
    -> loss: sum of weights * token terms (policy, KL, entropy) -> optimiser step

Every design choice is a function in `Knobs`; nothing here branches on the name of one. What is deliberately not here:
a value model, token-level rewards learned by a model, and truncated (top-p, top-k) sampling, under which old and new
log-probabilities would not be of the same distribution.

Sources: Shao et al. 2024 (arXiv:2402.03300, eq. 3) for the objective; Liu et al. 2025 (arXiv:2503.20783) for what its
denominators do.
"""

import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ablations import measure
from ablations.knobs.call import call
from ablations.knobs.combine import weighted_sum
from ablations.knobs.kl import Placement, kl_to_go, sequence_kl
from ablations.knobs.tokens import Masks
from ablations.state import State, synchronise


class Knobs(NamedTuple):
    """One option per room. Functions take the tensors that their parameters name (see `ablations.knobs.call`)."""

    reward: Mapping[str, Mapping]  # name -> {part: function, weight: float}
    transform: Callable
    keep: Any  # ablations.knobs.keep.Keep
    combine: Callable
    baseline: Callable
    scale: Callable
    credit: Callable
    whiten: Callable
    tokens: Mapping[str, Callable]  # applied in order
    ratio: Callable
    surrogate: Callable
    correction: Callable
    kl: Callable
    placement: Placement
    aggregate: Callable
    aggregate_kl: Callable
    aggregate_entropy: Callable
    entropy: Any  # an object with .coefficient and .update(measured)


PER_BATCH = ("part_weights", "part_names")  # entries of a batch that are not one per row


class Weights(NamedTuple):
    """The factor of every token in the three terms of the loss, each (N, T) float64. All denominators are in here."""

    policy: Tensor
    kl: Tensor
    entropy: Tensor


class Diverged(RuntimeError):
    """A reward, the loss or the gradient is no finite number; carries the update batch in `.batch` for inspection."""

    def __init__(self, message: str, batch: Mapping[str, Any]):
        super().__init__(message)
        self.batch = batch


# --- the objective, as pure functions of tensors
# --------------------------------------------------------------------------------


def total_rewards(parts: Tensor, part_weights: Tensor, transform: Callable, truncated: Tensor) -> Tensor:
    """transform(sum_k w_k parts_k): (N, K), (K,) -> (N,) float64; NaN where a part that counts is unscored."""
    return call(transform, {"rewards": weighted_sum(parts, part_weights), "truncated": truncated})


def advantages(batch: Mapping[str, Any], knobs: Knobs, beta: float) -> dict[str, Tensor]:
    """Graded answers to token advantages, with everything that happens on the way.

    batch: parts (N, K), part_weights (K,), group (N,), lengths (N,), truncated (N,), mask (N, T); logp_old and
    logp_ref (N, T) in nats where a KL enters here; step_ends, step_rewards for process credit.
    -> rewards (N,) as the advantage used them (KL penalty included), advantage (N,), advantages (N, T).
    """
    place, mask = knobs.placement, batch["mask"]
    penalty: Tensor | float = 0.0
    if beta and (place.before_baseline or place.to_go):
        ones = torch.ones_like(batch["logp_old"])
        kl = call(knobs.kl, {"logp": batch["logp_old"], "logp_ref": batch["logp_ref"], "ratio": ones}).detach().double()
        penalty = beta * place.before_baseline * sequence_kl(kl, mask)

    def penalised(parts: Tensor, weights: Tensor) -> Tensor:
        return total_rewards(parts, weights, knobs.transform, batch["truncated"]) - penalty

    def normalise(rewards: Tensor) -> Tensor:
        centred = call(knobs.baseline, {**batch, "rewards": rewards})
        return call(knobs.scale, {**batch, "rewards": rewards, "centred": centred})

    rewards = penalised(batch["parts"], batch["part_weights"])
    advantage = call(
        knobs.combine,
        {
            "parts": batch["parts"],
            "weights": batch["part_weights"],
            "rewards": rewards,
            "normalise": normalise,
        },
    )
    per_token = call(knobs.credit, {**batch, "rewards": rewards, "advantage": advantage})
    if beta and place.to_go:
        per_token = per_token - beta * place.to_go * kl_to_go(kl, mask)
    per_token = call(knobs.whiten, {**batch, "rewards": rewards, "advantage": advantage, "advantages": per_token})
    scored = ~torch.isnan(rewards)
    return {
        "rewards": rewards,
        "advantage": torch.where(scored, advantage, 0.0),
        "advantages": torch.where(mask & scored[:, None], per_token, 0.0),
    }


def masks(batch: Mapping[str, Any], knobs: Knobs) -> Masks:
    """Which tokens each term and the denominators see. batch: mask (N, T), kept and counted (N,), and what the token
    knobs ask for."""
    mask, kept, counted = batch["mask"], batch["kept"][:, None], batch["counted"][:, None]
    seen = Masks(policy=mask & kept, kl=mask & kept, entropy=mask & kept, denominator=mask & counted)
    for rule in knobs.tokens.values():
        seen = call(rule, ChainMap({"masks": seen}, batch))
    return seen


def weights(seen: Masks, counted: Tensor, group: Tensor, knobs: Knobs) -> Weights:
    """One weight per token and term, from the whole update batch, so that no split of it into micro-batches can
    change the loss.

    seen: four (N, T) masks; counted, group: (N,).
    """
    shared = {"mask": seen.denominator, "counted": counted, "group": group}

    def over(aggregate: Callable, numerator: Tensor) -> Tensor:
        return torch.where(numerator, call(aggregate, shared), 0.0)

    return Weights(
        policy=over(knobs.aggregate, seen.policy),
        kl=over(knobs.aggregate_kl, seen.kl),
        entropy=over(knobs.aggregate_entropy, seen.entropy),
    )


def loss(
    logp: Tensor, entropies: Tensor, batch: Mapping[str, Any], knobs: Knobs, weight: Weights, beta: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The objective as a function of the current log-probabilities and entropies, both (N, T) in nats.

    sum(W_policy * surrogate) + beta * sum(W_kl * kl) - coefficient * sum(W_entropy * H): sums only, since the weights
    hold every denominator, so the losses of micro-batches add up to the loss of the batch.
    -> the loss (a float64 scalar) and its parts {policy, kl, entropy}, with the detached ratio (N, T) beside them.
    """
    mask, place = batch["mask"], knobs.placement
    logp = torch.where(
        mask, logp, 0.0
    )  # whatever stands at padding, infinities too, must reach neither value nor gradient
    values = dict(batch, logp=logp)
    ratio = call(knobs.ratio, values)
    values["ratio"] = ratio
    policy = _sum(weight.policy, call(knobs.surrogate, values) * call(knobs.correction, values))
    kl = entropy = torch.zeros((), dtype=torch.float64)
    if beta and place.in_loss:
        anchor = batch["logp_old"] if place.to_old else batch["logp_ref"]
        kl = beta * place.in_loss * _sum(weight.kl, call(knobs.kl, {**values, "logp_ref": anchor}))
    if knobs.entropy.coefficient:
        entropy = -knobs.entropy.coefficient * _sum(weight.entropy, torch.where(mask, entropies, 0.0))
    return policy + kl + entropy, {"policy": policy, "kl": kl, "entropy": entropy, "ratio": ratio.detach()}


def _sum(weight: Tensor, term: Tensor) -> Tensor:
    return torch.where(weight != 0, weight * term, 0.0).sum()


def teaching(batch: Mapping[str, Any], knobs: Knobs, weight: Weights, beta: float) -> Tensor:
    """Rows (N,) bool with a token whose term in the loss can be other than 0; no other row needs a forward pass.

    A group whose rewards agree has no advantage, and then nothing to teach, if the surrogate is the advantage times
    something (see `ablations.knobs.surrogate.in_proportion`) and neither a KL nor an entropy bonus is in the loss. The
    weights keep counting the row.
    """
    policy = weight.policy != 0
    if getattr(getattr(knobs.surrogate, "func", knobs.surrogate), "in_proportion", False):
        policy = policy & (batch["advantages"] != 0)
    rows = policy.any(1)
    if beta and knobs.placement.in_loss:
        rows = rows | (weight.kl != 0).any(1)
    if knobs.entropy.coefficient:
        rows = rows | (weight.entropy != 0).any(1)
    return rows


def micro_batches(batch: Mapping[str, Any], rows: Tensor, tokens: int) -> list[Tensor]:
    """Consecutive parts of `rows` (n,), indices into the batch, of about equal cost: at most `tokens` tokens, or one
    answer.

    A prompt counts once for adjacent answers of one group, as they share it in the forward pass.
    """
    if not len(rows):
        return []
    group, prompts = batch["group"][rows], batch["prompt_mask"][rows].sum(1)
    first = torch.cat((torch.ones_like(group[:1], dtype=torch.bool), group[1:] != group[:-1]))
    answers = batch["mask"][rows].sum(1).tolist()
    cost = [(p if new else 0, p, a) for p, new, a in zip(prompts.tolist(), first.tolist(), answers, strict=True)]
    total = sum(shared + answer for shared, _, answer in cost)
    room = min(tokens, -(-total // max(1, -(-total // tokens))))
    sizes, filled = [0], 0
    for shared, alone, answer in cost:
        if sizes[-1] and filled + shared + answer > room:
            sizes, filled, shared = [*sizes, 0], 0, alone
        sizes[-1] += 1
        filled += shared + answer
    return list(rows.split(sizes))


# --- the loop
# ---------------------------------------------------------------------------------------------------------------------


def train(
    state: State,
    collect: Callable,
    evaluate: Callable,
    *,
    steps: int,
    beta: float,
    temperature: float,
    epochs: int,
    minibatches: int,
    tokens_per_micro_batch: int,
    clip: Callable,
    recompute_logp: bool,
    evaluate_every: int,
    measure_kl_every: int,
    sync_every: int,
    sync_mix: float,
) -> Iterator[dict[str, float]]:
    """Yields one row of metrics per rollout; at each yield the state is whole and can be saved. Row 0 is the policy
    before any update.

    collect(state) -> a rollout (see `ablations.rollout.collect`); evaluate(policy) -> metrics; clip(parameters) ->
    gradient norm before clipping. One rollout gives epochs * minibatches optimiser steps. Raises Diverged at the
    first reward, loss or gradient that is not finite.
    """
    knobs, policy = state.knobs, state.policy
    if state.step == 0:
        yield {"step": 0, **_timed("seconds/evaluate", evaluate, policy)}
    while state.step < steps:
        state.step += 1
        row: dict[str, float] = {"step": state.step}
        rollout = collect(state)
        row |= rollout.metrics
        started = time.perf_counter()
        measure_kl = _due(state.step, measure_kl_every)
        batch = prepare(rollout, state, beta, temperature, recompute_logp, measure_kl, tokens_per_micro_batch)
        row |= measure.batch_metrics(batch)
        knobs.entropy.update(row["entropy/mean"])
        row |= update(batch, state, beta, temperature, epochs, minibatches, tokens_per_micro_batch, clip)
        if _due(state.step, sync_every):
            synchronise(state.reference, policy, sync_mix)
        row["seconds/update"] = time.perf_counter() - started
        if _due(state.step, evaluate_every) or state.step == steps:
            row |= _timed("seconds/evaluate", evaluate, policy)
        yield row


def prepare(
    rollout,
    state: State,
    beta: float,
    temperature: float,
    recompute_logp: bool,
    measure_kl: bool,
    tokens_per_micro_batch: int,
) -> dict[str, Any]:
    """The rollout as one batch of tensors, with advantages. Needs the reference only where a KL is used or measured."""
    batch, place = dict(rollout.tensors), state.knobs.placement
    batch["logp_old"] = batch["logp_sampler"]
    if recompute_logp:
        batch["logp_old"] = _logp_of_all(state.policy, batch, temperature, tokens_per_micro_batch)
    needs_reference = beta and not place.to_old and (place.in_loss or place.before_baseline or place.to_go)
    if needs_reference or measure_kl:
        batch["logp_ref"] = _logp_of_all(state.reference, batch, temperature, tokens_per_micro_batch)
    batch |= advantages(batch, state.knobs, beta)
    for name in ("rewards", "advantages"):  # NaN rewards are answers without a score; infinite ones are a fault
        if bad := int(batch[name].isinf().reshape(len(batch["group"]), -1).any(-1).sum()):
            raise Diverged(f"step {state.step}: the {name} of {bad} answers are infinite", batch)
    scored = ~torch.isnan(batch["rewards"])
    batch["kept"] = batch["kept"] & scored
    batch["counted"] = scored if state.knobs.keep.dropped_rows_count else batch["kept"]
    return batch


def update(batch, state: State, beta, temperature, epochs, minibatches, tokens_per_micro_batch, clip):
    """epochs * minibatches optimiser steps on one rollout -> metrics of the update, as sums over counts over all its
    tokens."""
    tally = measure.UpdateTally(state.knobs.surrogate)
    rows = torch.arange(len(batch["group"]))
    for _ in range(epochs):
        order = torch.randperm(len(rows), generator=state.generators["shuffle"]) if minibatches > 1 else rows
        for part in order.tensor_split(minibatches):
            minibatch = select(batch, part.sort().values) if minibatches > 1 else batch
            _optimiser_step(minibatch, state, beta, temperature, tokens_per_micro_batch, clip, tally)
    return tally.metrics()


def _optimiser_step(batch, state: State, beta, temperature, tokens_per_micro_batch, clip, tally) -> None:
    knobs, policy = state.knobs, state.policy
    across = {"logp": lambda: _logp_of_all(policy, batch, temperature, tokens_per_micro_batch)}
    batch = select_across(batch, knobs, across)
    weight = weights(batch["masks"], batch["counted"], batch["group"], knobs)
    needed = teaching(batch, knobs, weight, beta)
    needed[0] |= not needed.any()  # a gradient of 0 still moves Adam, an absent one does not
    tally.skip(batch["masks"].policy[~needed])
    state.optimizer.zero_grad(set_to_none=True)
    for piece in micro_batches(batch, needed.nonzero()[:, 0], tokens_per_micro_batch):
        micro = select(batch, piece)
        logp, entropies = _logp(policy, micro, temperature)
        value, parts = loss(logp, entropies, micro, knobs, Weights(*(w[piece] for w in weight)), beta)
        if not torch.isfinite(value):
            raise Diverged(f"step {state.step}: the loss is {value.item()}", micro)
        value.backward()
        tally.add(value, parts, micro, logp)
    norm = float(clip([p for p in policy.parameters() if p.requires_grad]))
    if not norm < float("inf"):
        raise Diverged(f"step {state.step}: the gradient norm is {norm}", batch)
    tally.close(norm, state.optimizer.param_groups[0]["lr"])
    state.optimizer.step()
    state.scheduler.step()


def select_across(batch: dict, knobs: Knobs, lazily: Mapping[str, Callable]) -> dict:
    """Choices that look at the whole update batch (top entropy, KL-Cov ...) are made once, here, before it is cut
    into micro-batches."""
    values = measure.Lazy(batch, lazily)
    chosen = {"masks": masks(values, knobs)}
    if hasattr(knobs.surrogate, "choose"):
        chosen["chosen"] = call(knobs.surrogate.choose, values)
    return batch | chosen


def select(batch: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
    """The same batch with only these rows. What is not per row stays whole."""

    def cut(name, value):
        if name in PER_BATCH:
            return value
        if isinstance(value, Masks):
            return Masks(*(m[rows] for m in value))
        return value[rows] if isinstance(value, Tensor) else [value[i] for i in rows.tolist()]

    return {name: cut(name, value) for name, value in batch.items()}


def _logp(policy, batch: Mapping[str, Any], temperature: float) -> tuple[Tensor, Tensor]:
    return policy.token_logp(
        batch["prompt_ids"], batch["prompt_mask"], batch["ids"], batch["mask"], temperature=temperature
    )


def _logp_of_all(policy, batch, temperature, tokens_per_micro_batch) -> Tensor:
    rows = torch.arange(len(batch["group"]))
    with torch.no_grad():
        parts = micro_batches(batch, rows, tokens_per_micro_batch)
        return torch.cat([_logp(policy, select(batch, part), temperature)[0] for part in parts])


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _timed(name: str, function: Callable, *arguments) -> dict[str, float]:
    started = time.perf_counter()
    return {**function(*arguments), name: time.perf_counter() - started}
