"""The words of a report: verdicts in sentences, numbers with intervals, tables in Markdown and for the terminal."""

import math
import re
from collections.abc import Iterable, Sequence

import pandas as pd

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
from analysis.facts import Facts
from analysis.load import Stored

FOREST = (
    "Paired differences of the claims: mean (marker) and 95 % t interval (bar), every single pair (ticks), and the "
    "margin inside which a difference counts as none (grey band)."
)
CURVES = (
    "Mean over seeds with its 95 % t band, which may reach beyond the panel; thin lines are single seeds; n is the "
    "number of runs. A mean ends where the first of its runs ends."
)
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
SAME = "Drawn in the same way."
MEANING = {
    REPRODUCED: "the difference has the sign that the claim says, Holm-adjusted p < .05",
    EQUAL: "the claim says equal, and the 90 % interval lies inside the margin",
    REVERSED: "the difference has the other sign, Holm-adjusted p < .05 (of equality: outside the margin)",
    NULL: "not significant, and the 90 % interval lies inside the margin: no difference that matters",
    UNDERPOWERED: "these runs can neither confirm the claim nor rule it out",
    NO_VERDICT: f"fewer than {FEWEST_SEEDS} paired seeds",
}


def number(v: float, digits: int = 3, sign: bool = False) -> str:
    """Three significant digits, 2.80 and not 2.8, no exponent between 0.0001 and a million; "–" for NaN."""
    if math.isnan(v):
        return "–"
    if math.isinf(v):
        return "∞" if v > 0 else "−∞"
    text = f"{v:{'+' if sign else ''}#.{digits}g}".removesuffix(".")
    if "e" in text and 1e-4 <= abs(v) < 1e6:
        text = f"{v:{'+' if sign else ''}.0f}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def whole(v: float) -> str:
    """A count, or a mean of counts: 42, 20.5, ∞."""
    return number(v) if not math.isfinite(v) else f"{v:,.0f}" if v == round(v) else f"{v:.1f}"


def p_value(v: float, equals: str = "") -> str:
    """0.013, < 0.001, and more digits where three would hide on which side of .05 it is."""
    if math.isnan(v):
        return "–"
    return "< 0.001" if v < 0.001 else f"{equals}{v:.{5 if abs(v - 0.05) < 0.0005 else 3}f}"


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


def sentence(row: dict) -> str:
    """The verdict of a claim with its evidence, in one sentence."""
    says = plain(row["says"])
    if row["verdict"] == NO_VERDICT:
        return f"**No verdict** on “{says}”: {plain(row['note'])}."
    unit = look.name_of(row["metric"])[1]
    parts = [
        f"**{row['verdict'].capitalize()}**: “{says}”; {row['metric']} over {steps(row)} differs by {interval(row)}"
        f"{' ' + unit if unit else ''} between {row['x']} and {row['y']}"
        f"{' where ' + row['where'] if row['where'] else ''}",
        f"the mean of {row['n']} paired differences with its 95 % t interval",
        f"Holm-adjusted p {p_value(row['p_holm'], '= ')}",
    ]
    if row["verdict"] in (NULL, EQUAL):
        inside = ends(row["low90"], row["high90"])
        parts.append(f"and its 90 % interval {inside} lies inside the margin of {row['margin']:g}")
    elif row["verdict"] == UNDERPOWERED and math.isfinite(row["seeds_needed"]):
        needed = whole(row["seeds_needed"])
        parts.append(f"and about {needed} pairs would be needed to find such a difference in four of five studies")
    if row["left_out"]:
        parts.append(f"runs not counted: {row['left_out']}")
    return ", ".join(parts) + "."


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


