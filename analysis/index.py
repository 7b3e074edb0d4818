"""results/index.html: every ablation that has a report, with its question, its verdicts and its main figure."""

from pathlib import Path

from analysis import claims, html, sections, words
from analysis.load import Absent, load
from analysis.page import Card, Cards, Heading, Link, text
from analysis.question import of_the_crossing

PICTURES = ("main.png", "claims.png", "training.png")


def write(results: Path) -> Path:
    """Write the index -> its path. An ablation without a report is listed with what is to be done."""
    results = Path(results)
    names = sorted(file.parent.name for file in results.glob("*/ablation.yaml"))
    if not names:
        raise FileNotFoundError(f"{results} holds no ablation. Make one with `ablate ablation=NAME`.")
    blocks = [
        Heading("Results", 1),
        text(f"Questions asked: {len(names)}. Each report says what was asked, what was found and how sure that is."),
        Cards([_card(results, name) for name in names]),
    ]
    file = results / "index.html"
    file.write_text(html.page("Results", blocks, results), encoding="utf-8")
    return file


def _card(results: Path, name: str) -> Card:
    question = claims.read_question(results, name)
    picture = next((f"{name}/figures/{f}" for f in PICTURES if (results / name / "figures" / f).is_file()), "")
    lines = [[question.question]]
    there = (results / name / "report.html").is_file()
    try:
        stored, _ = of_the_crossing(load(results, name), question)
        verdicts = claims.verdicts(stored, question)
    except (Absent, FileNotFoundError) as error:
        lines.append([str(error)])
    else:
        if len(verdicts.table):
            lines += [words.sentence(verdicts.table.to_dict("records")[0]), [sections.headline(verdicts)]]
        lines.append([sections.completeness(question, stored)])
    if not there:
        lines.append([f"No report yet: `ablate-report {name}`."])
    target = f"{name}/report.html" if there else f"{name}/"
    return Card(Link(name, target), picture, f"main figure of {name}", lines)
