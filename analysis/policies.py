"""The claims with every base policy counted once.

The runs of a crossing often start from a few base policies. What a base policy does to a difference it does to all of
its pairs, so that pairs are independent only as far as the base policy does not matter. Here the base policy is the
unit: the mean over its pairs first, then mean and t interval over base policies. It describes; verdicts are by pairs,
as they were declared.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import claims, stats
from analysis.claims import Verdicts
from analysis.load import Stored
from analysis.page import Block, Heading, Table, text
from analysis.question import IDENTICAL, Claim, Question
from analysis.replicated import SUFFIX, effect, partner, read
from analysis.words import number

FILE = "policies.csv"
COLUMNS = ["claim", "policy", "n", "x", "y", "difference", "sd"]
UNKNOWN = "not recorded"


def by_policy(stored: Stored, question: Question, verdicts: Verdicts, policies: Mapping[str, str]) -> pd.DataFrame:
    """One row per claim and base policy: n pairs, means of x, y and difference over them, sd of the differences.

    policies: hash of a run -> its base policy (`facts.Facts`). The runs of a pair that start from different base
    policies have both, as "seed 1 and seed 2". Claims that are checked bit by bit have no rows.
    """
    runs = stored.runs.astype(object)
    runs = runs.assign(policy=[policies.get(run, UNKNOWN) for run in runs.hash])
    parts = []
    for place, claim in enumerate(question.claims, start=1):
        own = verdicts.pairs[verdicts.pairs.claim.eq(place)]
        if claim.expect == IDENTICAL or not len(own):
            continue
        starts = [_starts(runs, claim, pair.seed, pair.base) for pair in own.itertuples()]
        means = {column: (column, "mean") for column in ("x", "y", "difference")}
        table = own.assign(policy=starts).groupby("policy", sort=True).agg(n=("x", "size"), **means)
        spreads = own.groupby(pd.Series(starts, index=own.index)).difference.apply(stats.spread)
        parts.append(table.assign(sd=spreads, claim=place).reset_index())
    return pd.concat(parts, ignore_index=True)[COLUMNS] if parts else pd.DataFrame(columns=COLUMNS)


def _starts(runs: pd.DataFrame, claim: Claim, seed: object, base: object) -> str:
    """The base policies of the two sides of a pair, with their base's name where the sides have one each."""
    of_pair = claims.of_arms(runs, claim) & runs.seed.eq(seed)
    if base != claims.BOTH:
        of_pair &= runs.base.eq(base)
    found = runs[of_pair]
    names = found.policy if base != claims.BOTH else found.base.astype(str) + " " + found.policy
    return " and ".join(sorted(set(names)))


def once(own: pd.DataFrame, claim: Claim) -> dict:
    """The numbers of a claim with the base policy as the unit, and `verdict`: what they would say under the rule of
    `claims.decide`, without Holm's correction. own: its rows of `by_policy`."""
    units = own.assign(seed=own.policy)
    row = claims.measured(units, claim, np.random.default_rng(0))
    row |= {"metric": claim.metric, "expect": claim.expect, "target": claim.target, "margin": claim.margin}
    said = claims.decide(row | {"p_holm": row["p"], "apart": ""}) if len(own) > 1 else claims.NO_VERDICT
    return row | {"verdict": said}


def share_between(own: pd.DataFrame) -> float:
    """The part of the differences' variance that lies between base policies, the intraclass correlation of one-way
    analysis of variance (Shrout and Fleiss 1979, ICC(1,1), with n0 for unequal groups):

    (MSB - MSW) / (MSB + (n0 - 1) MSW),  n0 = (N - sum n_i^2 / N) / (k - 1)

    Below 0 by chance where base policies do not matter. NaN for one base policy, or without two pairs of any, or where
    all differences agree. own: rows with n, difference, sd.
    """
    n, mean, k = own.n.to_numpy(dtype=float), own.difference.to_numpy(dtype=float), len(own)
    total = n.sum()
    if k < 2 or total == k:
        return math.nan
    centre = (n * mean).sum() / total
    between = (n * (mean - centre) ** 2).sum() / (k - 1)
    within = ((n - 1) * own.sd.fillna(0).to_numpy(dtype=float) ** 2).sum() / (total - k)
    typical = (total - (n**2).sum() / total) / (k - 1)
    whole = between + (typical - 1) * within
    return float((between - within) / whole) if whole > 0 else math.nan


