"""A batch and the loss over it, for the tests of the rooms between advantage and loss.

Options come from conf/, as a run takes them.
"""

import functools
import math
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ablations.knobs.call import call
from ablations.knobs.tokens import Masks

CONF = Path(__file__).parent.parent / "conf"
RUN = {"seed": 3, "rollout": {"max_new_tokens": 10}}  # what the options' yaml may refer to
DEFAULTS = {
    "tokens": "all",
    "ratio": "token",
    "surrogate": "ppo_clip",
    "correction": "none",
    "kl": "k3",
    "aggregate": "sequence_mean",
    "entropy": "none",
}
TABLES = ("mask", "logp", "logp_old", "logp_ref", "logp_sampler", "entropies", "advantages", "chosen")  # (N, T)


def options_of(room: str) -> list[str]:
    return sorted(path.stem for path in (CONF / room).glob("*.yaml"))


@functools.cache
def _config(room: str, option: str):
    return OmegaConf.create({**RUN, room: OmegaConf.load(CONF / room / f"{option}.yaml")})[room]


def load(room: str, option: str, **changes):
    """The knob of conf/<room>/<option>.yaml, with some of its settings changed."""
    return instantiate(_config(room, option), **changes)


@functools.cache
def _default(room: str):
    return load(room, DEFAULTS[room])


def random_batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> dict:
    """6 answers of 5, 2, 0, 4, 1 and 3 tokens in 3 groups, in no order, about a nat per token old; -inf at padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths, width = torch.tensor([5, 2, 0, 4, 1, 3]), 5
    mask = torch.arange(width) < lengths[:, None]

    def noise(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old = -3 - noise(6, width).abs()
    log_ratio = noise(6, width).clamp(-2.5, 2.5)
    log_ratio[0, 1] = math.log(1.1)  # with A > 0: above a clip for the ratios of whole answers, below one for tokens
    log_ratio[0, 0] = math.log(1.24)  # with A > 0: between the usual upper clip and the raised one
    log_ratio[3, 0] = math.log(4.5)  # with A < 0: above the bounds that dual clip and delta set
    log_ratio[5, :3] = torch.tensor(
        [-2.5, -1.0, 1.0]
    )  # with A < 0: an answer that the policy has left, but for one token
    batch = {
        "mask": mask,
        "logp_old": old,
        "logp": old + log_ratio,
        "logp_ref": old + noise(6, width),
        "logp_sampler": old + noise(6, width),
        "entropies": noise(6, width).abs(),
    }
    batch = {name: value if name == "mask" else padded(value, mask).to(dtype) for name, value in batch.items()}
    advantage = torch.tensor([1.5, -1.0, 0.7, -2.0, 0.5, -0.3], dtype=torch.float64)
    return batch | {
        "advantages": torch.where(mask, advantage[:, None], 0.0),
        "rewards": torch.tensor([1.0, 0.0, 1.0, -1.0, 0.5, 0.0], dtype=torch.float64),
        "group": torch.tensor([4, 7, 4, 7, 9, 9]),
        "truncated": torch.tensor([True, False, False, False, False, False]),
        "counted": torch.ones(6, dtype=torch.bool),
    }


def padded(values, mask):
    return torch.where(mask, values, -math.inf)


def extreme_batch(dtype: torch.dtype, direction: float = 1.0) -> dict:
    """`random_batch` with log-ratios of +-100 to old policy, reference and sampler: rows of one sign and of both."""
    batch = random_batch(dtype=dtype)
    sign = torch.ones(6, 5)
    sign[3] = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0])
    mask, high, low = batch["mask"], torch.tensor(-0.5, dtype=dtype), torch.tensor(-100.5, dtype=dtype)
    up, down = torch.where(sign * direction > 0, high, low), torch.where(sign * direction > 0, low, high)
    return (
        batch | {"logp": padded(up, mask)} | {n: padded(down, mask) for n in ("logp_old", "logp_ref", "logp_sampler")}
    )


def on_policy(batch: dict) -> dict:
    return batch | {name: batch["logp"].clone() for name in ("logp_old", "logp_sampler")}


def rows_of(batch: dict, rows) -> dict:
    return {name: value[torch.as_tensor(rows)] for name, value in batch.items()}


def wider(batch: dict, columns: int = 3) -> dict:
    """The same batch with more padding on the right: False in masks, -inf in log-probabilities, 0 in advantages."""
    fill = {"mask": False, "chosen": False, "advantages": 0.0}
    return batch | {
        name: torch.nn.functional.pad(batch[name], (0, columns), value=fill.get(name, -math.inf))
        for name in TABLES
        if name in batch
    }


def evaluate(batch: dict, splits=None, beta: float = 0.3, **choice):
    """The loss of the rooms' defaults but for `choice` (room=option or a knob), and its gradients in logp, entropies.

    Masks, weights and choices across the batch come from the whole of it; `splits` are lists of rows, one per piece.
    """
    knobs = {room: _default(room) for room in DEFAULTS}
    knobs |= {room: load(room, knob) if isinstance(knob, str) else knob for room, knob in choice.items()}
    masks = Masks(*[batch["mask"]] * 4)
    for rule in knobs["tokens"].values():
        masks = call(rule, batch | {"masks": masks})
    weight = call(knobs["aggregate"], batch | {"mask": masks.denominator})
    if hasattr(knobs["surrogate"], "choose") and "chosen" not in batch:
        batch = batch | {"chosen": call(knobs["surrogate"].choose, batch)}
    knobs["entropy"].update(0.0)
    knobs["entropy"].update(0.0)  # an adaptive coefficient starts at 0
    logp = batch["logp"].clone().requires_grad_()
    entropies = batch["entropies"].clone().requires_grad_()
    total = 0.0
    for rows in splits or [range(len(logp))]:
        rows = torch.tensor(list(rows))
        part = rows_of(batch, rows) | {"logp": logp[rows]}
        part["ratio"] = call(knobs["ratio"], part)
        kl_values = part | {"logp": torch.where(part["mask"], part["logp"], 0.0)}
        policy = call(knobs["surrogate"], part) * call(knobs["correction"], part)
        loss = weighted(weight[rows], masks.policy[rows], policy)
        loss = loss + beta * weighted(weight[rows], masks.kl[rows], call(knobs["kl"], kl_values))
        loss = loss - knobs["entropy"].coefficient * weighted(weight[rows], masks.entropy[rows], entropies[rows])
        loss.backward()
        total += loss.item()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in (logp, entropies)]
    return total, *gradients


def weighted(weight, mask, term):
    return torch.where(mask & (weight != 0), weight * term, 0.0).sum()


def close(actual, expected, tolerance=1e-12):
    actual, expected = (torch.as_tensor(each, dtype=torch.float64) for each in (actual, expected))
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
