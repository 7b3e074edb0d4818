"""An ablation beside its replication, which asks the same claims of other seeds and base policies.

The replication of results/X lies in results/X_replication. Only the two claims.csv are read, so that a clone without
runs can set them side by side.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis import look, stats
from analysis.claims import NO_VERDICT, NULL, UNDERPOWERED
from analysis.page import Block, Heading, Link, Table, text
from analysis.question import IDENTICAL, Question
from analysis.words import interval

SUFFIX = "_replication"
TEXTS = ("says", "metric", "knob", "x", "y", "where", "at", "expect", "paper", "written_commit", "written_date")
TEXTS += ("absent", "left_out", "apart", "unlike", "verdict", "note")
ASKED = ("metric", "first_step", "last_step", "x", "y", "where", "at", "expect", "target", "margin")
SAME, POWER, FLIPPED, UNJUDGED = "same", "decided or underpowered", "flipped", "not judged in both"
DEFINITIONS = (
    "A verdict flipped if one crossing says reproduced and the other reversed, or if one of these two stands against "
    "null or reproduced (equal). It changed between decided and underpowered if only one of the crossings could decide "
    "it: that is a matter of noise and no contradiction."
)


class Pooled(NamedTuple):
    """The paired differences of two crossings as one sample: mean with 95 % t interval, and their number. What it
    describes was seen before it was put together, so it decides nothing."""

    difference: float
    low: float
    high: float
    n: int


def is_replication(question: Question) -> bool:
    return question.name == f"{question.ablation}{SUFFIX}"


def there(results: Path, name: str) -> bool:
    """Whether an ablation has a reported replication beside it."""
    return (results / f"{name}{SUFFIX}" / "claims.csv").is_file()


def read(folder: Path) -> pd.DataFrame:
    """claims.csv as `claims.verdicts` made it: words stay words (an arm may be called "none" or "0.2"), "null result"
    is null again. No rows for an ablation without claims."""
    file = folder / "claims.csv"
    if not file.read_text(encoding="utf-8").strip():
        return pd.DataFrame(columns=["claim", "says", "verdict"])
    table = pd.read_csv(file, dtype=dict.fromkeys(TEXTS, str), keep_default_na=False, na_values=[""])
    words = [column for column in TEXTS if column in table]
    table[words] = table[words].fillna("")
    return table.replace({"verdict": {"null result": NULL}})


def partner(row: Mapping, again: pd.DataFrame) -> tuple[dict | None, str]:
    """(the same claim in the replication, empty), or (None, why there is none). A claim is the same if it has the same
    number and text and asks the same of its runs."""
    found = again[again.claim.eq(row["claim"])].to_dict("records")
    if not found:
        return None, "not in the replication"
    if found[0]["says"] != row["says"]:
        return None, "claim text differs"
    if differing := [key for key in ASKED if not _alike(found[0][key], row[key])]:
        return None, f"claim differs in {', '.join(differing)}"
    return found[0], ""


def _alike(x: object, y: object) -> bool:
    if isinstance(x, float) and isinstance(y, float) and math.isnan(x) and math.isnan(y):
        return True
    return x == y


def outcome(verdict: str, again: str) -> str:
    """What became of a verdict: same, decided or underpowered, flipped, not judged in both."""
    both = {verdict, again}
    if NO_VERDICT in both:
        return UNJUDGED
    if len(both) == 1:
        return SAME
    return POWER if UNDERPOWERED in both else FLIPPED


def pooled(row: Mapping, again: Mapping) -> Pooled:
    """Both samples of paired differences as one, from n, mean and standard deviation of each: the sum of squares within
    the two, and n1 n2 / (n1 + n2) times the square of the difference of their means. The same numbers as from all
    pairs at once."""
    sides = [side for side in (row, again) if side["n"]]
    n = int(sum(side["n"] for side in sides))
    if not n:
        return Pooled(math.nan, math.nan, math.nan, 0)
    mean = sum(side["n"] * side["difference"] for side in sides) / n
    if n == 1:
        return Pooled(mean, math.nan, math.nan, 1)
    squares = sum((side["n"] - 1) * side["sd"] ** 2 for side in sides if side["n"] > 1)
    squares += sum(side["n"] * (side["difference"] - mean) ** 2 for side in sides)
    half = stats.quantile(0.975, n - 1) * math.sqrt(squares / (n - 1) / n)
    return Pooled(mean, mean - half, mean + half, n)


def effect(row: Mapping) -> str:
    """+3.41 [+2.49, +4.32] tokens; "–" where there is no pair, and for claims that are checked bit by bit."""
    if row["n"] == 0 or row.get("expect") == IDENTICAL:
        return "–"
    unit = look.name_of(row["metric"])[1]
    return f"{interval(row)} {unit}".strip()


def tally(table: pd.DataFrame, again: pd.DataFrame) -> str:
    """ "of 8 verdicts 6 are the same in the replication, 1 changed between decided and underpowered, 1 flipped (claim
    3)": how many of them, and which flipped."""
    found: dict[str, list[int]] = {kind: [] for kind in (SAME, POWER, FLIPPED, UNJUDGED)}
    for row in table.to_dict("records"):
        other, _ = partner(row, again)
        found[outcome(row["verdict"], other["verdict"]) if other else UNJUDGED].append(row["claim"])
    which = ", ".join(map(str, found[FLIPPED]))
    flipped = f" (claim{'s' * (len(found[FLIPPED]) > 1)} {which})" if which else ""
    unjudged = f", {len(found[UNJUDGED])} not judged in both" if found[UNJUDGED] else ""
    return (
        f"of {len(table)} verdicts {len(found[SAME])} are the same in the replication, {len(found[POWER])} changed "
        f"between decided and underpowered, {len(found[FLIPPED])} flipped{flipped}{unjudged}"
    )


