"""One reference case computed with the code that trains: inputs -> batch -> `ablations.grpo` -> outputs by name."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ablations import grpo, measure
from ablations.contradictions import Refused
from ablations.knobs import group as by_group
from ablations.knobs.call import call, needs
from ablations.knobs.tokens import Masks
from ablations.vectors import vocabulary
from ablations.vectors.case import BadCase, Node, numbers
from ablations.vectors.vocabulary import Plan

Outputs = tuple[dict[str, Tensor], Tensor]
LOGP = ("logp_new", "logp_old", "logp_ref", "logp_sampler")
PER_TOKEN = (*LOGP, "entropy", "advantages_token", "loss_token")


def compute(case: Node) -> Outputs:
    """-> our outputs, and the mask (N, T) of the rows that they list. Raises BadCase, and Refused for a lone answer."""
    return case["options"]["computes"].pick(COMPUTES)(case)


# --- inputs -----------------------------------------------------------------------------------------------------------


def _inputs(case: Node) -> dict[str, Tensor]:
    """The inputs that are there, as tensors that agree in their number of rows and tokens."""
    given = {key: numbers(case["inputs"][key]) for key in case["inputs"].value if key != "group_size"}
    rows = {key: value.shape[0] if value.dim() else 0 for key, value in given.items()}
    if len(set(rows.values())) != 1 or 0 in rows.values():
        raise BadCase(f"inputs have these numbers of rows: {rows}; they must be the same and above 0.")
    shapes = {key: tuple(given[key].shape) for key in ("mask", *PER_TOKEN) if key in given}
    if len(set(shapes.values())) > 1 or any(len(shape) != 2 for shape in shapes.values()):
        raise BadCase(f"inputs have these shapes: {shapes}; they must all be the same (rows, tokens).")
    return given


def _need(given: Mapping[str, Any], *keys: str) -> None:
    if missing := [key for key in keys if key not in given]:
        raise BadCase(f"inputs lack {', '.join(missing)}, which the options need; there are {', '.join(given)}.")


def _batch(case: Node, plan: Plan) -> tuple[dict[str, Any], Tensor]:
    """-> the batch as `ablations.grpo` wants it, and the numbers of the rows in it: all that are not dropped."""
    given, options = _inputs(case), case["options"]
    everything = torch.ones(len(next(iter(given.values()))), dtype=torch.bool)
    mask = given["mask"] != 0 if "mask" in given else everything[:, None]
    batch: dict[str, Any] = {"mask": mask, "lengths": mask.sum(1), "kept": everything, "counted": everything}
    batch["group"] = given["group_ids"].long() if "group_ids" in given else torch.zeros(len(mask), dtype=torch.long)
    batch["truncated"] = given["truncated"] != 0 if "truncated" in given else ~everything
    batch["entropies"] = given["entropy"] if "entropy" in given else torch.zeros(mask.shape, dtype=torch.float64)
    batch |= {key: given[key] for key in (*LOGP, "rewards") if key in given}
    if options["overlong"]["mode"].value != "none":
        _need(given, "truncated")
    if options["baseline"].value == "opo":
        _need(given, "mask")  # its weights are the lengths
    if plan.knobs.placement.before_baseline or plan.knobs.placement.to_go:
        _need(given, "mask", "logp_old", "logp_ref")
    if plan.given_advantages:
        _need(given, "advantages_token")
        batch["advantages"] = given["advantages_token"]
    else:
        several = options["reward_parts"].value is not None
        _need(given, "group_ids", "rewards_parts" if several else "rewards")
        batch["parts"] = given["rewards_parts"] if several else given["rewards"][:, None]
        batch["part_weights"] = torch.tensor(plan.part_weights, dtype=torch.float64)
        if batch["parts"].shape[1:] != batch["part_weights"].shape:
            raise BadCase(
                f"inputs.rewards_parts has shape {tuple(batch['parts'].shape)} and options.reward_parts.weights "
                f"{len(plan.part_weights)} numbers; each part needs one."
            )
    rows = (~batch["truncated"] if plan.drop_truncated else everything).nonzero()[:, 0]
    return grpo.select(batch, rows), rows


def _partition(node: Node, rows: Tensor) -> list[Tensor]:
    """Lists of row numbers -> places in the batch; null is one list of all. rows: the numbers of the batch's rows."""
    if node.value is None:
        return [torch.arange(len(rows))]
    place = {row: i for i, row in enumerate(rows.tolist())}
    lists = [[int(row.number()) for row in part.items()] for part in node.items()]
    if sorted(row for part in lists for row in part if row in place) != sorted(place):
        raise node.bad("lists that hold every row exactly once")
    return [torch.tensor([place[row] for row in part if row in place], dtype=torch.long) for part in lists]


