"""What the aggregation does to the length of answers, as a curve along training."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from ablations.oracles import rules
from ablations.oracles.length_runs import predicted_stopping, sampled_stopping
from ablations.oracles.table import EXACT
from ablations.predictions.points import Point

MODES = ("wrong answers", "right answers")
SHARED = "one hazard for both"


def stopping(
    *,
    success: float,
    hazard: float,
    group_size: int,
    constant: float,
    lr: float,
    longest: int,
    copies: int,
    updates: int,
    every: int,
    seed: int,
) -> Iterator[Point]:
    """Mean length 1 / h of wrong and of right answers against the update: a policy that settles first whether an answer
    is right and then stops after each token with a hazard h of wrong answers, and one of right answers.

    Predicted: the expected updates one after the other (A4.2); only a sequence mean moves the hazards, by
    (G-1)/G p (1-p) kappa(h). Where both have one hazard none moves it (A4.3). Measured: sampled training of `copies`
    independent policies, at the mean logit of their hazards; the standard error goes over to the length by its
    derivative.

    success, hazard: probabilities at the start. constant: tokens, of the constant normaliser. lr: per update of one
    copy, SGD. longest: tokens. every: updates between two points.
    """
    aggregates = {
        "sequence_mean": (rules.sequence_mean(), None),
        "token_mean": (rules.token_mean(), constant),  # a constant to first order in 1 / tokens of the batch
        "constant": (rules.constant(constant), constant),
    }
    shape = {"p": success, "size": group_size, "lr": lr, "steps": updates, "copies": copies, "longest": longest}
    seeds = itertools.count(seed)
    for panels, hazards in ((MODES, (hazard, hazard)), ((SHARED,), (hazard,))):
        for line, (aggregate, normaliser) in aggregates.items():
            predicted = predicted_stopping(success, hazard, group_size, lr, updates, normaliser)
            if panels == (SHARED,):
                predicted = itertools.repeat((_logit(hazard),), updates + 1)
            found = sampled_stopping(aggregate, hazards=hazards, seed=next(seeds), **shape)
            for update, (due, logits) in enumerate(zip(predicted, found, strict=True)):
                if update % every == 0:
                    for panel, law, of in zip(panels, due, logits, strict=True):
                        yield _point(panel, line, update, law, of)


def _point(panel: str, line: str, update: int, due: float, logits: Sequence[float]) -> Point:
    """In tokens, from logits of hazards: 1 / sigmoid(x) = 1 + exp(-x)."""
    beyond = math.exp(-statistics.fmean(logits))
    error = beyond * statistics.stdev(logits) / math.sqrt(len(logits))
    return Point(panel, line, update, 1 + math.exp(-due), 1 + beyond, error, max(4 * error, EXACT))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
