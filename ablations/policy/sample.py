"""The sampling loop, and the one place where logits become log-probabilities and entropies.

Sampling is from the whole distribution softmax(logits / temperature): top-p and top-k do not exist here, because the
sampler's log-probabilities would then belong to another distribution than the trainer's (by log of the kept mass).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Sample(NamedTuple):
    """N answers, G adjacent rows per prompt (prompt i has rows i * G to i * G + G - 1), T the longest answer.

    prompt_ids (N, P) long, padded on the left, and prompt_mask (N, P) bool; ids (N, T) long; mask (N, T) bool, True on
    every generated token, the end token included; ended (N,) bool, False for an answer cut at the limit; logp (N, T),
    what each
    token was sampled with, and entropy (N, T) of the whole distribution it was drawn from, both in nats at the
    sampling temperature and 0 where masked; texts without the end token.
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    ids: Tensor
    mask: Tensor
    ended: Tensor
    logp: Tensor
    entropy: Tensor
    texts: list[str]


class Generated(NamedTuple):
    """The tensors of a Sample that the loop makes, before they are texts; lengths (N,) long counts the end token."""

    ids: Tensor
    lengths: Tensor
    ended: Tensor
    logp: Tensor
    entropy: Tensor


class Decoder(Protocol):
    """What the loop asks of a model: prompt and step give next-token logits (rows, V); keep drops all other rows."""

    def prompt(self, prompt_ids: Tensor, prompt_mask: Tensor, rows: Tensor, columns: int) -> Tensor: ...
    def step(self, tokens: Tensor) -> Tensor: ...
    def keep(self, rows: Tensor) -> None: ...


def distribution(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log p = log_softmax(logits / temperature), and the entropy H = -sum p log p, in nats: (..., V) -> (..., V),
    (...).

    A token of probability 0 adds nothing to H and no NaN to its gradient.
    """
    logits = logits.float() if logits.itemsize < 4 else logits  # the products may be of 16 bits, probabilities never
    logp = torch.log_softmax(logits if temperature == 1 else logits / temperature, -1)
    # exp(-1e4) is 0 in every precision, and 1e4 times a gradient is a number; the least float times 2 would not be
    return logp, -(logp.exp() * logp.clamp_min(-1e4)).sum(-1)


def mask_of(lengths: Tensor, width: int) -> Tensor:
    """(N,) token counts -> (N, width) bool. Answer masks come from here: ids cannot tell an end token from padding."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def generate(
    decoder: Decoder,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    rows: Tensor,
    *,
    end: int | Sequence[int],
    pad: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator,
    greedy: bool,
    drop_at: float = 0.125,
) -> Generated:
    """Sample one answer for each entry of `rows` (N,), an index into the distinct prompts (U, P).

    Every answer has its own column of uniform numbers, all drawn before the first token: what an answer draws, and
    where the generator stands afterwards, does not depend on when the others end. Rows that ended are dropped once they
    are the share `drop_at` of those computed, since dropping copies the cache: it saves work and changes nothing else.
    Greedy takes the likeliest token and leaves the generator alone. end: the token, or tokens, that end an answer.
    """
    n, device = len(rows), prompt_ids.device
    several = torch.tensor([end] if isinstance(end, int) else list(end), device=device)

    def ends(token: Tensor) -> Tensor:
        return token == several if len(several) == 1 else torch.isin(token, several)

    if not greedy:
        uniform = torch.rand(max_new_tokens, n, dtype=torch.float64, generator=generator, device=generator.device)
        uniform = uniform.to(device)
    logits = decoder.prompt(prompt_ids, prompt_mask, rows, max_new_tokens)
    # What the decoder's rows are: the answer of each, and whether it ended.
    answer, over = torch.arange(n, device=device), torch.zeros(n, dtype=torch.bool, device=device)
    said = []
    for t in range(max_new_tokens):
        every, spread = distribution(logits, temperature)
        token = every.argmax(-1) if greedy else _draw(every, uniform[t].take(answer))
        said.append((~over, answer, token, every.gather(1, token[:, None])[:, 0], spread))
        over = over | ends(token)
        left = len(over) - int(over.sum())
        if not left or t + 1 == max_new_tokens:
            break
        if left <= (1 - drop_at) * len(over):
            rest = (~over).nonzero()[:, 0]
            answer, over, token = answer[rest], over[rest], token[rest]
            decoder.keep(rest)
        logits = decoder.step(token)
    column = torch.cat([torch.full_like(step[1], t) for t, step in enumerate(said)])
    live, answer, token, chosen, spread = (torch.cat(values) for values in zip(*said, strict=True))
    place = answer[live], column[live]
    ids = torch.full((n, len(said)), pad, device=device)
    logp, entropy = (torch.zeros(n, len(said), dtype=chosen.dtype, device=device) for _ in range(2))
    ids[place], logp[place], entropy[place] = token[live], chosen[live], spread[live]
    ended = torch.zeros(n, dtype=torch.bool, device=device)
    ended[answer[live & ends(token)]] = True
    return Generated(ids, answer[live].bincount(minlength=n), ended, logp, entropy)


def _draw(logp: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes `uniform` (n,) in [0, 1): (n, V) -> (n,).

    Strictly passes: a token of probability 0 is never drawn.
    """
    cumulative = logp.exp().cumsum(-1, dtype=torch.float64)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_max(logp.shape[1] - 1)