# --- advantages -------------------------------------------------------------------------------------------------------


def refuse_lone_answers(rewards: Tensor, group: Tensor, statistics: tuple[str, ...]) -> None:
    """Raise Refused where `statistics` would compare an answer with its group and it is the only scored one there.

    rewards, group: (N,). Training itself gives 0 to an answer that filtering has left alone.
    """
    alone = by_group.scored(rewards) & (by_group.count(rewards, group) == 1)
    if statistics and alone.any():
        lone = group[alone].unique().tolist()
        raise Refused(
            f"There is one scored answer in group {', '.join(map(str, lone))}; a statistic of the group "
            f"({', '.join(statistics)}) needs at least 2. Sample 2 or more answers per prompt, or choose another "
            "baseline and scale, such as batch_mean and none."
        )


def _advantages(case: Node) -> Outputs:
    plan = vocabulary.for_advantages(case["options"])
    batch, _ = _batch(case, plan)
    ours, batch = _with_advantages(batch, plan, case["options"])
    seen = {"masks": Masks(*[batch["mask"]] * 4), "ratio": torch.ones(batch["mask"].shape, dtype=torch.float64)}
    return ours | _reports(case["options"], plan, batch | seen), batch["mask"]


def _with_advantages(batch: dict[str, Any], plan: Plan, options: Node) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """-> the outputs that are known now, and the batch with `advantages`."""
    if plan.given_advantages:
        return {}, batch
    knobs = plan.knobs
    unpenalised = grpo.total_rewards(batch["parts"], batch["part_weights"], knobs.transform, batch["truncated"])
    refuse_lone_answers(unpenalised, batch["group"], plan.group_statistics)
    batch = batch | grpo.advantages(batch, knobs, plan.beta)
    ours = {"advantages_token": batch["advantages"]}
    if options["credit"].value == "outcome" and options["whiten"]["over"].value != "tokens":
        # The number of a row, also of one that is fully masked, is what a token would get if every row had exactly one.
        one_token = {"mask": torch.ones_like(batch["kept"])[:, None], "advantages": batch["advantage"][:, None]}
        ours["advantages"] = call(knobs.whiten, {**batch, **one_token})[:, 0]
    return ours, batch


# --- loss -------------------------------------------------------------------------------------------------------------


class Replayed(NamedTuple):
    """What came of all optimiser steps. losses: one per step; pieces: one per micro-batch; the others (N, T)."""

    losses: Tensor
    pieces: Tensor
    grad_logp: Tensor
    grad_entropy: Tensor
    ratio: Tensor
    masks: Masks
    weight_kl: Tensor


