"""From token terms to one loss: weights W (N, T), so that the loss is sum(W * term) and nothing is divided afterwards.

The weights come once from the whole update batch. Micro-batches, accumulation, padding, the order of rows and the
number of processes then cannot change the loss: sums of slices add up to the sum of the whole. Policy, KL and entropy
terms may use different options.

Every option takes `mask` (N, T) bool, the tokens that the denominators count; `counted` (N,) bool, False for rows
that were dropped and are in no denominator; and `rows`, `all` or `non_empty`: whether a counted row without any token
is in the number of rows R. n_i is the number of tokens of row i. Weights are float64 and 0 outside the mask.

What the choice decides: `sequence_mean` gives every answer the same say, so a token of a long answer has less, and
long wrong answers are punished less per token; `token_mean` gives every token of the batch the same say; `constant`
too, but with a factor that no other answer in the batch can change.
"""

import torch
from torch import Tensor


def sequence_mean(mask: Tensor, counted: Tensor, *, rows: str) -> Tensor:
    """W_it = 1 / (R max(n_i, 1)): mean over the tokens of an answer, then over answers.

    GRPO as published (arXiv:2402.03300, eq. 3); TRL loss_type=grpo (rows: all), verl seq-mean-token-mean and ROLL's
    default (rows: non_empty).
    """
    mask = mask & counted[:, None]
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    return _weights(mask, 1.0 / (_row_count(mask, counted, rows) * lengths.double()))


def token_mean(mask: Tensor, counted: Tensor, *, rows: str) -> Tensor:
    """W_it = 1 / max(sum_i n_i, 1): mean over all tokens of the update batch.

    DAPO's token-level loss (arXiv:2503.14476, sec. 3.3); TRL loss_type=dapo, the default of verl, OpenRLHF,
    open-instruct and prime-rl. `rows` cannot matter here: no number of rows is in the formula.
    """
    mask = mask & counted[:, None]
    _row_count(mask, counted, rows)
    return _weights(mask, 1.0 / mask.sum().clamp(min=1).double())


def group_token_mean(mask: Tensor, counted: Tensor, group: Tensor, *, rows: str) -> Tensor:
    """W_it = 1 / (P max(tokens of the row's group, 1)): mean over the tokens of a prompt's answers, then over prompts.

    The prompt-level average of ScaleRL (arXiv:2510.13786). Between the two above: prompts with long answers do not
    outweigh the others, and within a prompt every token counts alike. P is the number of groups with a counted row,
    under `rows: non_empty` only of those with a token.

    group: (N,) long ids, in any order.
    """
    mask = mask & counted[:, None]
    _, index = torch.unique(group, return_inverse=True)
    tokens = torch.zeros(int(index.max()) + 1 if len(index) else 0, dtype=torch.float64, device=mask.device)
    tokens = tokens.index_add(0, index, mask.sum(1).double())
    prompts = len(torch.unique(index[_rows(mask, counted, rows)]))
    return _weights(mask, 1.0 / (max(prompts, 1) * tokens.clamp(min=1)[index][:, None]))


def constant(mask: Tensor, counted: Tensor, *, rows: str, length: float) -> Tensor:
    """W_it = 1 / (R L) with one fixed L: sum over the tokens of an answer, mean over answers, over L.

    Dr. GRPO (arXiv:2503.20783): removes the length from the weight of a token. L is the configured maximum completion
    length, as in its code and TRL loss_type=dr_grpo, and never a width of this batch. The gradient is smaller than a
    token mean's by about mean length / L, so compare arms at matched step sizes.

    length: tokens, above 0.
    """
    mask = mask & counted[:, None]
    return _weights(mask, 1.0 / (_row_count(mask, counted, rows) * _positive(length)))


def sequence_sum(mask: Tensor, counted: Tensor, *, rows: str) -> Tensor:
    """W_it = 1 / R: sum over the tokens of an answer, mean over answers.

    verl seq-mean-token-sum (rows: non_empty), TRL loss_type=luspo (rows: all); with the ratio `sequence_mean` it is
    LUSPO (arXiv:2602.05261). The gradient of the likelihood of whole answers; it grows with their length.
    """
    mask = mask & counted[:, None]
    return _weights(mask, 1.0 / _row_count(mask, counted, rows))


def sum_over_constant(mask: Tensor, counted: Tensor, *, rows: str, length: float) -> Tensor:
    """W_it = 1 / L: the sum of everything over one fixed number, which grows with the batch.

    verl seq-mean-token-sum-norm and open-instruct loss_denominator=<number>. A mean only if L was chosen for one
    batch size: the arms of a batch-size ablation then differ in step size as well. `rows` cannot matter here: no
    number of rows is in the formula.

    length: tokens, above 0.
    """
    mask = mask & counted[:, None]
    _row_count(mask, counted, rows)
    return _weights(mask, torch.as_tensor(1.0 / _positive(length), dtype=torch.float64))


_COUNTED_ROWS = {
    "all": lambda mask, counted: counted,
    "non_empty": lambda mask, counted: counted & mask.any(1),
}


def _rows(mask: Tensor, counted: Tensor, rows: str) -> Tensor:
    if rows not in _COUNTED_ROWS:
        raise ValueError(
            f"aggregate.rows is {rows!r}; allowed are {' and '.join(map(repr, _COUNTED_ROWS))}. Set aggregate.rows=all."
        )
    return _COUNTED_ROWS[rows](mask, counted)


def _row_count(mask: Tensor, counted: Tensor, rows: str) -> Tensor:
    """R as a float64 scalar, at least 1 so that an update batch without rows has weights 0 and not NaN."""
    return _rows(mask, counted, rows).sum().clamp(min=1).double()


def _positive(length: float) -> float:
    if not length > 0:
        raise ValueError(
            f"aggregate.length is {length}; the constant length must be above 0. Dr. GRPO uses rollout.max_new_tokens."
        )
    return float(length)


def _weights(mask: Tensor, weight: Tensor) -> Tensor:
    return torch.where(mask, weight.to(mask.device), 0.0)
