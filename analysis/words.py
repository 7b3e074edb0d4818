"""The words of a report: numbers with intervals, verdicts in sentences, the table for the terminal."""

import math
import re

from analysis import look
from analysis.claims import (
    EQUAL,
    FEWEST_SEEDS,
    NO_VERDICT,
    NULL,
    REPRODUCED,
    REVERSED,
    UNDERPOWERED,
    Question,
    Verdicts,
)
from analysis.page import Link, Part, Strong
from analysis.question import IDENTICAL

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
MEANING = {
    REPRODUCED: "the difference has the sign that the claim says, Holm-adjusted p < .05",
    EQUAL: "the claim says equal, and the 90 % interval lies inside the margin",
    REVERSED: "the difference has the other sign, Holm-adjusted p < .05 (of equality: outside the margin)",
    NULL: "not significant, and the 90 % interval lies inside the margin: no difference that matters",
    UNDERPOWERED: "these runs can neither confirm the claim nor rule it out",
    NO_VERDICT: f"fewer than {FEWEST_SEEDS} paired seeds, or nothing that can be compared; the claim's note says which",
}


def number(v: float, digits: int = 3, sign: bool = False) -> str:
    """Three significant digits, 2.80 and not 2.8, no exponent between 0.0001 and a million; "–" for NaN."""
    if math.isnan(v):
        return "–"
    if math.isinf(v):
        return "∞" if v > 0 else "−∞"
    v = v or 0.0  # a minus zero is a zero
    text = f"{v:{'+' if sign else ''}#.{digits}g}".removesuffix(".")
    if "e" in text and 1e-4 <= abs(v) < 1e6:
        text = f"{v:{'+' if sign else ''}.0f}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def whole(v: float) -> str:
    """A count, or a mean of counts: 42, 20.5, ∞; with more digits where one would make it a zero."""
    if not math.isfinite(v) or 0 < abs(v) < 0.05:
        return number(v)
    return f"{v or 0.0:,.0f}" if v == round(v) else f"{v:.1f}"


def p_value(v: float, equals: str = "") -> str:
    """0.013, < 0.001, and as many digits as show on which side of .05 it is."""
    if math.isnan(v):
        return "–"
    if v < 0.001:
        return "< 0.001"
    digits = 5 if abs(v - 0.05) < 0.0005 else 3
    while v != 0.05 and float(f"{v:.{digits}f}") == 0.05:
        digits += 1
    return f"{equals}{v:.{digits}f}"


def ends(low: float, high: float) -> str:
    """[+2.49, +4.32]; "–" where there is no interval."""
    return "–" if math.isnan(low) else f"[{number(low, sign=True)}, {number(high, sign=True)}]"


def interval(row: dict) -> str:
    """+3.41 [+2.49, +4.32]"""
    if row["n"] == 0:
        return "–"
    return f"{number(row['difference'], sign=True)} " + (
        ends(row["low"], row["high"]) if row["n"] > 1 else "(one pair: no interval)"
    )


def steps(row: dict) -> str:
    first, last = row["first_step"], row["last_step"]
    window = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"{window} while {row['at']}" if row.get("at") else window


def sentence(row: dict) -> list[Part]:
    """The verdict of a claim with its evidence, in one sentence."""
    if row["verdict"] == NO_VERDICT:
        return [Strong("No verdict"), f" on “{row['says']}”: {row['note']}."]
    if row["expect"] == IDENTICAL:
        return [Strong(row["verdict"].capitalize()), f": “{row['says']}”; {row['note']}."]
    unit = look.name_of(row["metric"])[1]
    parts = [
        f": “{row['says']}”; {row['metric']} over {steps(row)} differs by {interval(row)}"
        f"{' ' + unit if unit else ''} between {row['x']} and {row['y']}"
        f"{' where ' + row['where'] if row['where'] else ''}",
        f"the mean of {row['n']} paired differences with its 95 % t interval",
        *([f"{row['target']:g} was expected"] if row["target"] else []),
        f"Holm-adjusted p {p_value(row['p_holm'], '= ')}",
    ]
    if row["verdict"] in (NULL, EQUAL):
        inside = ends(row["low90"], row["high90"])
        around = f" around {row['target']:g}" if row["target"] else ""
        parts.append(f"and its 90 % interval {inside} lies inside the margin of {row['margin']:g}{around}")
    elif row["verdict"] == UNDERPOWERED and math.isfinite(row["seeds_needed"]):
        needed = whole(row["seeds_needed"])
        parts.append(f"and about {needed} pairs would be needed to find such a difference in four of five studies")
    if row["left_out"]:
        parts.append(f"runs not counted: {row['left_out']}")
    return [Strong(row["verdict"].capitalize()), ", ".join(parts) + "."]


def terminal(question: Question, verdicts: Verdicts) -> str:
    """The verdict table for a terminal: one line per claim."""
    if not len(verdicts.table):
        return f"{question.name}: no claims, so no verdicts."
    lines = [("", "verdict", "difference [95 % interval]", "n", "p (Holm)", "claim")]
    for row in verdicts.table.to_dict("records"):
        lines.append(
            (str(row["claim"]), row["verdict"], interval(row), str(row["n"]), p_value(row["p_holm"]), row["says"])
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        [
            f"{question.name}: {question.question}",
            "",
            *(
                "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
                for line in lines
            ),
        ]
    )


def linked(content: str) -> list[Part]:
    """Text with its arXiv numbers as links."""
    parts: list[Part] = []
    at = 0
    for found in ARXIV.finditer(content):
        parts += [content[at : found.start()], Link(found[0], f"https://arxiv.org/abs/{found[1]}")]
        at = found.end()
    return [part for part in [*parts, content[at:]] if part]
