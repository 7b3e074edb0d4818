"""What changes during a run, and how it is saved: weights, moments, generators, counters."""

import copy
import random
from collections.abc import Mapping
from typing import Any

import torch


class State:
    """Everything that changes during a run: what has to be saved for an exact resume, and nothing else.

    The generators have an owner each, so that evaluating more often, say, cannot move the training draws.
    """

    def __init__(self, policy, reference, optimizer, scheduler, knobs: Any, seed: int):
        self.policy, self.reference, self.optimizer, self.scheduler, self.knobs = (
            policy,
            reference,
            optimizer,
            scheduler,
            knobs,
        )
        self.step = 0
        self.retired: set[str] = set()
        self.data = random.Random(f"data {seed}")
        owners = ("sampling", "reward", "shuffle")  # no dropout: policies never use it, or ratios would differ from 1
        self.generators = {owner: torch.Generator().manual_seed(seed_of(owner, seed)) for owner in owners}

    def state_dict(self) -> dict:
        return {
            "step": self.step,
            "policy": self.policy.state_dict(),
            "reference": self.reference.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "knobs": {name: knob.state_dict() for name, knob in stateful(self.knobs._asdict()).items()},
            "retired": sorted(self.retired),
            "data": self.data.getstate(),
            "generators": {owner: generator.get_state() for owner, generator in self.generators.items()},
        }

    def load_state_dict(self, saved: dict) -> None:
        self.step, self.retired = saved["step"], set(saved["retired"])
        for name in ("policy", "reference", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(saved[name])
        knobs = stateful(self.knobs._asdict())
        for name, state in saved["knobs"].items():
            knobs[name].load_state_dict(state)
        version, internal, gauss = saved["data"]
        self.data.setstate((version, tuple(internal), gauss))
        for owner, state in saved["generators"].items():
            self.generators[owner].set_state(state)


def stateful(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Every part of the knobs that remembers something, by its path: "baseline", "reward.mine.part" ..."""
    found = {}
    for name, part in knobs.items():
        if hasattr(part, "state_dict"):
            found[name] = part
        inner = part if isinstance(part, Mapping) else part._asdict() if hasattr(part, "_asdict") else {}
        found |= {f"{name}.{path}": each for path, each in stateful(inner).items()}
    return found


def seed_of(owner: str, seed: int) -> int:
    """A seed for one purpose: different purposes of one run, and one purpose of different runs, get unrelated
    streams."""
    return random.Random(f"{owner} {seed}").getrandbits(63)


def frozen(policy):
    """The policy that training starts from, which no gradient reaches: a copy, or the same weights without adapter."""
    if (own := getattr(policy, "as_reference", lambda: None)()) is not None:
        return own
    reference = copy.deepcopy(policy).eval()
    return reference.requires_grad_(False)


def synchronise(reference, policy, mix: float) -> None:
    """reference := (1 - mix) * reference + mix * policy."""
    with torch.no_grad():
        for old, new in zip(reference.parameters(), policy.parameters(), strict=True):
            old.lerp_(new, mix)
