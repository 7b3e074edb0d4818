"""The Llama forward on a transformers module's own parameters: packed for training, with a cache for sampling.

The arithmetic is transformers' own (its norm, rotary and activation modules are called), so the numbers agree with its
forward to rounding; what differs is that no work is done on padding, on repeated prompts or on finished answers.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad, rms_norm, scaled_dot_product_attention
from transformers import LlamaForCausalLM

from ablations.policy.packing import Block, Packing, pack, pack_prompts

CACHE_COLUMNS = 16  # the cache grows by this many tokens: attention on a slice of a larger buffer is far slower
ROTARY = {"default", "linear", "llama3"}  # kinds whose angles depend on the position alone, not on the longest sequence


def supports(model: nn.Module) -> bool:
    """Whether the functions here compute what `model` computes."""
    return type(model) is LlamaForCausalLM and model.config.rope_parameters["rope_type"] in ROTARY


def answer_logits(model: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """The logits (K, V) that predict the K real answer tokens, in the order of ids[mask]; differentiable.

    prompt_ids, prompt_mask: (N, P), left-padded. ids, mask: (N, T).
    """
    packing = pack(prompt_ids, prompt_mask, ids, mask)
    x = packed_hidden(model, layers_of(model), packing, _attend_to(packing.blocks))
    return model.lm_head(_norm(model.model.norm, embedding(packing.predicts, x)))


class Layer(NamedTuple):
    """One decoder layer as plain tensors (weight, bias). Parallel products are joined: one call computes queries, keys
    and values, one gate and up. heads counts the key and value heads, size is that of a head."""

    before_attention: nn.Module
    qkv: tuple[Tensor, Tensor | None]
    out: tuple[Tensor, Tensor | None]
    before_mlp: nn.Module
    gate_up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]
    act: Callable[[Tensor], Tensor]
    heads: int
    size: int


def layers_of(model: LlamaForCausalLM) -> list[Layer]:
    """The layers, from the current parameters; gradients flow back to them."""
    layers = []
    for layer in model.model.layers:
        a, m = layer.self_attn, layer.mlp
        layers.append(
            Layer(
                layer.input_layernorm,
                _join(a.q_proj, a.k_proj, a.v_proj),
                _join(a.o_proj),
                layer.post_attention_layernorm,
                _join(m.gate_proj, m.up_proj),
                _join(m.down_proj),
                m.act_fn,
                a.k_proj.out_features // a.head_dim,
                a.head_dim,
            )
        )
    return layers


def _join(*parts: nn.Linear) -> tuple[Tensor, Tensor | None]:
    if len(parts) == 1:
        return parts[0].weight, parts[0].bias
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return torch.cat([part.weight for part in parts]), bias


def packed_hidden(model: LlamaForCausalLM, layers: list[Layer], packing: Packing, attend: Callable) -> Tensor:
    """The last layer's output (M, d) for the packed tokens, before the final norm."""
    x = model.model.embed_tokens(packing.tokens)
    cos, sin = rotary(model, packing.positions, x)
    for i, layer in enumerate(layers):
        x = run_layer(layer, x, cos, sin, lambda q, k, v, i=i: attend(i, q, k, v))
    return x


