"""results/README.md: one table over all claims of all ablations, from what is committed of each.

The command is `ablate-report --claims`. It reads claims.csv, ablation.yaml and predictions/*.yaml of every folder, so a
clone without runs makes the same tables, and replaces what stands between its markers and nothing else.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf

from analysis import claims, replicated, words
from analysis.claims import Question
from analysis.page import Block, Link, Strong, Table, markdown, text
from analysis.raw import Absent
from analysis.replicated import SUFFIX, effect, partner

NEW = "# Results\n\n" + "".join(f"<!-- {part} -->\n<!-- /{part} -->\n\n" for part in ("ablations", "claims"))
NEW += "<!-- predictions -->\n<!-- /predictions -->\n"
DASH = "–"


def write(results: Path) -> Path:
    """Put the tables between the markers of <results>/README.md, which is made if there is none -> its path."""
    file = Path(results) / "README.md"
    before = file.read_text(encoding="utf-8") if file.is_file() else NEW
    after = filled(before, parts(Path(results)), file)
    file.write_text(after, encoding="utf-8")
    return file


def filled(page: str, made: Mapping[str, str], file: Path) -> str:
    """A page with every part between its markers. Raises Absent where a marker is missing."""
    for name, content in made.items():
        before, opening, rest = page.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition(f"<!-- /{name} -->\n")
        if not (opening and closing):
            raise Absent(f"{file} has no lines <!-- {name} --> and <!-- /{name} -->; put them where the table belongs.")
        page = f"{before}{opening}{content}{closing}{after}"
    return page


def parts(results: Path) -> dict[str, str]:
    """Marker -> what stands between the two lines of it."""
    found = list(ablations(results))
    if not found:
        raise FileNotFoundError(f"{results} holds no ablation with a report. Make one with `ablate ablation=NAME`.")
    made = {"ablations": [_folders(results, found)], "claims": _claims(results, found), "predictions": _theory(results)}
    return {name: f"\n{markdown(blocks)}\n\n" if blocks else "" for name, blocks in made.items()}


def ablations(results: Path) -> Iterator[tuple[Question, pd.DataFrame]]:
    """Every ablation with a report, by name; a replication is part of the ablation that it replicates."""
    for file in sorted(results.glob("*/claims.csv")):
        if (file.parent / "ablation.yaml").is_file():
            question = claims.read_question(results, file.parent.name)
            first = results / question.ablation / "claims.csv"
            if not (replicated.is_replication(question) and first.is_file()):
                yield question, replicated.read(file.parent)


def _folders(results: Path, found: list[tuple[Question, pd.DataFrame]]) -> Block:
    rows = []
    for question, table in found:
        name = question.name
        again = f"{name}{SUFFIX}"
        made = replicated.there(results, name)
        beside = [Link(tally(replicated.read(results / again)), f"{again}/report.md")] if made else DASH
        folder = [Link(name, f"{name}/report.md")]
        rows.append([folder, question.question, tally(table), beside, f"`{question.command}`"])
    return Table(["folder", "question", "verdicts", "replication", "made by"], rows)


def tally(table: pd.DataFrame) -> str:
    """of 8 claims 2 reproduced, 1 null, 5 underpowered"""
    if not len(table):
        return "no claims"
    count = table.verdict.value_counts()
    return f"of {len(table)} claims " + ", ".join(f"{count[v]} {v}" for v in words.MEANING if v in count)


def _claims(results: Path, found: list[tuple[Question, pd.DataFrame]]) -> list[Block]:
    rows, sentences = [], []
    for question, table in found:
        name = question.name
        again = replicated.read(results / f"{name}{SUFFIX}") if replicated.there(results, name) else None
        rows += [_row(question, row, again) for row in table.to_dict("records")]
        if again is not None and len(table):
            sentences.append(text(Strong(name), f": {replicated.tally(table, again)}."))
    head = ["paper", "claim", "verdict", "effect with 95 % interval", "n", "command", "replication"]
    return [Table(head, rows, main=1), *sentences]


def _row(question: Question, row: Mapping, again: pd.DataFrame | None) -> list[object]:
    link = Link(f"{question.name} {row['claim']}", f"{question.name}/report.md")
    other, why = partner(row, again) if again is not None else (None, DASH)
    return [
        words.linked(row["paper"]) or DASH,
        [link, f": {row['says']}"],
        row["verdict"],
        effect(row),
        row["n"],
        f"`{question.command}`",
        f"{other['verdict']}: {effect(other)}" if other else why,
    ]


def _theory(results: Path) -> list[Block]:
    """What theory predicts of each ablation, and at how many of the measured points it holds."""
    rows = []
    for file in sorted(results.glob("*/predictions/*.yaml")):
        about, name = OmegaConf.to_container(OmegaConf.load(file)), file.parent.parent.name
        if missing := [key for key in ("says", "points", "hold") if key not in about]:
            raise Absent(f"{file} has no {', '.join(missing)}; measure it again with `ablate ablation={name}`.")
        holds = f"{about['hold']} of {about['points']}" if about["points"] else "not measured"
        paper = words.linked(str(about.get("paper", ""))) or DASH
        rows.append([[Link(f"{name}: {file.stem}", f"{name}/report.md")], paper, about["says"], holds])
    return [Table(["part", "paper", "what theory says", "points at which it holds"], rows)] if rows else []
