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
SHARED_FROM = 2**22  # bytes that copies of the prompts' keys and values would have; a core's cache holds about as much
BATCHED_FROM = 400  # multiply-adds: below it torch multiplies a batch of matrices one by one on CPU

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
    """Next-token logits, one token per row and call, with cached keys and values.

    Reading the cache is what a step waits for once it no longer fits the processor's: the answers of a group then read
    their prompt's part together. A small one is copied to every answer, which needs fewer operations.
    """

    def __init__(self, model: PreTrainedModel):
        self.model, self.layers = model, layers_of(model)
        self.heads, self.size = self.layers[0].heads, self.layers[0].size  # of keys and values
        self.keys: list[Tensor] = []  # per layer (n * KV, h, C): ready for the product with the query
        self.values: list[Tensor] = []  # per layer (n * KV, C, h)
        self.prompts: list[tuple[Tensor, Tensor]] = []  # per layer (U * KV, h, P) and (U * KV, P, h), if shared

    def prompt(self, prompt_ids: Tensor, prompt_mask: Tensor, rows: Tensor, columns: int) -> Tensor:
        """Read U distinct prompts (U, P), left-padded, and give their state to n answers, the prompt of each in rows
        (n,).

        columns: how many tokens the answers may grow to. -> logits (n, V) of their first tokens.
        """
        packing = pack_prompts(prompt_ids, prompt_mask)
        (block,) = packing.blocks
        attend_packed = attend_to([block])
        width, n = prompt_ids.shape[1], len(rows)
        copied = 2 * n * width * self.heads * self.size * len(self.layers) * self.model.lm_head.weight.itemsize
        shared = copied > SHARED_FROM and n >= 2 * len(prompt_ids)

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cached = torch.cat((k, v), 1)[block.keys]  # (U, P, 2 KV, h)
            key, value = cached[:, :, : self.heads].permute(0, 2, 3, 1), cached[:, :, self.heads :].transpose(1, 2)
            if shared:
                self.prompts.append((key.flatten(0, 1).contiguous(), value.flatten(0, 1).contiguous()))
                key, value = key[:1, ..., :0].expand(n, -1, -1, -1), value[:1, :, :0].expand(n, -1, -1, -1)
            else:
                key, value = key[rows], value[rows]
            self.keys.append(key.flatten(0, 1).contiguous())
            self.values.append(value.flatten(0, 1).contiguous())
            return attend_packed(i, q, k, v)

        x = packed_hidden(self.model, self.layers, packing, attend)
        self.apart = width if shared else 0  # columns of the scores that belong to shared prompts
        self.used = self.capacity = width - self.apart
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        self.bias = torch.where(prompt_mask[rows], zero, -torch.inf)[:, None, :]
        self.position = prompt_mask.sum(1)[rows]
        self.turns = rotary(self.model, torch.arange(width + columns, device=x.device), x)
        self.group = rows
        self._place()
        return self._logits(x[packing.predicts])[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token (n,) to every row -> logits (n, V) of the next."""
        if self.used == self.capacity:
            self._grow()
        self.bias[..., self.apart + self.used] = 0.0
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
        self.bias, self.position, self.group = self.bias[rows], self.position[rows], self.group[rows]
        self._place()

    def _attend(self, i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[i], self.values[i]
        keys[..., self.used] = k.reshape(-1, self.size)
        values[:, self.used] = v.reshape(-1, self.size)
        n, heads, size = q.shape
        q = q * size**-0.5
        scores = torch.bmm(q.reshape(len(keys), -1, size), keys).view(n, heads, -1)
        if self.apart:
            scores = torch.cat((self._by_row(torch.bmm(self._by_group(q), self.prompts[i][0])), scores), -1)
        p = torch.softmax(scores.add_(self.bias), -1)
        mixed = torch.bmm(p[..., self.apart :].reshape(len(keys), -1, self.capacity), values).view(n, heads, size)
        if self.apart:
            mixed += self._by_row(torch.bmm(self._by_group(p[..., : self.apart]), self.prompts[i][1]))
        return mixed.view(n, -1)

    def _place(self) -> None:
        """Where the rows stand when the groups are laid side by side, each as wide as the largest: their places are
        `slots` (n,), and the rows at the places `filled` (U * width,); at empty ones stands row 0."""
        if not self.apart:
            return
        n, prompts = len(self.group), len(self.prompts[0][0]) // self.heads
        order, counts = self.group.argsort(stable=True), self.group.bincount(minlength=prompts)
        width = int(counts.max())
        before = (counts.cumsum(0) - counts)[self.group[order]]
        slots = torch.empty_like(self.group)
        slots[order] = self.group[order] * width + torch.arange(n, device=slots.device) - before
        filled = torch.zeros(prompts * width, dtype=torch.long, device=slots.device)
        filled[slots] = torch.arange(n, device=slots.device)
        self.width = width
        self.slots, self.filled = (None, None) if torch.equal(filled, slots) else (slots, filled)

    def _by_group(self, x: Tensor) -> Tensor:
        """Rows (n, H, w) -> (U * KV, width * H / KV, w): what meets one prompt's keys or values, as one matrix."""
        x = x if self.filled is None else x.index_select(0, self.filled)
        x = x.reshape(-1, self.width, self.heads, x.shape[1] // self.heads, x.shape[2])
        return x.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _by_row(self, x: Tensor) -> Tensor:
        """The way back: (U * KV, width * H / KV, w) -> (n, H, w)."""
        x = x.view(-1, self.heads, self.width, x.shape[1] // self.width, x.shape[2])
        x = x.transpose(1, 2).flatten(2, 3).flatten(0, 1)
        return x if self.slots is None else x.index_select(0, self.slots)

    def _grow(self) -> None:
        """Room for an eighth more tokens. What is in the new columns is masked, but must be finite."""
        few = -(-BATCHED_FROM // self.size) if not self.capacity else 0  # torch multiplies smaller matrices one by one
        more = -(-max(few, self.capacity // 8, 1) // CACHE_COLUMNS) * CACHE_COLUMNS
        blank = self.keys[0].new_zeros(len(self.keys[0]) * self.size * more)
        self.keys = [torch.cat((key, blank.view(-1, self.size, more)), 2) for key in self.keys]
        self.values = [torch.cat((value, blank.view(-1, more, self.size)), 1) for value in self.values]
        self.bias = pad(self.bias, (0, more), value=-torch.inf)
        self.capacity += more

    def _logits(self, x: Tensor) -> Tensor:
        return self.model.lm_head(norm(self.model.model.norm, x))