def section(results: Path, question: Question, table: pd.DataFrame) -> Sequence[Block]:
    """What a report says of the replication beside its ablation, or of the ablation that it replicates."""
    if is_replication(question):
        first = Link(question.ablation, f"../{question.ablation}/report.md")
        return [
            Heading("What is replicated"),
            text(
                "These are the claims of ",
                first,
                " asked once more, of other seeds and other base policies. Its report "
                f"sets both crossings side by side once `ablate-report {question.ablation}` has made it again.",
            ),
        ]
    if not len(table) or not there(results, question.name):
        return []
    name = f"{question.name}{SUFFIX}"
    again = read(results / name)
    return [
        Heading("Once more with other seeds"),
        text(
            "The crossing was run a second time, on seeds and base policies that the first did not have: ",
            Link(name, f"../{name}/report.md"),
            ". Claims, metrics, windows and margins are the same; the number of seeds need not be. "
            f"{tally(table, again).capitalize()}. {DEFINITIONS}",
        ),
        Table(
            ["", "claim", "verdict", "difference", "n", "verdict again", "difference again", "n again"]
            + ["both together, no verdict", "n together"],
            [_beside(row, *partner(row, again)) for row in table.to_dict("records")],
            main=1,
        ),
        text(
            "All differences with 95 % t intervals. “Both together” is the mean over the paired differences of both "
            "crossings, as a description: nobody planned a test of it, so it has no verdict."
        ),
    ]


def _beside(row: Mapping, other: Mapping | None, why: str) -> list[object]:
    own = [row["claim"], row["says"], row["verdict"], effect(row), row["n"]]
    if other is None:
        return [*own, why, "–", "–", "–", "–"]
    together = pooled(row, other)
    bit_by_bit = row["expect"] == IDENTICAL or not together.n
    whole = "–" if bit_by_bit else effect({**together._asdict(), "metric": row["metric"]})
    return [*own, other["verdict"], effect(other), other["n"], whole, together.n]