def _replay(batch: Mapping[str, Any], plan: Plan, updates: list[Tensor], micro_batches: list[Tensor]) -> Replayed:
    """The loop's own path: choices and weights once per update batch, then loss and backward pass per micro-batch."""
    logp, entropies = (batch[key].clone().requires_grad_() for key in ("logp_new", "entropies"))
    losses, pieces = (
        torch.zeros(len(updates), dtype=torch.float64),
        torch.zeros(len(micro_batches), dtype=torch.float64),
    )
    ratio, weight_kl = torch.ones_like(logp), torch.zeros_like(logp)
    masks = Masks(*(torch.zeros_like(batch["mask"]) for _ in Masks._fields))
    for u, rows in enumerate(updates):
        current = logp.detach()[rows]
        update = grpo.select_across(grpo.select(batch, rows), plan.knobs, {"logp": lambda current=current: current})
        weight = grpo.weights(update["masks"], update["counted"], update["group"], plan.knobs)
        weight_kl[rows] = weight.kl
        for whole, part in zip(masks, update["masks"], strict=True):
            whole[rows] = part
        for m, members in enumerate(micro_batches):
            places = torch.isin(rows, members).nonzero()[:, 0]
            here = rows[places]
            micro, cut = grpo.select(update, places), grpo.Weights(*(w[places] for w in weight))
            value, parts = grpo.loss(logp[here], entropies[here], micro, plan.knobs, cut, plan.beta)
            value.backward()
            losses[u] += value.detach()
            pieces[m] += value.detach()
            ratio[here] = parts["ratio"]
    grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in (logp, entropies)]
    return Replayed(losses, pieces, *grads, ratio, masks, weight_kl)


def _loss(case: Node) -> Outputs:
    options = case["options"]
    plan = vocabulary.for_loss(options)
    batch, rows = _batch(case, plan)
    _need(case["inputs"].value, "mask", "logp_new", "logp_old")
    ours, batch = _with_advantages(batch, plan, options)
    asked = {*needs(plan.knobs.surrogate), *needs(plan.knobs.correction)} & {"rewards", "logp_sampler"}
    _need(batch, *asked, *(["logp_ref"] if plan.knobs.placement.in_loss and not plan.knobs.placement.to_old else []))
    updates, micro_batches = (_partition(options[key], rows) for key in ("update_batches", "micro_batches"))
    done = _replay(batch, plan, updates, micro_batches)
    ours |= {"loss": done.losses if options["update_batches"].value else done.losses[0]}
    ours |= {"grad_logp_new": done.grad_logp, "grad_entropy": done.grad_entropy}
    if options["micro_batches"].value:
        whole = _replay(batch, plan, updates, [torch.arange(len(rows))])
        ours |= {"loss_per_microbatch": done.pieces, "grad_if_single_batch": whole.grad_logp}
    seen = {"masks": done.masks, "ratio": done.ratio, "weight_kl": done.weight_kl}
    return ours | _reports(options, plan, batch | seen), batch["mask"]


# --- what a trainer reports -------------------------------------------------------------------------------------------


