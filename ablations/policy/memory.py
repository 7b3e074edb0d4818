"""How much memory training takes, calculated: what has to be chosen before a machine is rented.

    weights + gradients + two Adam moments + the reference + activations of one micro-batch + its logits,
    or, while sampling, the cache of keys and values

all in bytes; the larger of training and sampling counts, since they do not run at once. Kernels' workspaces and the
allocator's fragments come on top; a tenth is usual.
"""

from typing import NamedTuple

from transformers import PreTrainedConfig


class Shape(NamedTuple):
    """What the memory depends on; sizes in numbers."""

    parameters: int
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head: int
    feed_forward: int

    @property
    def matrices(self) -> int:
        """Numbers in the matrices of one layer."""
        attention = (2 * self.heads + 2 * self.key_value_heads) * self.head * self.hidden
        return attention + 3 * self.hidden * self.feed_forward

    @property
    def joined(self) -> int:
        """Numbers of one layer that the fast forward copies to join parallel products: q, k, v, and gate and up."""
        return self.hidden * ((self.heads + 2 * self.key_value_heads) * self.head + 2 * self.feed_forward)


class Bytes(NamedTuple):
    """Of one training run, part by part; `total` is their sum."""

    weights: int
    gradients: int
    moments: int
    reference: int
    activations_or_cache: int
    total: int


def shape_of(config: PreTrainedConfig) -> Shape:
    """The shape of a Llama-like model; embeddings once if they are tied."""
    heads, hidden, layers = config.num_attention_heads, config.hidden_size, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or hidden // heads
    kv, wide, words = config.num_key_value_heads, config.intermediate_size, config.vocab_size
    shape = Shape(0, words, hidden, layers, heads, kv, head, wide)
    tables = 1 if config.tie_word_embeddings else 2
    return shape._replace(parameters=layers * (shape.matrices + 2 * hidden) + hidden + tables * words * hidden)


def activations(shape: Shape, *, tokens: int, recompute: bool, bytes_each: int) -> int:
    """Kept for the backward pass of a micro-batch of `tokens` packed tokens, in the layers and at the head.

    Per token and layer, kept whole: the inputs of two norms and of the four groups of matrix products, what the
    rotation and the attention read and return, and four vectors of the MLP. With recompute: the input of every layer,
    and one layer whole while it is computed again. At the head: the logits, their log-softmax and its exponential, in
    which the entropy is taken, and one gradient of that size.
    """
    whole = layer(shape)
    layers = shape.layers * shape.hidden + whole if recompute else shape.layers * whole
    return bytes_each * (tokens * (layers + 4 * shape.vocabulary) + shape.layers * shape.joined)


def layer(shape: Shape) -> int:
    """Numbers that one layer keeps per token."""
    attention = 4 * shape.heads * shape.head + 6 * shape.key_value_heads * shape.head
    return 4 * shape.hidden + attention + 4 * shape.feed_forward


def training(
    shape: Shape,
    *,
    tokens: int,
    rows: int,
    length: int,
    recompute: bool,
    reference: bool,
    bytes_each: int,
    trained: int | None = None,
) -> Bytes:
    """The most that is in use at once. tokens: of one micro-batch; rows: answers sampled at once, of `length` tokens
    with their prompt; trained: parameters that train, all if not given (an adapter's, for example); reference: whether
    a KL needs a copy of the weights."""
    weights = bytes_each * shape.parameters
    moving = bytes_each * (shape.parameters if trained is None else trained)
    cache = 2 * bytes_each * rows * length * shape.layers * shape.key_value_heads * shape.head
    sampling = cache + 4 * bytes_each * rows * shape.vocabulary
    busy = max(activations(shape, tokens=tokens, recompute=recompute, bytes_each=bytes_each), sampling)
    parts = (weights, moving, 2 * moving, weights if reference else 0, busy)
    return Bytes(*parts, sum(parts))
