"""The whole objective over one awkward batch, for tests that speak about every option of every room at once.

Rooms, options and defaults are read from conf/, so an option is covered from the moment its yaml exists. Composing with
Hydra takes half a second; a test that loops over a hundred options loads the yaml files alone.
"""

import copy
import functools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from ablations import grpo
from ablations.build import CONF, register_resolvers
from ablations.knobs.keep import Keep
from ablations.rollout import reward_parts
from ablations.tasks.problem import Grade

register_resolvers()

ROOMS = grpo.Knobs._fields
DEFAULTS = {
    room: option
    for entry in OmegaConf.load(CONF / "config.yaml").defaults
    if isinstance(entry, dict) or OmegaConf.is_dict(entry)
    for room, option in entry.items()
}
WIDTH = 7  # longest answer of the batch, and what ${rollout.max_new_tokens} is
# What is switched on beside the option in question, so that no term of the loss is 0.
BASE = {"beta": 0.3, "update": {"epochs": 2, "minibatches": 1, "tokens_per_micro_batch": 64}, "steps": 60, "seed": 3}
MEASURED = (1.0, 0.1, 0.1)  # entropies of earlier rollouts: an adaptive coefficient starts at 0, falls, and rises
SPOILED = 6  # seed of the placebos: one with which an unreliable checker errs in the batch below
BASE |= {"rollout": {"max_new_tokens": WIDTH, "recompute_logp": True, "prompts": 5, "group_size": 4}}
BASE["rollout"] |= {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def folder_of(room: str) -> str:
    return "aggregate" if room.startswith("aggregate") else room


def options_of(room: str) -> list[str]:
    return sorted(path.stem for path in Path(CONF, folder_of(room)).glob("*.yaml"))


OPTIONS = [(room, option) for room in ROOMS for option in options_of(room)]


@functools.cache
def _yaml(folder: str, option: str) -> Any:
    whole = OmegaConf.create({**BASE, "here": OmegaConf.load(CONF / folder / f"{option}.yaml")})
    return OmegaConf.to_container(whole, resolve=True)["here"]


def config(**choice: Any) -> dict[str, Any]:
    """The resolved config of the defaults but for `choice`: room=option or options, or a top-level key with its value.

    To be read only: what stands in it is shared. `changed` makes another one.
    """
    rooms = {room: option for room, option in DEFAULTS.items() if room in (*ROOMS, "reference")}
    rooms |= {room: option for room, option in choice.items() if room in (*ROOMS, "reference")}
    nodes = {}
    for room, option in rooms.items():
        for each in [option] if isinstance(option, str) else option or []:  # reward=[correctness,format]
            nodes[room] = nodes.get(room, {}) | _yaml(folder_of(room), each)
    others = {key: value for key, value in choice.items() if key not in rooms}
    return {**BASE, "aggregate_kl": None, "aggregate_entropy": None, **nodes, **others}


def changed(cfg: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The same config with another value at a dotted path."""
    made = copy.deepcopy(cfg)
    *parents, last = path.split(".")
    node = functools.reduce(dict.__getitem__, parents, made)
    node[last] = value
    return made


def build(cfg: dict[str, Any]) -> grpo.Knobs:
    """The knobs of a config, as a run builds them; those that remember something are new each time."""
    chosen = {room: cfg[room] for room in ROOMS}
    for room in ("aggregate_kl", "aggregate_entropy"):
        chosen[room] = chosen[room] or cfg["aggregate"]
    return grpo.Knobs(**{room: _built(json.dumps(node)) for room, node in chosen.items()})


def _built(node: str) -> Any:
    made = _instantiated(node)
    if not hasattr(made, "state_dict"):
        return made
    return type(made)(**{name: value for name, value in json.loads(node).items() if not name.startswith("_")})


@functools.cache
def _instantiated(node: str) -> Any:
    return _bare(instantiate(json.loads(node), _convert_="all"))


def _bare(made: Any) -> Any:
    """Python's own partial in place of Hydra's, whose checks at every call take longer than the functions here."""
    if isinstance(made, dict):
        return {key: _bare(value) for key, value in made.items()}
    if isinstance(made, Keep):
        return made._replace(rule=_bare(made.rule))
    return functools.partial(made.func, **made.keywords) if isinstance(made, functools.partial) else made


# --- the batch -------------------------------------------------------------------------------------------------------

# group, correct, chain, format, any answer, tokens, truncated: a mixed group with a cut answer and one without a score,
# a mixed group with an empty answer, an all-right group, a single answer, an all-wrong group, a nearly
# solved group, an empty answer alone.
ANSWERS = [
    (4, True, True, True, True, 5, False),
    (7, False, False, True, True, 2, False),
    (4, False, False, False, False, 7, True),
    (7, True, False, True, True, 4, False),
    (9, True, True, True, True, 3, False),
    (9, True, True, True, True, 6, False),
    (4, None, False, False, False, 1, False),
    (2, True, True, True, True, 4, False),
    (7, False, False, False, False, 0, False),
    (4, True, False, True, True, 3, True),
    (11, False, False, False, True, 2, False),
    (11, False, False, True, False, 5, False),
    (5, True, True, True, True, 3, False),
    (5, True, False, True, True, 1, False),
    (5, False, False, False, False, 2, False),
    (5, True, True, True, True, 2, False),
    (5, True, True, True, True, 4, False),
    (5, True, True, True, True, 2, False),
    (13, False, False, False, False, 0, False),
]
N = len(ANSWERS)
# By answer, for the batches in which the tokens of an answer moved alike: each of them under either sign of advantage.
LOG_RATIOS = [0.22, 1.5, 1.5, 0.22, 0.1, -0.1, 0.0, 0.22, 0.0, -0.9, 0.1, 0.22, 0.22, -0.9, 0.22, 0.1, -0.1, 1.5, 0.0]
TABLES = ("sampler", "recomputed", "reference", "new", "synchronised", "entropies")


def random_batch(seed: int = 0, width: int = WIDTH, gap: float | None = None) -> dict:
    """The answers above, off policy by tenths of a nat per token, by answer, or by little (seed 0, 1, 2; 3 is like 0).

    No number stands at padding.

    gap: size of every log-ratio instead, in nats, of both signs in every row.
    """
    return dict(_random_batch(seed, width, gap))


@functools.cache
def _random_batch(seed: int, width: int, gap: float | None) -> dict:
    generator = torch.Generator().manual_seed(seed)
    group, correct, chain, form, offered, lengths, truncated = map(list, zip(*ANSWERS, strict=True))
    lengths = torch.tensor(lengths)
    mask = torch.arange(width) < lengths[:, None]

    def noise(size: float) -> Tensor:
        return size * torch.randn(N, width, generator=generator, dtype=torch.float64)

    old = -1 - noise(2.0).abs()
    new = old + noise(0.8).clamp(-2.5, 2.5)
    new[0, 0] = old[0, 0] + math.log(1.24)  # with A > 0: between the usual upper clip and the raised one
    new[2, 0] = old[2, 0] + math.log(4.5)  # with A < 0: above the bounds that dual clip and delta set
    new[9, :3] = old[9, :3] + torch.tensor([-2.5, -1.0, 1.0])  # with A < 0: an answer that the policy has left
    if seed % 3 == 1:  # ratios that are alike within an answer, for options that look at whole answers
        new = old + torch.tensor(LOG_RATIOS)[:, None] + noise(0.01)
    elif seed % 3 == 2:  # small ones, for narrow bands
        new = old + noise(0.003)
    tables = {
        "sampler": old + noise(0.6),
        "recomputed": old,
        "reference": old + noise(1.0),
        "new": new,
        "synchronised": old + noise(1.0),
        "entropies": noise(1.0).abs(),
    }
    if gap is not None:
        sign = torch.ones(N, width, dtype=torch.float64)
        sign[::3, ::2] = sign[1::3, 1::2] = -1
        for name in ("sampler", "recomputed", "reference"):
            tables[name] = torch.where(sign > 0, -0.5 - gap, -0.5)
        tables["new"] = torch.where(sign > 0, -0.5, -0.5 - gap)
    grades = [
        Grade(correct=c, format=f, answer=None, chain=h, fillers=0, any_answer=a)
        for c, h, f, a in zip(correct, chain, form, offered, strict=True)
    ]
    ends = [sorted({n // 3, n - 1}) if n else [] for n in lengths.tolist()]
    scores = torch.rand(N, 2, generator=generator, dtype=torch.float64).tolist()
    nothing = {"new": -math.inf, "sampler": -math.inf, "reference": -math.inf}
    return {name: torch.where(mask, table, nothing.get(name, math.nan)) for name, table in tables.items()} | {
        "mask": mask,
        "lengths": lengths,
        "truncated": torch.tensor(truncated),
        "group": torch.tensor(group),
        "grades": grades,
        "texts": ["x" * n for n in lengths.tolist()],
        "step_ends": ends,
        "step_rewards": [row[: len(end)] for row, end in zip(scores, ends, strict=True)],
    }


def at_first_update(batch: dict, cfg: dict[str, Any]) -> dict:
    """The same batch before the first update: the policy is the old one, up to another order of summation."""
    old = batch["recomputed" if cfg["rollout"]["recompute_logp"] else "sampler"]
    sign = torch.ones_like(old)
    sign[::2, ::2] = sign[1::2, 1::2] = -1
    return batch | {"new": old + 1e-11 * sign}


def wider(batch: dict, columns: int = 3) -> dict:
    """The same answers with more padding on the right."""
    more = {name: torch.nn.functional.pad(batch[name], (0, columns), value=-math.inf) for name in TABLES}
    return batch | more | {"mask": torch.nn.functional.pad(batch["mask"], (0, columns), value=False)}


# --- the objective ---------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    loss: float
    gradient: Tensor  # by the current log-probabilities, (N, T)
    entropy_gradient: Tensor  # by the entropies, (N, T)
    batch: dict  # with rewards, advantage, advantages, kept, counted


class Fixed:
    """A policy that answers with a table of log-probabilities and entropies, told by row number."""

    def __init__(self, logp: Tensor, entropies: Tensor):
        self.logp, self.entropies = logp, entropies

    def token_logp(self, prompt_ids, prompt_mask, ids, mask, *, temperature):
        rows = prompt_ids[:, 0]
        return self.logp[rows], self.entropies[rows]


def prepared(batch: dict, cfg: dict[str, Any], knobs: grpo.Knobs) -> dict:
    """The update batch, with rewards and advantages, by the code that trains."""
    if "parts" not in batch:
        generator = torch.Generator().manual_seed(SPOILED)
        parts, part_weights = reward_parts(knobs.reward, batch | {"generator": generator})
        batch = batch | {"parts": parts, "part_weights": part_weights}
    if hasattr(knobs.baseline, "state_dict"):
        knobs.baseline(torch.ones(4))  # an earlier batch, for baselines that remember
    total = grpo.total_rewards(batch["parts"], batch["part_weights"], knobs.transform, batch["truncated"])
    batch = batch | {"kept": grpo.call(knobs.keep.rule, {"rewards": total, "group": batch["group"]})}
    rows = torch.arange(len(total))[:, None]
    batch |= {"prompt_ids": rows, "prompt_mask": rows >= 0, "ids": torch.zeros_like(batch["mask"], dtype=torch.long)}
    batch["logp_sampler"] = batch["sampler"]
    old, reference = Fixed(batch["recomputed"], batch["entropies"]), Fixed(batch["reference"], batch["entropies"])
    state = SimpleNamespace(policy=old, reference=reference, knobs=knobs)
    ready = grpo.prepare(
        SimpleNamespace(tensors=batch), state, cfg["beta"], 1.0, cfg["rollout"]["recompute_logp"], False, 64
    )
    for measured in MEASURED:
        knobs.entropy.update(measured)
    return ready


def evaluate(batch: dict, cfg: dict[str, Any], splits=None, dtype: torch.dtype = torch.float64) -> Result:
    """Loss and gradients of a config over a batch, in one piece or in the given lists of rows."""
    knobs = build(cfg)
    batch = batch | {name: batch[name].to(dtype) for name in TABLES}
    ready = prepared(batch, cfg, knobs)
    new, entropies = batch["new"].clone().requires_grad_(), batch["entropies"].clone().requires_grad_()
    ready = grpo.select_across(ready, knobs, {"logp": lambda: new.detach()})
    weights = grpo.weights(ready["masks"], ready["counted"], ready["group"], knobs)
    total = 0.0
    for piece in splits or [range(len(new))]:
        rows = torch.tensor(list(piece))
        micro, weight = grpo.select(ready, rows), grpo.Weights(*(each[rows] for each in weights))
        value, _ = grpo.loss(new[rows], entropies[rows], micro, knobs, weight, cfg["beta"])
        if value.requires_grad:
            value.backward()
        total += value.item()
    gradients = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (new, entropies))
    return Result(total, *gradients, ready)
