"""results/<ablation>/report.md and report.html, with their tables and figures, from what is stored. The command is
`ablate-report`.

The report says what the runs support and nothing more: the verdict first, the runs that did not complete beside every
number, a null shown as a null. The same store gives the same files byte for byte.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from analysis import (
    answers,
    arms,
    cautions,
    claims,
    compare,
    drawn,
    evaluated,
    html,
    identical,
    index,
    kept,
    overview,
    page,
    policies,
    predictions,
    replicated,
    same_arm,
    sections,
    stats,
    words,
)
from analysis.facts import counts, of_runs
from analysis.files import Unreadable
from analysis.load import Absent, Stored, load
from analysis.question import of_the_crossing

USAGE = """ablate-report NAME [allow_missing=true] [store=WHERE] [--watch [every=SECONDS]]
ablate-report --compare A B
ablate-report --index
ablate-report --claims

Writes results/NAME/report.md, report.html, summary.csv, claims.csv, figures/ and data/ from the stored runs of the
ablation NAME. allow_missing=true reports what is there when runs are missing. store= reads another SQLite store or a
tracking server. --watch writes the report again while the crossing runs, and ends with it. --compare sets two ablations
side by side; A and B are names, or paths of an ablation in another results folder. --index writes results/index.html
over all ablations. --claims writes the tables of results/README.md, every claim of every ablation with its replication.
ABLATIONS_RESULTS names another results folder."""
WRITTEN = "report.md", "report.html", "summary.csv", "claims.csv"
EVERY = 30  # seconds between two looks of --watch


class IncompleteAblation(Exception):
    """Runs are missing, and the caller did not say that this is fine."""


def cli(arguments: list[str] | None = None) -> None:
    """`ablate-report`"""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    try:
        print(asked(arguments)())
    except (IncompleteAblation, Absent, claims.BadClaim, Unreadable, FileNotFoundError, ConnectionError) as error:
        sys.exit(f"ablate-report: {error}")


def asked(arguments: list[str]) -> Callable[[], str]:
    """What the command line asks for; exits with a sentence if it cannot be read."""
    named = [word for word in arguments if "=" not in word and not word.startswith("--")]
    flags = {word for word in arguments if word.startswith("--")}
    settings = dict(word.split("=", 1) for word in arguments if "=" in word and not word.startswith("--"))
    results = results_folder()
    if flags == {"--index"} and not named and not settings:
        return lambda: str(index.write(results))
    if flags == {"--claims"} and not named and not settings:
        return lambda: str(overview.write(results))
    if flags == {"--compare"} and len(named) == 2 and not settings:
        return lambda: compare.report(results, *named)
    allow_missing = settings.pop("allow_missing", "false").lower()
    every, store = settings.pop("every", str(EVERY)), settings.pop("store", None)
    understood = len(named) == 1 and not settings and flags <= {"--watch"} and _count(every)
    if not understood or allow_missing not in ("true", "false"):
        sys.exit(
            f"ablate-report: cannot read {' '.join(arguments)!r}; it takes one NAME and allow_missing=true or false."
            f"\n\n{USAGE}"
        )
    if "--watch" in flags:
        return lambda: watch(results, named[0], int(every), store)
    return lambda: report(results, named[0], allow_missing == "true", store=store)


def _count(text: str) -> bool:
    return text.isdigit() and int(text) > 0


def results_folder() -> Path:
    """$ABLATIONS_RESULTS (relative to the caller's folder) if set; else results/ of the checkout this file belongs to;
    else, for an installed package, results/ in the caller's folder. The same rule as for `ablate`."""
    if named := os.environ.get("ABLATIONS_RESULTS"):
        return Path(named).absolute()
    checkout = Path(__file__).resolve().parent.parent
    return (checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()) / "results"


def report(
    results: Path | str, name: str, allow_missing: bool = False, *, store: str | None = None, refresh: int = 0
) -> str:
    """Write the report of an ablation -> the verdict table and the paths of the files, to be printed.

    store: a SQLite store or a tracking server instead of what lies in `results`. refresh: seconds after which a browser
    reads report.html again. Raises IncompleteAblation if runs of the crossing are missing, running or failed and
    `allow_missing` is not set, or if none has a point. A diverged run is a result, not a missing one: it is counted
    beside every number.
    """
    results = Path(results)
    question = claims.read_question(results, name)
    stored, strangers = of_the_crossing(load(store or results, name), question)
    _refuse_incomplete(stored, question, allow_missing)
    facts = of_runs(results, name, stored.runs)
    verdicts = claims.verdicts(stored, question, evaluation=facts.evaluation)
    folder = results / name
    figures = drawn.draw(stored, question, verdicts, folder)
    parts = predictions.read(folder, question.predictions, question.budget)
    curves = predictions.drawn(parts, folder, vector=question.budget != "smoke")  # the others empty the folder first
    sampled = answers.chosen(results, name, stored.runs)
    starts = policies.by_policy(stored, question, verdicts, facts.policies)
    policies.write(starts, folder)
    counted = evaluated.read(results, name, stored.runs)
    kept.write(folder, stored.rows, stored.runs, stored.knobs)
    kept.write_facts(folder, facts._asdict())
    answers.keep(sampled, folder)
    evaluated.keep(counted, folder)
    material = sections.Material(
        question=question,
        stored=stored,
        verdicts=verdicts,
        arms=arms.measured(stored, question),
        passes=evaluated.gains(counted, evaluated.asked_for(list(stored.rows.metric.cat.categories))),
        changes=evaluated.changes(counted),
        same_arm=same_arm.check(stored, question),
        same=[(*each, identical.arms_apart(stored, *each[:2])) for each in _by_construction(stored, question)],
        cautions=cautions.sentences(stored, facts, folder),
        facts=facts,
        strangers=strangers,
        again=replicated.section(results, question, verdicts.table),
        policies=policies.section(results, question, verdicts, starts),
        counted=counts(stored.runs, ["arm", "base"]),
        answers=sampled,
        predicted=predictions.section(parts, curves),
        **figures._asdict(),
    )
    blocks = sections.page(material)
    (folder / "report.md").write_text(page.markdown(blocks) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(html.page(name, blocks, folder, refresh=refresh), encoding="utf-8")
    summary(stored, question).to_csv(folder / "summary.csv", index=False, float_format="%.6g", lineterminator="\n")
    # pandas and others read the bare word "null" as a missing value
    table = verdicts.table.replace({"verdict": {claims.NULL: "null result"}})
    table.to_csv(folder / "claims.csv", index=False, float_format="%.6g", lineterminator="\n")
    shown = [*(file for _, file in figures.figures), *curves.values()]
    paths = [folder / file for file in (*WRITTEN, *shown)]
    return "\n".join([words.terminal(question, verdicts), "", *map(str, paths)])


def watch(results: Path, name: str, every: int, store: str | None = None, pause: Callable = time.sleep) -> str:
    """Write the report again and again while runs of the crossing have no outcome yet; report.html reloads itself as
    often. Ends with the report of all runs. Until the first run has a point there is nothing to write."""
    while True:
        question = claims.read_question(results, name)
        try:
            stored, _ = of_the_crossing(load(store or results, name), question)
            open_ = expected(stored, question)[1]
            if not any(missing.endswith(("running", "not started")) for missing in open_):
                return report(results, name, allow_missing=bool(open_), store=store)
            if len(stored.rows):
                report(results, name, allow_missing=True, store=store, refresh=every)
            print(f"{name}: {sections.completeness(question, stored)}", flush=True)
        except (Absent, FileNotFoundError) as error:
            print(f"{name}: nothing to report yet ({error})", flush=True)
        pause(every)


def _by_construction(stored: Stored, question: claims.Question) -> list[tuple[str, str, str]]:
    """The pairs of arms that cannot differ and have complete runs."""
    there = set(stored.runs.arm[stored.runs.state.eq("complete")].astype(object))
    return [each for each in question.same if {each[0], each[1]} <= there]


def _refuse_incomplete(stored: Stored, question: claims.Question, allow_missing: bool) -> None:
    total, missing = expected(stored, question)
    states = stored.runs.state.value_counts()
    if not len(stored.rows) or (missing and not allow_missing):
        also = "".join(f", {count} {state}" for state, count in sorted(states.items()) if state != "complete")
        there = (
            ""
            if not len(stored.rows)
            else f", or report what is there with `ablate-report {question.name} allow_missing=true`"
        )
        raise IncompleteAblation(
            f"{question.name}: {states.get('complete', 0)} of {total} runs are complete{also}; to be finished: "
            f"{'; '.join(missing[:3]) or 'all'}{' ...' if len(missing) > 3 else ''}. Finish them with "
            f"`{question.command}`{there}."
        )


def expected(stored: Stored, question: claims.Question) -> tuple[int, list[str]]:
    """How many runs there should be, and those that have no outcome yet, as "arm, seed 3: failed". Without a list of
    cells in ablation.yaml, the runs that were started."""
    runs = stored.runs.astype(object)
    state = dict(zip(runs.hash, runs.state, strict=True))
    cells = question.cells if question.cells is not None else runs[["hash", "arm", "seed"]].to_dict("records")
    open_ = [cell for cell in cells if state.get(str(cell["hash"])) not in ("complete", "diverged")]
    return len(cells), [f"{c['arm']}, seed {c['seed']}: {state.get(str(c['hash']), 'not started')}" for c in open_]


def summary(stored: Stored, question: claims.Question) -> pd.DataFrame:
    """Mean over complete runs of every metric but timings, by arm and base: at the first and last step and in every
    claim's window.

    Columns arm, base, metric, first_step, last_step, n, mean, low, high (95 % t interval), sd. A run's value is its
    mean over the steps of the window at which it has a number; n counts the runs that have one at all.
    """
    complete = stored.runs.run[stored.runs.state.eq("complete")]
    rows = stored.rows[
        stored.rows.run.isin(complete.astype(object)) & ~stored.rows.metric.astype(str).str.startswith("seconds/")
    ]
    if not len(rows):
        return pd.DataFrame(
            columns=["arm", "base", "metric", "first_step", "last_step", "n", "mean", "low", "high", "sd"]
        )
    windows = dict.fromkeys(
        [(rows.step.min(),) * 2, *(claim.window for claim in question.claims), (rows.step.max(),) * 2]
    )
    lines = []
    for first, last in windows:
        inside = rows[rows.step.between(first, last)]
        per_run = inside.groupby(["arm", "base", "metric", "run"], observed=True).value.mean()
        for (arm, base, metric), values in per_run.groupby(level=["arm", "base", "metric"], observed=True):
            mean, low, high, n, _ = stats.t_interval(values.dropna())
            lines.append((arm, base, metric, first, last, n, mean, low, high, stats.spread(values.dropna())))
    table = pd.DataFrame(
        lines, columns=["arm", "base", "metric", "first_step", "last_step", "n", "mean", "low", "high", "sd"]
    )
    return table


if __name__ == "__main__":
    cli()
