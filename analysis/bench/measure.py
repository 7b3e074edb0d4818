"""Everyone in turn, round after round, in one process on one core: a neighbour then slows all alike."""

import contextlib
import io
import math
import statistics
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch

from analysis.bench.work import Ceiling, Ours, Work, forget_peak, generate, peak_mb, policy_for, trl_trainer

HERE, SKIPPING, TRL, GENERATE, CEILING = "ours", "ours, dead groups skipped", "TRL", "generate", "ceiling"


def compared(work: Work, rounds: int, dead: float, everyone: bool = True) -> list[dict]:
    """One row per contender: medians over the rounds of processor seconds, tokens and so on. The first round of all is
    a rehearsal and not counted. dead: share of the groups that the skipping arm leaves out; 0 leaves that arm out."""
    contenders: dict[str, Callable[[], dict]] = {HERE: Ours(work).step}
    if everyone and dead:
        contenders[SKIPPING] = Ours(work._replace(dead=dead)).step
    if everyone:
        policy = policy_for(work)
        contenders[GENERATE] = lambda: generate(policy, work)
        contenders[CEILING] = _ceiling(work)
    found: dict[str, list[dict]] = defaultdict(list)

    def between() -> None:
        for name, step in contenders.items():
            forget_peak()
            found[name].append(step() | {"peak_mb": peak_mb()})

    with tempfile.TemporaryDirectory() as output, _quiet():
        found[TRL] = trl_trainer(work, rounds + 1, between, output)()
    return [_row(work, name, steps[1:]) for name, steps in found.items()]


def _row(work: Work, name: str, steps: list[dict]) -> dict:
    row = {"size": work.size, "ends": work.ends, "prompts": work.prompts, "group": work.group, "limit": work.tokens}
    row |= {"who": name, "rounds": len(steps)}
    row |= {key: statistics.median(step[key] for step in steps) for key in steps[0]}
    if "tokens" in row:
        row["tokens_per_second"] = statistics.median(step["tokens"] / step["seconds"] for step in steps)
    return row


def _ceiling(work: Work) -> Callable[[], dict]:
    ceiling = Ceiling(work, policy_for(work))

    def step() -> dict:
        decode, train = ceiling.decode(), ceiling.train()
        return {"seconds": decode + train, "decode": decode, "train": train}

    return step


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the peer's table of metrics and its warnings: the benchmark ends in a table of its own."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def growth(what: str) -> list[Work]:
    """Completion length, answers per prompt or batch growing at size S, with every answer at full length."""
    return {
        "completion tokens": [Work("S", False, 4, 8, tokens) for tokens in (32, 64, 128, 256, 512)],
        "answers per prompt": [Work("S", False, 64 // group, group) for group in (2, 4, 8, 16, 32, 64)],
        "answers per batch": [Work("S", False, rows // 8, 8) for rows in (8, 16, 32, 64, 128, 256)],
    }[what]


def ratios(rows: list[dict]) -> dict[str, float]:
    """What the benchmark is about, of the rows of one work. Each ratio is of tokens per second, so that answers of
    other lengths are no advantage; shares are of the matrix products' time at the same tokens."""
    by = {row["who"]: row for row in rows}
    here, speed = by[HERE], {name: row.get("tokens_per_second", math.nan) for name, row in by.items()}
    found = {"times TRL": speed[HERE] / speed[TRL]}
    if SKIPPING in by:
        found["times TRL, skipping"] = speed[SKIPPING] / speed[TRL]
        found["skipped"] = by[SKIPPING]["skipped"]
    if CEILING in by:
        decode, train = here["packed"] * by[CEILING]["decode"], here["packed"] * by[CEILING]["train"]
        found["times generate"] = here["tokens"] / here["sampling"] / speed[GENERATE]
        found |= {"share in sampling": decode / here["sampling"], "share in the update": train / here["update"]}
        found["share of the ceiling"] = (decode + train) / here["seconds"]
    return found


def prepare_torch() -> None:
    """One thread: the cores belong to other runs."""
    torch.set_num_threads(1)
