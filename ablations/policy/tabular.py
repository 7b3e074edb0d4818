"""Policies small enough to be exact: a table of logits, and a rule that says which row of the table comes next.

They satisfy the interface of a language model (`sample`, `token_logp`, `parameters`), so the code that trains the one
trains the other. Everything is float64. Prompts are the strings "0", "1", ...; token v is written as the letter
chr(ord("a") + v). An answer has no end token of its own: it is over after the token at which the rule says so, and that
token is in its text like any other.
"""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ablations.policy.sample import Sample, distribution

OVER = -1  # in place of a next state: the answer is complete


class Tabular(nn.Module):
    """A finite automaton with a softmax in every state.

    start: (P,) long, the state in which prompt i is answered. after: (S, V) long, the state that follows token v in
    state s, or OVER. A subclass turns its parameters into `logits()`, (S, V) float64 in nats; -inf is a token that
    cannot come in that state.
    """

    def __init__(self, start: Tensor, after: Tensor):
        super().__init__()
        self.register_buffer("start", start)
        self.register_buffer("after", after)

    def logits(self) -> Tensor:
        raise NotImplementedError

    def token_logp(
        self, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor, *, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of every token and entropy of its whole distribution at `temperature`, both (N, T) in nats, 0
        where masked.

        prompt_ids (N, 1) long, ids (N, T) long, mask (N, T) bool; prompt_mask is not looked at, for every prompt is one
        id.
        """
        logp, entropy = distribution(self.logits(), temperature)
        states = self.states(prompt_ids[:, 0], ids, mask)
        chosen = logp[states, torch.where(mask, ids, 0)]
        return torch.where(mask, chosen, 0.0), torch.where(mask, entropy[states], 0.0)

    def states(self, prompt: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """The state in which each token was chosen, 0 where masked: prompt (N,), ids and mask (N, T) -> (N, T) long."""
        state, visited = self.start[prompt], []
        for t in range(ids.shape[1]):
            visited.append(torch.where(mask[:, t], state, 0))
            state = torch.where(mask[:, t], self.after[visited[-1], ids[:, t]], state)
        return torch.stack(visited, 1)

    @torch.no_grad()
    def sample(
        self,
        prompts: list[str],
        group_size: int,
        *,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
        greedy: bool = False,
    ) -> Sample:
        """`group_size` answers to each prompt, adjacent rows, of at most `max_new_tokens` tokens. Draws only from
        `generator`.

        Raises ValueError for a prompt that is not in the table.
        """
        prompt = torch.tensor([self._index(prompt) for prompt in prompts]).repeat_interleave(group_size)
        logp, entropy = distribution(self.logits(), temperature)
        state, columns = self.start[prompt], []
        while len(columns) < max_new_tokens and (state != OVER).any():
            running = state != OVER
            here = torch.where(running, state, 0)
            scores = logp[here]
            token = scores.argmax(1) if greedy else torch.multinomial(scores.exp(), 1, generator=generator)[:, 0]
            token = torch.where(running, token, 0)
            columns.append(
                (token, running, torch.where(running, scores.gather(1, token[:, None])[:, 0], 0.0), entropy[here])
            )
            state = torch.where(running, self.after[here, token], OVER)
        ids, mask, chosen, spread = (torch.stack(column, 1) for column in zip(*columns, strict=True))
        return Sample(
            prompt_ids=prompt[:, None],
            prompt_mask=torch.ones(len(prompt), 1, dtype=torch.bool),
            ids=ids,
            mask=mask,
            ended=state == OVER,
            logp=chosen,
            entropy=torch.where(mask, spread, 0.0),
            texts=texts_of(ids, mask.sum(1)),
        )

    def _index(self, prompt: str) -> int:
        if not prompt.isdecimal() or int(prompt) >= len(self.start):
            raise ValueError(
                f"The prompt {prompt!r} is not in a table of {len(self.start)} prompts, which are called '0' to "
                f"'{len(self.start) - 1}'. Give the task and the policy the same number of prompts."
            )
        return int(prompt)


class Bandit(Tabular):
    """One softmax over K arms per prompt; arm k is an answer of lengths[k] tokens, of which only the first is a choice.

    logits: (P, K), the parameters. lengths: tokens per arm, 1 each if not given.
    """

    def __init__(self, logits: Tensor, lengths: Sequence[int] | None = None):
        prompts, arms = logits.shape
        lengths = list(lengths or [1] * arms)
        if len(lengths) != arms or min(lengths) < 1:
            raise ValueError(
                f"A bandit of {arms} arms was given lengths {lengths}; it needs one length of at least 1 per arm."
            )
        first_of = [prompts + sum(length - 1 for length in lengths[:arm]) for arm in range(arms)]
        after = torch.full((prompts + sum(lengths) - arms, arms), OVER)
        forced = torch.full((len(after) - prompts, arms), -math.inf, dtype=torch.float64)
        for arm, length in enumerate(lengths):
            chain = [*range(first_of[arm], first_of[arm] + length - 1), OVER]
            after[:prompts, arm] = chain[0]
            for state, following in itertools.pairwise(chain):
                after[state, arm] = following
                forced[state - prompts, arm] = 0.0
        super().__init__(torch.arange(prompts), after)
        self.register_buffer("forced", forced)
        self.arms = nn.Parameter(logits.double().clone())

    def logits(self) -> Tensor:
        return torch.cat([self.arms, self.forced])


class TwoClass(Tabular):
    """One logit per prompt: the answer is right ("b") with probability sigmoid(logit), else wrong ("a").

    success: (P,) probabilities, each strictly between 0 and 1; the parameters are their logits.
    """

    def __init__(self, success: Sequence[float]):
        super().__init__(torch.arange(len(success)), torch.full((len(success), 2), OVER))
        self.logit = nn.Parameter(_logit(success))

    def logits(self) -> Tensor:
        return torch.stack([torch.zeros_like(self.logit), self.logit], 1)


class TwoTokens(Tabular):
    """An autoregressive table: a first token, and a second whose distribution depends on the first. One prompt.

    first: (K,), second: (K, K) logits, the parameters.
    """

    def __init__(self, first: Tensor, second: Tensor):
        arms = len(first)
        after = torch.full((1 + arms, arms), OVER)
        after[0] = torch.arange(1, 1 + arms)
        super().__init__(torch.zeros(1, dtype=torch.long), after)
        self.first = nn.Parameter(first.double().clone())
        self.second = nn.Parameter(second.double().clone())

    def logits(self) -> Tensor:
        return torch.cat([self.first[None], self.second])


class GeometricStop(Tabular):
    """An answer is right or wrong from the start, and after every token it stops with the hazard of its mode.

    Tokens are pairs (mode, stops): "a" wrong and goes on, "b" wrong and stops, "c" right and goes on, "d" right and
    stops. The first token settles the mode and is already a chance to stop, so that the number L of tokens is
    geometric, P(L = n) = h (1 - h)^(n-1), and the derivative of log P(L) by the logit of h is 1 - L h.

    success: (P,) probabilities of the right mode. hazards: one probability for both modes, or two (wrong, right), the
    same at the start for every prompt. Parameters: the logits, `success` (P,) and `hazard` (P, 1 or 2).
    """

    def __init__(self, success: Sequence[float], hazards: Sequence[float]):
        if len(hazards) not in (1, 2):
            raise ValueError(
                f"{len(hazards)} hazards were given; allowed are one for both modes, or two: wrong, right."
            )
        prompts = len(success)
        wrong = prompts + torch.arange(prompts)  # the states after the first token; those of the right mode follow
        over = torch.full((prompts,), OVER)
        first = torch.stack([wrong, over, wrong + prompts, over], 1)
        after_wrong = torch.stack([wrong, over, over, over], 1)
        after_right = torch.stack([over, over, wrong + prompts, over], 1)
        super().__init__(torch.arange(prompts), torch.cat([first, after_wrong, after_right]))
        self.success = nn.Parameter(_logit(success))
        self.hazard = nn.Parameter(_logit(hazards).repeat(prompts, 1))

    def logits(self) -> Tensor:
        prompts = len(self.success)
        hazard = self.hazard.expand(prompts, 2)
        stop = nn.functional.logsigmoid(torch.stack([-hazard, hazard], 2))  # (P, wrong | right, goes on | stops)
        mode = nn.functional.logsigmoid(torch.stack([-self.success, self.success], 1))
        never = torch.full((prompts, 2), -math.inf, dtype=torch.float64)
        first = (mode[:, :, None] + stop).flatten(1)
        return torch.cat([first, torch.cat([stop[:, 0], never], 1), torch.cat([never, stop[:, 1]], 1)])


def texts_of(ids: Tensor, lengths: Tensor) -> list[str]:
    """The letters of each answer. ids (N, T) long, lengths (N,) long."""
    letters = (ids + ord("a")).to(torch.uint8).numpy()
    return [row[:length].tobytes().decode("ascii") for row, length in zip(letters, lengths.tolist(), strict=True)]


def _logit(probabilities: Sequence[float]) -> Tensor:
    return torch.logit(torch.tensor(list(probabilities), dtype=torch.float64))
