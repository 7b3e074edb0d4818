"""What a policy needs through transformers' own forward: for causal language models without a faster way."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer


def answer_logits(model: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """The logits (K, V) that predict the K real answer tokens, in the order of ids[mask]; differentiable.

    prompt_ids, prompt_mask: (N, P), left-padded. ids, mask: (N, T). Positions count real tokens, so padding moves
    nothing.
    """
    real = torch.cat((prompt_mask, mask), 1).long()
    with _recomputed(model):
        logits = model(
            input_ids=torch.cat((prompt_ids, ids), 1),
            attention_mask=real,
            position_ids=(real.cumsum(1) - 1).clamp_min(0),
            logits_to_keep=ids.shape[1] + 1,
            use_cache=False,
        ).logits
    return logits[:, :-1][mask]


@contextlib.contextmanager
def _recomputed(model: nn.Module) -> Iterator[None]:
    """Gradient checkpointing, where it was asked for and a gradient is. transformers does it in training mode alone,
    which would switch dropout on as well; the flag of the layers themselves is all that it looks at."""
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    layers = layers if torch.is_grad_enabled() and any(layer.gradient_checkpointing for layer in layers) else []
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


class Decoder:
    """Next-token logits with transformers' own cache; the arguments are those of ablations.policy.llama.Decoder."""

    def __init__(self, model: nn.Module):
        self.model, self.cache = model, DynamicCache(config=model.config)

    def prompt(self, prompt_ids: Tensor, prompt_mask: Tensor, rows: Tensor, columns: int) -> Tensor:
        logits = self._forward(prompt_ids, prompt_mask.long(), (prompt_mask.long().cumsum(1) - 1).clamp_min(0))
        self.cache.batch_select_indices(rows)
        self.real = prompt_mask.long()[rows]
        return logits[rows]

    def step(self, tokens: Tensor) -> Tensor:
        self.real = torch.cat((self.real, torch.ones_like(self.real[:, :1])), 1)
        return self._forward(tokens[:, None], self.real, self.real.sum(1, keepdim=True) - 1)

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.real = self.real[rows]

    def _forward(self, ids: Tensor, real: Tensor, positions: Tensor) -> Tensor:
        return self.model(
            input_ids=ids,
            attention_mask=real,
            position_ids=positions,
            cache=self.cache,
            logits_to_keep=1,
            use_cache=True,
        ).logits[:, -1]
