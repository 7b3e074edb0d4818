"""Models whose layers are those of `layers.py`: packed for training, with a cache for sampling.

No work is done on padding, on repeated prompts or on finished answers.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from ablations.policy.layers import attend_to, layers_of, norm, packed_hidden, rotary, run_layer
from ablations.policy.packing import pack, pack_prompts

CACHE_COLUMNS = 16  # the cache grows by this many tokens: attention on a slice of a larger buffer is far slower
FAMILIES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
ROTARY = {"default", "linear", "llama3"}  # kinds whose angles depend on the position alone, not on the longest sequence


def supports(model: nn.Module) -> bool:
    """Whether the functions here compute what `model` computes."""
    if type(model) not in FAMILIES:
        return False
    rope, kinds = model.config.rope_parameters, getattr(model.config, "layer_types", None) or ()
    whole = rope["rope_type"] in ROTARY and rope.get("partial_rotary_factor", 1.0) == 1.0
    return whole and set(kinds) <= {"full_attention"}


def answer_logits(model: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """The logits (K, V) that predict the K real answer tokens, in the order of ids[mask]; differentiable.

    prompt_ids, prompt_mask: (N, P), left-padded. ids, mask: (N, T).
    """
    packing = pack(prompt_ids, prompt_mask, ids, mask)
    x = packed_hidden(model, layers_of(model), packing, attend_to(packing.blocks))
    return model.lm_head(norm(model.model.norm, embedding(packing.predicts, x)))


class Decoder:
    """One token per row and call; the arguments are those of `ablations.policy.sample.Decoder`."""

    def __init__(self, model: PreTrainedModel):
        self.model, self.layers = model, layers_of(model)
        self.keys: list[Tensor] = []  # per layer (n * KV, h, C): ready for the product with the query
        self.values: list[Tensor] = []  # per layer (n * KV, C, h)

    def prompt(self, prompt_ids: Tensor, prompt_mask: Tensor, rows: Tensor, columns: int) -> Tensor:
        """Read U distinct prompts (U, P), left-padded, and give their state to n answers, the prompt of each in rows
        (n,).

        columns: how many tokens the answers may grow to. -> logits (n, V) of their first tokens.
        """
        packing = pack_prompts(prompt_ids, prompt_mask)
        (block,) = packing.blocks
        attend_packed = attend_to([block])

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cached = pad(torch.cat((k, v), 1), (0, 0, 0, 0, 0, 1))[block.keys][rows]  # (n, P, 2 KV, h)
            self.keys.append(cached[:, :, : k.shape[1]].permute(0, 2, 3, 1).flatten(0, 1).contiguous())
            self.values.append(cached[:, :, k.shape[1] :].transpose(1, 2).flatten(0, 1).contiguous())
            return attend_packed(i, q, k, v)

        x = packed_hidden(self.model, self.layers, packing, attend)
        width = prompt_ids.shape[1]
        self.used, self.capacity = width, width
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        self.bias = torch.where(prompt_mask[rows], zero, -torch.inf)[:, None, :]
        self.position = prompt_mask.sum(1)[rows]
        self.turns = rotary(self.model, torch.arange(width + columns, device=x.device), x)
        return self._logits(x[packing.predicts])[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token (n,) to every row -> logits (n, V) of the next."""
        if self.used == self.capacity:
            self._grow()
        self.bias[..., self.used] = 0.0
        x = self.model.model.embed_tokens(tokens)
        turns = self.turns[self.position]
        for i, layer in enumerate(self.layers):
            x = run_layer(layer, x, turns, lambda q, k, v, i=i: self._attend(i, q, k, v))
        self.used += 1
        self.position = self.position + 1
        return self._logits(x)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows (m,) only."""
        # index_select: several times faster than self.keys[i][rows] on CPU
        n = len(self.position)
        for cache in (self.keys, self.values):
            cache[:] = [c.unflatten(0, (n, -1)).index_select(0, rows).flatten(0, 1) for c in cache]
        self.bias, self.position = self.bias[rows], self.position[rows]

    def _attend(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[i], self.values[i]
        keys[..., self.used] = k.reshape(-1, k.shape[2])
        values[:, self.used] = v.reshape(-1, v.shape[2])
        n, heads, size = q.shape
        scores = torch.bmm((q * size**-0.5).reshape(len(keys), -1, size), keys)
        scores = scores.view(n, heads, -1).add_(self.bias)
        return torch.bmm(torch.softmax(scores, -1).view(len(keys), -1, self.capacity), values).view(n, heads * size)

    def _grow(self) -> None:
        self.keys = [pad(key, (0, CACHE_COLUMNS)) for key in self.keys]
        self.values = [pad(value, (0, 0, 0, CACHE_COLUMNS)) for value in self.values]
        self.bias = pad(self.bias, (0, CACHE_COLUMNS), value=-torch.inf)
        self.capacity += CACHE_COLUMNS

    def _logits(self, x: Tensor) -> Tensor:
        return self.model.lm_head(norm(self.model.model.norm, x))
