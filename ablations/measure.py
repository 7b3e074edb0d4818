"""The metrics of a run. Every mean is one sum over one count of the whole batch, so micro-batches cannot move it.

Names and units stand in README's table. A metric that is undefined (the length of incorrect answers where all are
correct) is left out
of the row: it is neither 0 nor NaN.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ablations.knobs import group as groups
from ablations.knobs import kl as estimators


class Lazy(Mapping):
    """A batch with some entries computed only when a knob asks for them, and then once."""

    def __init__(self, values: Mapping[str, Any], lazily: Mapping[str, Callable]):
        self._values, self._lazily = dict(values), lazily

    def __getitem__(self, name: str):
        if name not in self._values:
            self._values[name] = self._lazily[name]()
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values.keys() | self._lazily.keys())

    def __len__(self) -> int:
        return len(self._values.keys() | self._lazily.keys())


def mean_where(values: Tensor, where: Tensor) -> dict[str, Tensor]:
    """sum(values at where) / count(where) as {"": number}, or {} where nothing counts. values, where: the same
    shape."""
    count = where.sum()
    return {"": torch.where(where, values.double(), 0.0).sum() / count} if count else {}


def rollout_metrics(lengths, ended, correct, fillers, rewards, group) -> dict[str, float]:
    """What was sampled, before any group is filtered out.

    lengths (N,) tokens, the end token counted; ended (N,) bool; correct (N,) 1, 0 or NaN for an answer that could not
    be graded; fillers (N,) tokens; rewards (N,) NaN = unscored; group (N,).
    """
    everything = torch.ones_like(ended)
    right, wrong = correct == 1, correct == 0
    dead, graded = groups.zero_advantage_groups(rewards, group), groups.zero_advantage_groups(correct, group)
    pooled, within = groups.spread(rewards, group)
    row = _named("accuracy/train", right, right | wrong)
    row |= _named("length/mean", lengths, everything) | {"length/min": lengths.min(), "length/max": lengths.max()}
    row |= _named("length/correct", lengths, right) | _named("length/incorrect", lengths, wrong)
    if "length/correct" in row and "length/incorrect" in row:
        row["length/gap"] = row["length/incorrect"] - row["length/correct"]
    row |= _named("length/ended", lengths, ended) | _named("length/truncated_share", ~ended, everything)
    row |= _named("fillers/mean", fillers, everything) | _named("fillers/incorrect", fillers, wrong)
    row |= {
        "reward/std_pooled": pooled,
        "reward/std_within_group": within,
        "reward/unscored": torch.isnan(rewards).sum(),
    }
    row |= {"groups/zero_advantage": dead.zero.double().mean(), "groups/all_right": graded.all_right.double().mean()}
    row |= {"groups/all_wrong": graded.all_wrong.double().mean()}
    row |= {"groups/zero_advantage_predicted": groups.predicted_zero_advantage(paid(rewards), group)}
    row |= {"samples/generated": len(lengths), "tokens/generated": lengths.sum()}
    return {name: float(value) for name, value in row.items() if value is not None}


def paid(rewards: Tensor) -> Tensor:
    """Rewards of at most two values as 1 (the higher) and 0, NaN where unscored. Of more values nothing is paid or not:
    NaN throughout. rewards (N,) -> (N,) float."""
    known = ~torch.isnan(rewards)
    if len(rewards[known].unique()) > 2:
        return torch.full_like(rewards, float("nan"))
    return torch.where(known, (rewards == rewards[known].max()).to(rewards), rewards) if known.any() else rewards


def checker_metrics(
    correct: Tensor, lenient: Tensor, rewards: Tensor, outcomes: Sequence[str | None]
) -> dict[str, float]:
    """How the strict checker, the careless one and the reward agree, and what could not be told.

    correct, lenient (N,) 1, 0 or NaN; rewards (N,) as the advantage will use them, without a KL; outcomes (N,) as in
    `ablations.tasks.problem.Outcome`. accuracy/lenient_gap is the share of answers that pass the careless checker alone
    minus those that pass the strict one alone; reward/gold_gap the mean of reward - correct.
    """
    both = ~torch.isnan(correct) & ~torch.isnan(lenient)
    row = _named("accuracy/lenient", lenient, both) | _named("accuracy/lenient_gap", lenient - correct, both)
    row |= _named("reward/gold_gap", rewards - correct, ~torch.isnan(rewards) & ~torch.isnan(correct))
    told = [outcome for outcome in outcomes if outcome is not None]
    if told:
        row |= {"answers/none_share": told.count("no answer") / len(told)}
        row |= {"answers/failed": told.count("checker failed"), "answers/timed_out": told.count("timed out")}
    return {name: float(value) for name, value in row.items()}


def batch_metrics(batch: Mapping[str, Any]) -> dict[str, float]:
    """What the update will see. batch: as `ablations.grpo.prepare` makes it."""
    mask, rewards = batch["mask"], batch["rewards"]
    row = _named("reward/mean", rewards, ~torch.isnan(rewards))
    for k, name in enumerate(batch["part_names"]):
        part = batch["parts"][:, k]
        row |= _named(f"reward/part/{name}", part, ~torch.isnan(part))
    row |= _named("entropy/mean", batch["entropies"], mask) | _named("surprisal/mean", -batch["logp_sampler"], mask)
    if "logp_ref" in batch:
        pair = {"logp": batch["logp_old"], "logp_ref": batch["logp_ref"], "log_ratio_clamp": None, "value_clamp": None}
        row |= _named("kl/k1", estimators.k1(**pair), mask) | _named("kl/k3", estimators.k3(**pair), mask)
    return {name: float(value) for name, value in row.items()}


def trust_band(surrogate: Callable) -> tuple[float, float] | None:
    """The ratios between which the surrogate does not clip, read from its settings; None for one that never clips.

    An option whose settings mean something else has a function `band` of them as an attribute.
    """
    settings = getattr(surrogate, "keywords", None) or vars(surrogate)
    if own := getattr(getattr(surrogate, "func", surrogate), "band", None):
        return own(settings)
    if settings.get("eps_low") is not None and settings.get("eps_high") is not None:
        return 1 - settings["eps_low"], 1 + settings["eps_high"]
    if settings.get("upper") is not None:
        return settings.get("lower") or 0.0, settings["upper"]
    return None


class UpdateTally:
    """Collects the metrics of all optimiser steps on one rollout: sums and counts, reduced once at the end."""

    def __init__(self, surrogate: Callable):
        self.band = trust_band(surrogate)
        self.steps, self.norm, self.lr = 0, 0.0, 0.0
        self.losses = dict.fromkeys(("total", "policy", "kl", "entropy"), 0.0)
        self.tokens = self.seen = self.low = self.high = self.outside = 0
        self.rows = self.skipped = self.first_tokens = 0
        self.extremes = (float("inf"), -float("inf"))
        self.first_deviation = 0.0
        self.mismatch = (0.0, 0.0)  # sum and largest of |log pi - log mu| at the first step

    def skip(self, mask: Tensor) -> None:
        """Answers that were not computed, because their terms are 0; mask (n, T): what the policy term would see. They
        cannot bind a clip, but they are part of the batch."""
        self.rows, self.skipped = self.rows + len(mask), self.skipped + len(mask)
        self.tokens += int(mask.sum())

    def add(self, value: Tensor, parts: Mapping[str, Tensor], batch: Mapping[str, Any], logp: Tensor) -> None:
        """One micro-batch. parts: what `ablations.grpo.loss` returned; logp: (N, T)."""
        mask = batch["masks"].policy
        self.rows += len(mask)
        for name, part in {"total": value, **parts}.items():
            if name in self.losses:
                self.losses[name] += float(part.detach())
        ratio = parts["ratio"][mask]
        if not len(ratio):
            return
        self.extremes = (min(self.extremes[0], float(ratio.min())), max(self.extremes[1], float(ratio.max())))
        if self.steps == 0:
            gap = torch.where(mask, logp.detach() - batch["logp_old"], 0.0)
            self.first_deviation = max(self.first_deviation, float(torch.expm1(gap).abs().max()))
            if "logp_sampler" in batch:
                apart = (logp.detach() - batch["logp_sampler"])[mask].abs()
                self.mismatch = (self.mismatch[0] + float(apart.sum()), max(self.mismatch[1], float(apart.max())))
            self.first_tokens += len(ratio)
        self.tokens, self.seen = self.tokens + len(ratio), self.seen + len(ratio)
        if self.band:
            advantages = batch["advantages"][mask]
            # A bound of 1, as TIS has it, is not crossed by the rounding of a ratio that is 1.
            slack = 1e-10 if ratio.dtype == torch.float64 else 2e-5
            below, above = ratio < self.band[0] - slack, ratio > self.band[1] + slack
            self.low += int((below & (advantages < 0)).sum())
            self.high += int((above & (advantages > 0)).sum())
            self.outside += int((below | above).sum())

    def close(self, norm: float, lr: float) -> None:
        """End of one optimiser step."""
        self.steps, self.norm, self.lr = self.steps + 1, self.norm + norm, lr

    def metrics(self) -> dict[str, float]:
        """Losses and gradient norm are means over the optimiser steps; binding clips are shares of all trained tokens,
        ratios outside the band of those that were computed."""
        row = {f"loss/{name}": value / self.steps for name, value in self.losses.items()}
        row |= {"gradient/norm": self.norm / self.steps, "learning_rate": self.lr}
        row |= {"update/skipped": self.skipped / self.rows}
        if self.seen:
            row |= {"ratio/min": self.extremes[0], "ratio/max": self.extremes[1]}
            row |= {"ratio/first_update_deviation": self.first_deviation}
            row |= {"mismatch/mean": self.mismatch[0] / self.first_tokens, "mismatch/max": self.mismatch[1]}
            row |= {"clip/binding_low": self.low / self.tokens, "clip/binding_high": self.high / self.tokens}
            row |= {"clip/outside": self.outside / self.seen}
        return row


def _named(name: str, values: Tensor, where: Tensor) -> dict[str, Tensor]:
    return {name + suffix: value for suffix, value in mean_where(values, where).items()}


as_floats = functools.partial(torch.tensor, dtype=torch.float64)
