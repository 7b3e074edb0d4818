"""The sections of a report, as blocks of a page (`analysis.page`)."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from analysis import by_arm, look, words
from analysis.arms import Arms
from analysis.claims import NO_VERDICT, Verdicts
from analysis.facts import Facts
from analysis.load import Stored
from analysis.page import Block, Bullets, Emphasis, Fold, Heading, Picture, Source, Strong, Table, Text, text
from analysis.question import EQUAL_TO, Question
from analysis.words import ends, number, p_value, steps, whole


class Material(NamedTuple):
    """Everything that a report is made of. figures, more: (caption, file). constant: metrics that had one
    value throughout, and it. skipped: metrics that were asked for and
    that no run logged. strangers: runs under this name that are no part of the crossing. same: (arm, arm, why, where
    they differ or empty) of the arms that are equal by construction. again: the section about the replication.
    policies: the one about the base policies. predicted: the one of what theory predicts."""

    question: Question
    stored: Stored
    verdicts: Verdicts
    arms: Arms | None
    passes: pd.DataFrame
    changes: pd.DataFrame
    same_arm: pd.DataFrame
    same: Sequence[tuple[str, str, str, str]]
    cautions: Sequence[str]
    figures: Sequence[tuple[str, str]]
    more: Sequence[tuple[str, str]]
    constant: Sequence[tuple[str, float]]
    skipped: Sequence[str]
    facts: Facts
    strangers: int
    again: Sequence[Block]
    policies: Sequence[Block]
    counted: pd.DataFrame
    answers: pd.DataFrame
    predicted: Sequence[Block]


def page(given: Material) -> list[Block]:
    """The whole report: the question, the verdict, then what it rests on."""
    ran = completeness(given.question, given.stored)
    return [
        Heading(given.question.name, 1),
        text(Strong("Question."), f" {given.question.question}"),
        *([text(Strong(f"{ran}."))] if "," in ran else []),
        *_verdict(given),
        *given.again,
        *given.policies,
        *_figures(given.figures, given.skipped),
        *given.predicted,
        *by_arm.arms(given.arms),
        *by_arm.passes(given.passes, given.changes),
        *by_arm.same_arm(given.same_arm),
        *_runs(given),
        *_fixed(given.facts),
        *_pairs(given.verdicts),
        *_answers(given.answers),
        *_more(given.more, given.constant),
        *_how(given.question, given.stored, given.facts),
    ]


def _verdict(given: Material) -> list[Block]:
    rows = given.verdicts.table.to_dict("records")
    if not rows:
        return [text("This ablation states no claims, so there is no verdict; the figures show what was measured.")]
    tally = given.verdicts.table.verdict.value_counts()
    all_of_them = f"Of {len(rows)} claims: " + ", ".join(f"{tally[v]} {v}" for v in words.MEANING if v in tally) + "."
    notes = [[f"Claim {row['claim']}: {row['note']}."] for row in rows if row["note"]]
    return [
        Heading("Verdict"),
        Text(words.sentence(rows[0]), lead=True),
        *([text(all_of_them)] if len(rows) > 1 else []),
        _judged(rows),
        *([Bullets(notes)] if notes else []),
        *([Bullets([[Strong("Caution"), f": {each}"] for each in given.cautions])] if given.cautions else []),
        *_same(given.same),
        text(written(rows, given.stored.runs)),
        text("What each claim compares:"),
        _compared(rows),
        text(
            "Each difference is between two runs with the same seed and base policy, averaged over the steps of the "
            "window at which both have the metric; with “while”, each run over its own steps inside that band (of the "
            "mean over 5 steps), so that the arms are compared where they are equally far. Metric, window and margin "
            "are those that the crossing wrote down at its start. “Pairs for 80 % power” takes the observed difference "
            "and spread for the true ones; “at the margin” takes a difference as large as the margin."
        ),
        Bullets([[Emphasis(verdict), f": {what}."] for verdict, what in words.MEANING.items() if verdict in tally]),
    ]


def written(rows: Sequence[dict], runs: pd.DataFrame) -> str:
    """Whether the claims stood before the runs, by the date of the commit that gave each its present form."""
    dates = pd.to_datetime([row["written_date"] or None for row in rows], utc=True)
    started = pd.to_datetime(runs.started[runs.started.ne("")].min() or None, utc=True)
    if dates.isna().all():
        return "The commit at which the claims were written is not recorded; whether that was before the runs is not."
    parts = []
    by_commit: dict[str, list[int]] = {}
    for row in rows:
        by_commit.setdefault(row["written_commit"], []).append(row["claim"])
    for commit, numbers in by_commit.items():
        date = next(row["written_date"] for row in rows if row["written_commit"] == commit)
        at = "at no commit (changed since the last one)"
        if commit:
            at = f"at commit {commit[:12]} of {_minute(pd.to_datetime(date, utc=True))}"
        parts.append(f"{_listed(numbers)} got {'its' if len(numbers) == 1 else 'their'} present form {at}")
    late = [row["claim"] for row, date in zip(rows, dates, strict=True) if pd.isna(date) or date > started]
    first = "" if pd.isna(started) else f" The first run started on {_minute(started)}."
    warning = f" {_listed(late)} not known to have stood before the runs: read as exploration." if late else ""
    return "; ".join(parts) + "." + first + warning


def _minute(moment: pd.Timestamp) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _listed(numbers: Sequence[int]) -> str:
    """Claim 3; Claims 1 to 4; Claims 1, 3"""
    if len(numbers) == 1:
        return f"Claim {numbers[0]}"
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"Claims {numbers[0]} to {numbers[-1]}"
    return f"Claims {', '.join(map(str, numbers))}"


def _same(same: Sequence[tuple[str, str, str, str]]) -> list[Block]:
    items = []
    for one, other, why, apart in same:
        found = f"but {apart}" if apart else "and every metric but timings agrees bit by bit"
        items.append([Strong("Equal by construction"), f": {one} and {other}, because {why}; {found}."])
    return [Bullets(items)] if items else []


def _judged(rows: list[dict]) -> Table:
    head = ["", "claim", "verdict", "difference", "95 % interval", "n", "not counted", "p (Holm)", "p (sign flip)"]
    return Table(
        [*head, "margin", "pairs for 80 % power", "… at the margin"],
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
                "–" if math.isnan(row["seeds_for_margin"]) else whole(row["seeds_for_margin"]),
            ]
            for row in rows
        ],
        main=1,
    )


def _compared(rows: list[dict]) -> Table:
    return Table(
        ["", "metric", "unit", "window", "arms", "where", "expected", "mean of each arm", "steps used"],
        [
            [
                row["claim"],
                row["metric"],
                look.name_of(row["metric"])[1] or "–",
                steps(row),
                f"{row['x']} − {row['y']}",
                row["where"] or "everywhere",
                f"{row['target']:g}" if row["expect"] == EQUAL_TO and row["target"] else row["expect"],
                f"{number(row['mean_x'])}, {number(row['mean_y'])}",
                " to ".join(dict.fromkeys([whole(row["fewest_steps"]), whole(row["most_steps"])])),
            ]
            for row in rows
        ],
        main=1,
    )


def _figures(figures: Sequence[tuple[str, str]], skipped: Sequence[str]) -> list[Block]:
    shown: list[Block] = [Picture(file, caption) for caption, file in figures]
    missing = [text(f"Asked for but logged by no run: {', '.join(skipped)}.")] if skipped else []
    return [Heading("Figures"), *shown, *missing] if shown or missing else []


def completeness(question: Question, stored: Stored) -> str:
    """10 of 12 runs are complete, 1 failed, 1 not started"""
    total = len(question.cells) if question.cells is not None else len(stored.runs)
    counted = stored.runs.state.value_counts().to_dict() | {"not started": total - len(stored.runs)}
    others = "".join(f", {n} {state}" for state, n in sorted(counted.items()) if state != "complete" and n > 0)
    return f"{counted.get('complete', 0)} of {total} runs are complete{others}"


def _runs(given: Material) -> list[Block]:
    stored = given.stored
    lost = stored.runs[stored.runs.state.ne("complete")].astype(object)
    blocks = [
        Heading("Runs"),
        text(completeness(given.question, stored) + "."),
        Table(list(given.counted.columns), given.counted.astype(object).values.tolist()),
    ]
    if len(lost):
        columns = ["run", "seed", "state", "reason"]
        blocks.append(Table(columns, lost[columns].values.tolist()))
    extra = []
    for run, where in stored.runs.loc[stored.runs.infinite.ne(""), ["run", "infinite"]].astype(object).values:
        extra.append(f"Infinite in {run}, and not in the numbers above: {where}.")
    if len(stored.superseded):
        extra.append(
            f"{len(stored.superseded)} earlier attempts at these runs are in the store too; later ones replace them."
        )
    if given.strangers:
        extra.append(f"{given.strangers} other runs under this name are not part of this crossing and are left out.")
    return [*blocks, text(" ".join(extra))] if extra else blocks


def _fixed(facts: Facts) -> list[Block]:
    head = Heading("What was fixed")
    if not facts.read:
        return [head, text("The folders of the runs are not beside this store, so their configs are not shown.")]
    values = "\n".join(f"{key}: {v}" for key, v in facts.fixed.items())
    return [
        head,
        text(
            f"Read from {facts.read} configs. These keys differ between runs: {', '.join(facts.differed) or 'none'}. "
            "All others are the same in all of them:"
        ),
        Fold(f"{len(facts.fixed)} settings", [Source(values, "yaml")]),
    ]


def _pairs(verdicts: Verdicts) -> list[Block]:
    parts = []
    for row in verdicts.table.to_dict("records"):
        own = verdicts.pairs[verdicts.pairs.claim.eq(row["claim"])]
        cells = [
            [r.seed, r.base, number(r.x, 4), number(r.y, 4), number(r.difference, 3, True), whole(r.steps)]
            for r in own.itertuples()
        ]
        if cells:
            table = Table(["seed", "base", row["x"], row["y"], "difference", "steps"], cells)
            parts.append(Fold(f"Claim {row['claim']}: {row['metric']}, {steps(row)}", [table]))
    return [Heading("Seed by seed"), *parts] if parts else []


def _answers(answers: pd.DataFrame) -> list[Block]:
    if not len(answers):
        return []
    folds = []
    for (arm, base), own in answers.groupby(["arm", "base"], observed=True):
        lines = [
            [r.step, r.prompt, r.gold, number(float(r.reward)), r.length, repr(str(r.text))[1:-1]]
            for r in own.itertuples()
        ]
        table = Table(["step", "prompt", "right answer", "reward", "tokens", "sampled answer"], lines, main=5)
        folds.append(Fold(f"{arm}, base {base}, seed {own.seed.iloc[0]}", [table]))
    return [
        Heading("Sampled answers"),
        text(
            "Not chosen by hand: of the complete run with the lowest seed, at the first and the last step that stored "
            "answers, the first ones with the highest and with the lowest reward."
        ),
        *folds,
    ]


def _more(more: Sequence[tuple[str, str]], constant: Sequence[tuple[str, float]]) -> list[Block]:
    blocks: list[Block] = []
    if more:
        blocks.append(Fold(f"{len(more)} figures", [Picture(file, caption) for caption, file in more]))
    if constant:
        same = ", ".join(f"{metric} {value:g}" for metric, value in constant)
        blocks.append(text(f"The same number in every run at every step: {same}."))
    return [Heading("Every other logged metric"), *blocks] if blocks else []


def _how(question: Question, stored: Stored, facts: Facts) -> list[Block]:
    commands = [
        f"{question.command}      # the runs; those that are complete are skipped",
        f"ablate-report {question.name}      # this report from the stored runs",
    ]
    if facts.command:
        commands.append(f"{facts.command}      # one of the runs alone")
    commits = sorted(
        {re.sub(r"[0-9a-f]{40}", lambda found: found[0][:12], commit) for commit in stored.runs.commit} - {""}
    )
    about = [[f"commit: {', '.join(commits) or 'not recorded'}"]]
    about += [[f"{key}: {', '.join(texts)}"] for key, texts in facts.environment.items() if key != "commit"]
    cited = [words.linked(paper) for paper in papers(question)]
    cited.append([f"this result: its name ({question.name}), the commit above and this repository"])
    return [
        Heading("Commands and versions"),
        Source("\n".join(commands), "sh"),
        Bullets(about),
        Heading("Citation"),
        Bullets(cited),
    ]


def papers(question: Question) -> list[str]:
    """The ablation's paper, and those of its claims that it does not name, each once."""
    found, known = [question.paper] if question.paper else [], set(words.ARXIV.findall(question.paper))
    for claim in question.claims:
        if new := set(words.ARXIV.findall(claim.paper)) - known:
            found += sorted(f"arXiv:{paper}" for paper in new)
            known |= new
    return found


def headline(verdicts: Verdicts) -> str:
    """The tally of an ablation in one line: 2 reproduced, 1 null, 5 underpowered"""
    tally = verdicts.table.verdict.value_counts() if len(verdicts.table) else {}
    return ", ".join(f"{tally[v]} {v}" for v in words.MEANING if v in tally) or NO_VERDICT
