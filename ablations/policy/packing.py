"""Answers as one long list of tokens: no padding, and each distinct prompt once however many answers it has.

A padded batch of short answers is mostly padding, and a group repeats its prompt G times. Packed, every matrix product
and every elementwise operation runs on the tokens that exist; only attention needs rectangles, and those are cut by
length.
"""

from typing import NamedTuple

import torch
from torch import Tensor

ROWS_PER_BLOCK = 32  # answers of similar length share a rectangle; smaller blocks waste less area and cost more calls


class Block(NamedTuple):
    """A rectangle of attention. Slots are indices into the packed tokens; padding has slot 0: what it reads is masked.

    queries (n, Tq) and keys (n, Tk) long; allowed (n, 1, Tq, Tk) bool, with at least one key allowed to every query,
    padding included, so that no softmax is empty; real (m,) long: which of the n * Tq flattened queries are packed
    tokens, in their order.
    """

    queries: Tensor
    keys: Tensor
    allowed: Tensor
    real: Tensor


class Packing(NamedTuple):
    """tokens and positions (M,) long, in the order of the blocks' real queries. predicts (K,) long: the packed token
    whose output predicts each answer token, in the order of ids[mask]."""

    tokens: Tensor
    positions: Tensor
    blocks: list[Block]
    predicts: Tensor


def pack(prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor) -> Packing:
    """Lay out N answers (N, T) with their prompts (N, P), left-padded; masks are True on real tokens.

    The last token of an answer predicts nothing and is left out. Raises ValueError for an empty prompt, and for a mask
    with a hole: a position after a hole would have no predecessor.
    """
    if not prompt_mask[:, -1].all():
        raise ValueError(
            "a prompt is empty or not padded on the left; give each at least one token, the last at the right edge."
        )
    if (mask[:, 1:] & ~mask[:, :-1]).any():
        raise ValueError(
            "an answer's mask has a hole; it must be True from the first token to the last and False after that."
        )
    distinct, which = torch.unique(torch.where(prompt_mask, prompt_ids, -1), dim=0, return_inverse=True)
    prompt_real, answer_real = distinct >= 0, mask[:, 1:]
    lengths = answer_real.sum(1)
    total = int(prompt_real.sum()) + int(lengths.sum())

    columns = torch.arange(answer_real.shape[1], device=ids.device)
    prompt_slot, made = _number(prompt_real, 0, total)
    answer_slot = torch.full(answer_real.shape, total, device=ids.device)
    tokens, positions = [distinct[prompt_real]], [(prompt_real.cumsum(1) - 1)[prompt_real]]
    blocks = [_block(prompt_slot[:, :0], prompt_slot, prompt_real, total)]
    after_prompt = prompt_real.sum(1)[which][:, None] + columns
    for rows in lengths.argsort(stable=True).split(ROWS_PER_BLOCK):
        width = int(lengths[rows].max())
        real = answer_real[rows, :width]
        slot, made = _number(real, made, total)
        answer_slot[rows, :width] = slot
        tokens.append(ids[rows, :width][real])
        positions.append(after_prompt[rows, :width][real])
        blocks.append(_block(prompt_slot[which[rows]], slot, real, total))
    predicts = torch.cat((prompt_slot[:, -1:][which], answer_slot), 1)[mask]
    return Packing(torch.cat(tokens), torch.cat(positions), [block for block in blocks if len(block.real)], predicts)


def pack_prompts(prompt_ids: Tensor, prompt_mask: Tensor) -> Packing:
    """The same for prompts alone, (U, P), one block; predicts (U,) is the last token of every prompt."""
    total = int(prompt_mask.sum())
    slot, _ = _number(prompt_mask, 0, total)
    positions = (prompt_mask.cumsum(1) - 1)[prompt_mask]
    return Packing(prompt_ids[prompt_mask], positions, [_block(slot[:, :0], slot, prompt_mask, total)], slot[:, -1])


def _number(real: Tensor, start: int, padding: int) -> tuple[Tensor, int]:
    """Consecutive slots from `start` for the real tokens, row by row, `padding` elsewhere; and the next free slot."""
    end = start + int(real.sum())
    slot = torch.full(real.shape, padding, device=real.device)
    slot[real] = torch.arange(start, end, device=real.device)
    return slot, end


def _block(before: Tensor, slot: Tensor, real: Tensor, padding: int) -> Block:
    """Attention of the tokens at `slot` (n, T) to all tokens at `before` (n, B) and, causally, to themselves."""
    keys = torch.cat((before, slot), 1)
    causal = torch.ones(slot.shape[1], keys.shape[1], dtype=torch.bool, device=slot.device).tril(before.shape[1])
    allowed = (keys != padding)[:, None, :] & causal | ~real[:, :, None]
    slots, keys = torch.where(real, slot, 0), torch.where(keys != padding, keys, 0)
    return Block(slots, keys, allowed[:, None], real.flatten().nonzero()[:, 0])