def rotary(model: LlamaForCausalLM, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and signed sin (M, 1, h) at positions (M,): x * cos + roll(x, h / 2) * sin turns the pairs (i, i + h / 2)."""
    cos, sin = model.model.rotary_emb(like, positions[None])
    first, second = sin[0].chunk(2, -1)
    return cos[0, :, None], torch.cat((-first, second), -1)[:, None]


def run_layer(layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, attend: Callable) -> Tensor:
    """One decoder layer on tokens x (M, d), of head size h. Tokens mix only in attend(q (M, H, h), k and v (M, KV, h)),
    which returns (M, H * h)."""
    kv = layer.heads
    qkv = linear(_norm(layer.before_attention, x), *layer.qkv).view(len(x), -1, layer.size)
    qk, v = qkv[:, :-kv], qkv[:, -kv:]
    qk = torch.addcmul(qk * cos, qk.roll(layer.size // 2, -1), sin)
    x = x + linear(attend(qk[:, :-kv], qk[:, -kv:], v), *layer.out)
    gate, up = linear(_norm(layer.before_mlp, x), *layer.gate_up).chunk(2, -1)
    return x + linear(layer.act(gate) * up, *layer.down)


def _norm(module: nn.Module, x: Tensor) -> Tensor:
    # transformers normalises in float32 whatever the model's type, and only its module rounds so; in float32 the
    # fused function is the same thing at half the price.
    if x.dtype == torch.float32:
        return rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)
    return module(x)


def _attend_to(blocks: list[Block]) -> Callable:
    """Attention of packed tokens, rectangle by rectangle."""
    biases: list[Tensor] = []

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, kv, size = q.shape[1], k.shape[1], q.shape[2]
        if not biases:
            zero = torch.zeros((), dtype=q.dtype, device=q.device)
            biases.extend(torch.where(block.allowed, zero, -torch.inf) for block in blocks)
        # `embedding` gathers rows with a far faster gradient on CPU than indexing; the added last row is what padding
        # reads.
        queries = pad(q.flatten(1), (0, 0, 0, 1))
        pairs = pad(torch.cat((k, v), 1).flatten(1), (0, 0, 0, 1))
        outputs = []
        for block, bias in zip(blocks, biases, strict=True):
            query = embedding(block.queries, queries).unflatten(-1, (heads, size)).transpose(1, 2)
            pair = embedding(block.keys, pairs).unflatten(-1, (2 * kv, size)).transpose(1, 2)
            key, value = pair[:, :kv], pair[:, kv:]
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=heads != kv)
            outputs.append(embedding(block.real, mixed.transpose(1, 2).flatten(2).flatten(0, 1)))
        return torch.cat(outputs)

    return attend


class Decoder:
    """Next-token logits, one token per row and call, with cached keys and values."""

    def __init__(self, model: LlamaForCausalLM):
        self.model, self.layers = model, layers_of(model)
        self.keys: list[Tensor] = []  # per layer (n, KV, h, C): ready for the product with the query
        self.values: list[Tensor] = []  # per layer (n, KV, C, h)

    def prompt(self, prompt_ids: Tensor, prompt_mask: Tensor, rows: Tensor, columns: int) -> Tensor:
        """Read U distinct prompts (U, P), left-padded, and give their state to n answers, the prompt of each in rows
        (n,).

        columns: how many tokens the answers may grow to. -> logits (n, V) of their first tokens.
        """
        packing = pack_prompts(prompt_ids, prompt_mask)
        (block,) = packing.blocks
        attend_packed = _attend_to([block])

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cached = pad(torch.cat((k, v), 1), (0, 0, 0, 0, 0, 1))[block.keys][rows]  # (n, P, 2 KV, h)
            self.keys.append(cached[:, :, : k.shape[1]].permute(0, 2, 3, 1).contiguous())
            self.values.append(cached[:, :, k.shape[1] :].transpose(1, 2).contiguous())
            return attend_packed(i, q, k, v)

        x = packed_hidden(self.model, self.layers, packing, attend)
        width = prompt_ids.shape[1]
        self.used, self.capacity = width, width
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        self.bias = torch.where(prompt_mask[rows], zero, -torch.inf)[:, None, None, :]
        self.position = prompt_mask.sum(1)[rows]
        self.cos, self.sin = rotary(self.model, torch.arange(width + columns, device=x.device), x)
        return self._logits(x[packing.predicts])[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token (n,) to every row -> logits (n, V) of the next."""
        if self.used == self.capacity:
            self._grow()
        self.bias[..., self.used] = 0.0
        x = self.model.model.embed_tokens(tokens)
        cos, sin = self.cos[self.position], self.sin[self.position]
        for i, layer in enumerate(self.layers):
            x = run_layer(layer, x, cos, sin, lambda q, k, v, i=i: self._attend(i, q, k, v))
        self.used += 1
        self.position = self.position + 1
        return self._logits(x)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows (m,) only."""
        # index_select: several times faster than self.keys[i][rows] on CPU
        self.keys = [key.index_select(0, rows) for key in self.keys]
        self.values = [value.index_select(0, rows) for value in self.values]
        self.bias, self.position = self.bias[rows], self.position[rows]

    def _attend(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[i], self.values[i]
        keys[..., self.used] = k
        values[:, :, self.used] = v
        n, heads, size = q.shape
        q = q.view(n, k.shape[1], -1, size) * size**-0.5
        return torch.matmul(torch.softmax(torch.matmul(q, keys) + self.bias, -1), values).view(n, heads * size)

    def _grow(self) -> None:
        self.keys = [pad(key, (0, CACHE_COLUMNS)) for key in self.keys]
        self.values = [pad(value, (0, 0, 0, CACHE_COLUMNS)) for value in self.values]
        self.bias = pad(self.bias, (0, CACHE_COLUMNS), value=-torch.inf)
        self.capacity += CACHE_COLUMNS

    def _logits(self, x: Tensor) -> Tensor:
        return self.model.lm_head(_norm(self.model.model.norm, x))