def page(
    question: Question,
    stored: Stored,
    verdicts: Verdicts,
    figures: Sequence[tuple[str, str]],
    skipped: Sequence[str],
    facts: Facts,
    strangers: int,
    counted: pd.DataFrame,
) -> str:
    """The whole of report.md."""
    ran = completeness(question, stored)
    parts = [
        f"# {question.name}",
        f"**Question.** {plain(question.question)}",
        f"**{ran}.**" if "," in ran else "",
        *_verdict(verdicts),
        *_figures(figures, skipped),
        *_runs(stored, question, strangers, counted),
        *_fixed(facts),
        *_pairs(verdicts),
        *_how(question, stored, facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(verdicts: Verdicts) -> list[str]:
    rows = verdicts.table.to_dict("records")
    if not rows:
        return ["This ablation states no claims, so there is no verdict; the figures show what was measured."]
    tally = verdicts.table.verdict.value_counts()
    all_of_them = f"Of {len(rows)} claims: " + ", ".join(f"{tally[v]} {v}" for v in MEANING if v in tally) + "."
    notes = [f"- Claim {row['claim']}: {plain(row['note'])}." for row in rows if row["note"]]
    return [
        "## Verdict",
        sentence(rows[0]),
        all_of_them if len(rows) > 1 else "",
        _judged(rows),
        "\n".join(notes),
        "What each claim compares:",
        _compared(rows),
        "Each difference is between two runs with the same seed and base policy, averaged over the steps of the window "
        "at which both have the metric; with “while”, each run over its own steps inside that band (of the mean over 5 "
        "steps), so that the arms are compared where they are equally far. Metric, window and margin are those "
        "that the crossing wrote down at its start. "
        "“Pairs for 80 % power” takes the observed difference and spread for the true ones.",
        "\n".join(f"- *{verdict}*: {text}." for verdict, text in MEANING.items() if verdict in tally),
    ]


def _judged(rows: list[dict]) -> str:
    head = ["", "claim", "verdict", "difference", "95 % interval", "n", "not counted", "p (Holm)", "p (sign flip)"]
    return markdown(
        [*head, "margin", "pairs for 80 % power"],
        [
            [
                row["claim"],
                f"{row['says']} ({row['paper']})" if row["paper"] else row["says"],
                row["verdict"],
                number(row["difference"], sign=True),
                ends(row["low"], row["high"]),
                row["n"],
                row["left_out"] or "–",
                p_value(row["p_holm"]),
                p_value(row["p_sign_flip"]),
                f"{row['margin']:g}" if row["margin"] > 0 else "–",
                whole(row["seeds_needed"]),
            ]
            for row in rows
        ],
    )


def _compared(rows: list[dict]) -> str:
    return markdown(
        ["", "metric", "unit", "window", "arms", "where", "expected", "mean of each arm", "steps used"],
        [
            [
                row["claim"],
                row["metric"],
                look.name_of(row["metric"])[1] or "–",
                steps(row),
                f"{row['x']} − {row['y']}",
                row["where"] or "everywhere",
                row["expect"],
                f"{number(row['mean_x'])}, {number(row['mean_y'])}",
                " to ".join(dict.fromkeys([whole(row["fewest_steps"]), whole(row["most_steps"])])),
            ]
            for row in rows
        ],
    )


def _figures(figures: Sequence[tuple[str, str]], skipped: Sequence[str]) -> list[str]:
    shown = [f"![{file}]({file})\n\n*{caption}*" for caption, file in figures]
    missing = f"Asked for but logged by no run: {', '.join(skipped)}." if skipped else ""
    return ["## Figures", *shown, missing] if shown or missing else []


def completeness(question: Question, stored: Stored) -> str:
    """10 of 12 runs are complete, 1 failed, 1 not started"""
    total = len(question.cells) if question.cells is not None else len(stored.runs)
    counted = stored.runs.state.value_counts().to_dict() | {"not started": total - len(stored.runs)}
    others = "".join(f", {n} {state}" for state, n in sorted(counted.items()) if state != "complete" and n > 0)
    return f"{counted.get('complete', 0)} of {total} runs are complete{others}"


def _runs(stored: Stored, question: Question, strangers: int, counted: pd.DataFrame) -> list[str]:
    text = completeness(question, stored) + "."
    lost = stored.runs[stored.runs.state.ne("complete")].astype(object)
    table = markdown(list(counted.columns), counted.astype(object).values.tolist())
    reasons = (
        markdown(["run", "seed", "state", "reason"], lost[["run", "seed", "state", "reason"]].values.tolist())
        if len(lost)
        else ""
    )
    extra = []
    for run, text in stored.runs.loc[stored.runs.infinite.ne(""), ["run", "infinite"]].astype(object).values:
        extra.append(f"Infinite in {run}, and not in the numbers above: {plain(text)}.")
    if len(stored.superseded):
        extra.append(
            f"{len(stored.superseded)} earlier attempts at these runs are in the store too; later ones replace them."
        )
    if strangers:
        extra.append(f"{strangers} other runs under this name are not part of this crossing and are left out.")
    return ["## Runs", text, table, reasons, " ".join(extra)]


def _fixed(facts: Facts) -> list[str]:
    head = "## What was fixed"
    if not facts.read:
        return [head, "The folders of the runs are not beside this store, so their configs are not shown."]
    values = "\n".join(f"{key}: {text}" for key, text in facts.fixed.items())
    return [
        head,
        f"Read from {facts.read} configs. These keys differ between runs: {', '.join(facts.differed) or 'none'}. "
        "All others are the same in all of them:",
        folded(f"{len(facts.fixed)} settings", f"```yaml\n{values}\n```"),
    ]


def _pairs(verdicts: Verdicts) -> list[str]:
    parts = []
    for row in verdicts.table.to_dict("records"):
        own = verdicts.pairs[verdicts.pairs.claim.eq(row["claim"])]
        cells = [
            [r.seed, r.base, number(r.x, 4), number(r.y, 4), number(r.difference, 3, True), whole(r.steps)]
            for r in own.itertuples()
        ]
        if cells:
            table = markdown(["seed", "base", row["x"], row["y"], "difference", "steps"], cells)
            parts.append(folded(f"Claim {row['claim']}: {plain(row['metric'])}, {steps(row)}", table))
    return ["## Seed by seed", *parts] if parts else []


def folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>"


def _how(question: Question, stored: Stored, facts: Facts) -> list[str]:
    budget = f" budget={question.budget}" if question.budget else ""
    commands = [
        f"ablate ablation={question.name}{budget}      # the runs; those that are complete are skipped",
        f"ablate-report {question.name}      # this report from the stored runs",
    ]
    if facts.command:
        commands.append(f"{facts.command}      # one of the runs alone")
    commits = sorted(
        {re.sub(r"[0-9a-f]{40}", lambda found: found[0][:12], commit) for commit in stored.runs.commit} - {""}
    )
    about = [f"- commit: {', '.join(commits) or 'not recorded'}"]
    about += [f"- {key}: {plain(', '.join(texts))}" for key, texts in facts.environment.items() if key != "commit"]
    cited = [f"- {linked(plain(paper))}" for paper in _papers(question)]
    cited.append(f"- this result: its name ({question.name}), the commit above and this repository")
    return [
        "## Commands and versions",
        "```sh\n" + "\n".join(commands) + "\n```",
        "\n".join(about),
        "## Citation",
        "\n".join(cited),
    ]


def _papers(question: Question) -> list[str]:
    """The ablation's paper, and those of its claims that it does not name, each once."""
    papers, known = [question.paper] if question.paper else [], set(ARXIV.findall(question.paper))
    for claim in question.claims:
        if new := set(ARXIV.findall(claim.paper)) - known:
            papers += sorted(f"arXiv:{number}" for number in new)
            known |= new
    return papers


def linked(text: str) -> str:
    """arXiv numbers as links."""
    return ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def plain(text: object) -> str:
    """Text from runs and configs as one line of Markdown that starts no tag and no table cell."""
    text = " ".join(str(text).split())
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers are what the caller made of them."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(plain(text) for text in line) + " |" for line in lines)