def write(table: pd.DataFrame, folder: Path) -> None:
    table.to_csv(folder / FILE, index=False, float_format="%.6g", lineterminator="\n")


def section(results: Path, question: Question, verdicts: Verdicts, table: pd.DataFrame) -> Sequence[Block]:
    """What the base policies say of each claim, with those of the replication where there is one. Nothing if every pair
    has a base policy of its own, or if none is recorded."""
    if not len(table) or set(table.policy) == {UNKNOWN} or (table.n == 1).all():
        return []
    most = table.groupby("claim").size().max()
    if most == 1:
        behind = ", ".join(sorted(set(table.policy)))
        about = "All pairs of a claim start from one base policy"
        return [text(f"{about} ({behind}): what is said above is said of it, and intervals hold for its seeds alone.")]
    rows = [row for row in verdicts.table.to_dict("records") if table.claim.eq(row["claim"]).any()]
    again = _again(results, question)
    head = ["", "claim", "verdict by pairs", "by base policy (pairs)", "between", "mean over base policies", "it says"]
    both = ["with the replication's", "base policies", "it says"] if again is not None else []
    return [
        Heading("With every base policy counted once"),
        text(
            f"The intervals above take pairs as independent. No more than {most} base policies stand behind the pairs "
            "of a claim, and what a base policy does to a difference it does to all of its pairs; “between” is the "
            "part of the differences’ variance that lies between base policies (below 0 where they do not matter). "
            "Here the mean over a base policy's pairs is one observation, with the 95 % t interval over base policies; "
            f"with three that is wide (t = {number(stats.quantile(0.975, 2))}). “It says” is what the verdict would be "
            "by these numbers alone, without correction for several claims. The verdicts are by pairs, as declared "
            "before the runs; where base policies say less, more of them are needed, not more seeds."
        ),
        Table([*head, *both], [_line(row, question, table, again) for row in rows], main=1),
    ]


def _again(results: Path, question: Question) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """claims.csv and policies.csv of the replication, if it has both."""
    folder = results / f"{question.name}{SUFFIX}"
    if not all((folder / file).is_file() for file in ("claims.csv", FILE)):
        return None
    return read(folder), pd.read_csv(folder / FILE, dtype={"policy": str}, keep_default_na=False, na_values=[""])


def _line(row: Mapping, question: Question, table: pd.DataFrame, again: tuple | None) -> list[object]:
    claim = question.claims[row["claim"] - 1]
    own = table[table.claim.eq(row["claim"])]
    each = ", ".join(f"{r.policy}: {number(r.difference, sign=True)} ({r.n})" for r in own.itertuples())
    numbers = once(own, claim)
    between = share_between(own)
    share = "–" if math.isnan(between) else f"{between:.2f}".replace("-", "−")
    line = [row["claim"], row["says"], row["verdict"], each, share]
    line += [_mean(numbers), numbers["verdict"]]
    if again is None:
        return line
    other, why = partner(row, again[0])
    added = again[1][again[1].claim.eq(row["claim"])]
    if other is None or not len(added):
        return [*line, why or "–", "–", "–"]
    if shared := sorted(set(own.policy) & set(added.policy)):
        return [*line, f"not added: both have {', '.join(shared)}", "–", "–"]
    together = once(pd.concat([own, added]), claim)
    return [*line, _mean(together), together["n"], together["verdict"]]


def _mean(numbers: Mapping) -> str:
    return number(numbers["difference"], sign=True) if numbers["n"] == 1 else effect(numbers)