def _over_tokens(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """sum over the tokens that the denominators see / their number."""
    where = batch["masks"].denominator
    return torch.where(where, values, 0.0).sum() / where.sum().clamp(min=1)


def _over_rows(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """The mean over all rows of the means over their tokens; a fully masked row counts as 0."""
    where = batch["masks"].denominator
    return (torch.where(where, values, 0.0).sum(1) / where.sum(1).clamp(min=1)).mean()


def _share_of_rows(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """The share of all rows that have such a token: for a ratio per sequence, the rows whose ratio it is."""
    return (batch["masks"].denominator & (values != 0)).any(1).double().mean()


def _as_aggregate(values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    return torch.where(batch["weight_kl"] != 0, batch["weight_kl"] * values, 0.0).sum()


CLIP_OVER = {"tokens": _over_tokens, "rows": _share_of_rows, "rows_mean_of_token_means": _over_rows}
KL_OVER = {"token_mean": _over_tokens, "as_aggregate": _as_aggregate, "rows_mean_of_token_means": _over_rows}


def _binding(batch: Mapping[str, Any], low: float, high: float) -> Tensor:
    rho, advantages = batch["ratio"], batch["advantages"]
    return ((rho > high) & (advantages > 0)) | ((rho < low) & (advantages < 0))


def _outside(batch: Mapping[str, Any], low: float, high: float) -> Tensor:
    return (batch["ratio"] > high) | (batch["ratio"] < low)


CLIPPED = {"binding": _binding, "outside": _outside}


def _reports(options: Node, plan: Plan, batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """The metrics that options.report names."""
    report, ours = options["report"].only("clip_frac", "mean_kl", "ppo_kl"), {}
    if report["clip_frac"].value is not None:
        node = report["clip_frac"].only("counts", "over")
        band = measure.trust_band(plan.knobs.surrogate) if plan.knobs.surrogate else None
        if band is None:
            raise node.bad("null, since nothing here bounds the ratio")
        clipped = node["counts"].pick(CLIPPED)(batch, *band)
        ours["clip_frac"] = node["over"].pick(CLIP_OVER)(clipped.double(), batch)
    if report["mean_kl"].value is not None:
        reduce = report["mean_kl"].pick(KL_OVER)
        if reduce is _as_aggregate:
            options["aggregate"]["kl"].pick(vocabulary.AGGREGATES)
        ours["mean_kl"] = reduce(_kl_of(options["kl"], plan.knobs.kl, batch), batch)
    if report["ppo_kl"].value is not None:
        report["ppo_kl"].one_of("token_mean")
        ours["ppo_kl"] = _over_tokens(batch["logp_old"] - batch["logp_new"], batch)
    return ours


def _kl_of(node: Node, knob: Callable, batch: Mapping[str, Any]) -> Tensor:
    """The estimate per token: of the old policy against the reference in the reward, of the new one otherwise."""
    node["estimator"].pick(vocabulary.ESTIMATORS)
    policy = "logp_new" if node["placement"].value in ("none", "loss") else "logp_old"
    reference = node["reference"].pick({"ref": "logp_ref", "old": "logp_old"})
    _need(batch, policy, reference)
    return call(knob, {"logp": batch[policy], "logp_ref": batch[reference], "ratio": batch["ratio"]})


# --- single rooms -----------------------------------------------------------------------------------------------------


def _kl(case: Node) -> Outputs:
    """kl_token, and the gradient of its masked sum."""
    options = case["options"].only("computes", "kl", "ratio", "log_ratio_clamp")
    knob, given = vocabulary.estimator(options["kl"]), _inputs(case)
    options["kl"]["estimator"].pick(vocabulary.ESTIMATORS)
    reference = options["kl"]["reference"].pick({"ref": "logp_ref", "old": "logp_old"})
    _need(given, "mask", "logp_new", reference, *(["logp_old"] if "ratio" in needs(knob) else []))
    mask, logp = given["mask"] != 0, given["logp_new"].clone().requires_grad_()
    values = {"logp": logp, "logp_ref": given[reference], "mask": mask}
    if "ratio" in needs(knob):
        values["ratio"] = call(vocabulary.ratio_of(options, default="token"), {**values, "logp_old": given["logp_old"]})
    estimate = torch.where(mask, call(knob, values), 0.0)
    estimate.sum().backward()
    return {"kl_token": estimate.detach(), "grad_logp_new": logp.grad}, mask


def _aggregate(case: Node) -> Outputs:
    """sum(W * loss_token), and its gradient, which is W."""
    options = case["options"].only("computes", "aggregate")
    weigh, given = vocabulary.weights_of(options, "policy"), _inputs(case)
    if weigh is None:
        raise options["aggregate"]["policy"].bad(", ".join(vocabulary.AGGREGATES))
    _need(given, "mask", "loss_token")
    mask, term = given["mask"] != 0, given["loss_token"].clone().requires_grad_()
    rows = torch.ones(len(mask), dtype=torch.bool)
    rooms = dict.fromkeys(grpo.Knobs._fields)
    rooms |= dict.fromkeys(("aggregate", "aggregate_kl", "aggregate_entropy"), weigh)
    weight = grpo.weights(Masks(mask, mask, mask, mask), rows, rows.long(), grpo.Knobs(**rooms)).policy
    total = torch.where(weight != 0, weight * term, 0.0).sum()
    total.backward()
    return {"loss": total.detach(), "grad_loss_token": term.grad}, mask


COMPUTES = {
    "advantages": _advantages,
    "reward_normalisation": _advantages,
    "loss": _loss,
    "kl": _kl,
    "aggregate": _aggregate,
}
