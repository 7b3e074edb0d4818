"""One decoder layer of the Llama make on a transformers module's own parameters, for packed tokens: RMSNorm, rotary
positions, grouped-query attention and a gated MLP.

The arithmetic is transformers' own, so the numbers agree with its forward to rounding; what differs is that fewer and
larger operations do it.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ablations.policy.packing import Block, Packing


class Layer(NamedTuple):
    """One decoder layer as plain tensors (weight, bias). Parallel products are joined: one call computes queries, keys
    and values, one gate and up. Rows are ordered so that the two numbers of every rotated pair come out next to each
    other in queries and keys, which leaves their products as they are. heads counts the key and value heads, size is
    that of a head."""

    before_attention: nn.Module
    qkv: tuple[Tensor, Tensor | None]
    norms: tuple[nn.Module, nn.Module] | None  # of each head's queries and keys, in the families that have them
    out: tuple[Tensor, Tensor | None]
    before_mlp: nn.Module
    gate_up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]
    act: Callable[[Tensor], Tensor]
    heads: int
    size: int


def layers_of(model: PreTrainedModel) -> list[Layer]:
    """The layers, from the current parameters; gradients flow back to them."""
    layers = []
    for layer in model.model.layers:
        a, m = layer.self_attn, layer.mlp
        norms = (a.q_norm, a.k_norm) if hasattr(a, "q_norm") else None
        paired = None if norms else a.head_dim
        layers.append(
            Layer(
                before_attention=layer.input_layernorm,
                qkv=_join(_part(a.q_proj, paired), _part(a.k_proj, paired), _part(a.v_proj)),
                norms=norms,
                out=_part(a.o_proj),
                before_mlp=layer.post_attention_layernorm,
                gate_up=_join(_part(m.gate_proj), _part(m.up_proj)),
                down=_part(m.down_proj),
                act=m.act_fn,
                heads=a.k_proj.out_features // a.head_dim,
                size=a.head_dim,
            )
        )
    return layers


def _part(layer: nn.Linear, size: int | None = None) -> tuple[Tensor, Tensor | None]:
    weight, bias = layer.weight, layer.bias
    return (weight, bias) if size is None else (_pairs(weight, size), None if bias is None else _pairs(bias, size))


def _pairs(rows: Tensor, size: int) -> Tensor:
    """Rows (H * h, ...) reordered within each head so that i and i + h / 2, which rotate together, are neighbours."""
    return rows.unflatten(0, (-1, 2, size // 2)).transpose(1, 2).flatten(0, 2)


def _join(*parts: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    weights, biases = zip(*parts, strict=True)
    return torch.cat(weights), None if biases[0] is None else torch.cat(biases)


def packed_hidden(model: PreTrainedModel, layers: list[Layer], packing: Packing, attend: Callable) -> Tensor:
    """The last layer's output (M, d) for the packed tokens, before the final norm."""
    x = model.model.embed_tokens(packing.tokens)
    turns = rotary(model, packing.positions, x)
    run = run_layer
    if torch.is_grad_enabled() and model.is_activation_checkpointing:
        run = functools.partial(checkpoint, run_layer, use_reentrant=False)
    for i, layer in enumerate(layers):
        x = run(layer, x, turns, lambda q, k, v, i=i: attend(i, q, k, v))
    return x


def rotary(model: PreTrainedModel, positions: Tensor, like: Tensor) -> Tensor:
    """cos + i sin (M, 1, h / 2) of the angles at positions (M,), one for each pair."""
    like = like if like.dtype == torch.float64 else like.float()  # there are no complex numbers of 16 bits
    cos, sin = (part[0, :, None, : part.shape[-1] // 2] for part in model.model.rotary_emb(like, positions[None]))
    return torch.complex(cos, sin)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """x (M, H, h), pairs adjacent, turned by `turns` (M, 1, h / 2): one complex product, a third of the price of
    x * cos + rotate_half(x) * sin."""
    full = x if turns.dtype == torch.complex128 else x.float()
    pairs = torch.view_as_complex(full.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def run_layer(layer: Layer, x: Tensor, turns: Tensor, attend: Callable) -> Tensor:
    """One decoder layer on tokens x (M, d), of head size h. Tokens mix only in attend(q (M, H, h), k and v (M, KV, h)),
    which returns (M, H * h)."""
    kv = layer.heads
    qkv = linear(norm(layer.before_attention, x), *layer.qkv).view(len(x), -1, layer.size)
    qk, v = qkv.split((qkv.shape[1] - kv, kv), 1)
    if layer.norms is not None:  # a norm rounds by the order of what it adds up, so pairs come together after it
        qk = torch.cat([norm(n, part) for n, part in zip(layer.norms, (qk[:, :-kv], qk[:, -kv:]), strict=True)], 1)
        qk = qk.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    q, k = rotated(qk, turns).split((qk.shape[1] - kv, kv), 1)
    x = plus(x, attend(q, k, v), *layer.out)
    gate, up = linear(norm(layer.before_mlp, x), *layer.gate_up).chunk(2, -1)
    return plus(x, layer.act(gate) * up, *layer.down)


def plus(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + linear(y): the product adds to the residual stream as it is computed, but under autocast, which would make
    the stream one of 16 bits."""
    if torch.is_autocast_enabled(x.device.type):
        return x + linear(y, weight, bias)
    total = torch.addmm(x, y, weight.t())
    return total if bias is None else total + bias


def norm(module: nn.Module, x: Tensor) -> Tensor:
    """RMSNorm. transformers normalises in float32 whatever the model's type, and only its module rounds so; in float32
    there are cheaper ways to the same thing."""
    if x.dtype != torch.float32:
        return module(x)
    if torch.is_grad_enabled():
        return Norm.apply(x, module.weight, module.variance_epsilon)
    return rms_norm(x, module.weight.shape, module.weight, module.variance_epsilon)


class Norm(torch.autograd.Function):
    """y = x / rms(x) * gain with the gradient by hand: half the passes over memory that autograd makes of it.

    With u = x / rms(x) of d numbers, du/dx gives (g - u (g u) / d) / rms(x) for a gradient g of u.
    """

    @staticmethod
    def forward(ctx, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, inverse)
        return (x * inverse).mul_(gain)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, gain, inverse = ctx.saved_tensors
        unit = x * inverse
        by_gain = (grad * unit).flatten(0, -2).sum(0)
        grad = grad * gain
        along = torch.linalg.vecdot(grad, unit)[..., None].div_(x.shape[-1])
        return grad.addcmul_(unit, along, value=-1).mul_(inverse), by_gain, None


def attend_to(blocks: list[Block]) -> Callable:
    """Attention of packed tokens, rectangle by rectangle."""
    biases: list[Tensor] = []

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, kv, size = q.shape[1], k.shape[1], q.shape[2]
        if not biases:
            zero = torch.zeros((), dtype=q.dtype, device=q.device)
            biases.extend(torch.where(block.allowed, zero, -torch.inf) for block in blocks)
        # `embedding` gathers rows with a far faster gradient on CPU than indexing.
        queries, pairs = q.flatten(1), torch.cat((k, v), 1).flatten(1)
        outputs = []
        for block, bias in zip(blocks, biases, strict=True):
            query = embedding(block.queries, queries).unflatten(-1, (heads, size)).transpose(1, 2)
            pair = embedding(block.keys, pairs).unflatten(-1, (2 * kv, size)).transpose(1, 2)
            key, value = pair.split(kv, 1)
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=heads != kv)
            outputs.append(embedding(block.real, mixed.transpose(1, 2).flatten(2).flatten(0, 1)))
        return torch.cat(outputs)

    return attend
