"""results/<ablation>/report.md, with its tables and figures, from what is stored. The command is `ablate-report`.

The report says what the runs support and nothing more: the verdict first, the runs that did not complete beside every
number, a null shown as a null. The same store gives the same files byte for byte.
"""

import os
import sys
from pathlib import Path

import pandas as pd

from analysis import claims, look, plots, stats, words
from analysis.facts import counts, of_runs
from analysis.load import Absent, Stored, load, within

USAGE = """ablate-report NAME [allow_missing=true]

Writes results/NAME/report.md, summary.csv, claims.csv and figures/ from the stored runs of the ablation NAME.
allow_missing=true reports what is there when runs are missing. ABLATIONS_RESULTS names another results folder."""
FIGURES = (
    "accuracy/heldout",
    "reward/mean",
    "length/mean",
    "length/correct",
    "length/incorrect",
    "entropy/mean",
    "groups/zero_advantage",
)
LENGTHS = ("length/mean", "length/correct", "length/incorrect")
WRITTEN = "report.md", "summary.csv", "claims.csv"


class IncompleteAblation(Exception):
    """Runs are missing, and the caller did not say that this is fine."""


def cli(arguments: list[str] | None = None) -> None:
    """`ablate-report NAME [allow_missing=true]`"""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    named = [word for word in arguments if "=" not in word]
    settings = dict(word.split("=", 1) for word in arguments if "=" in word)
    allow_missing = settings.pop("allow_missing", "false").lower()
    if len(named) != 1 or settings or allow_missing not in ("true", "false"):
        sys.exit(
            f"ablate-report: cannot read {' '.join(arguments)!r}; it takes one NAME and allow_missing=true or false."
            f"\n\n{USAGE}"
        )
    try:
        print(report(results_folder(), named[0], allow_missing == "true"))
    except (IncompleteAblation, Absent, claims.BadClaim, FileNotFoundError) as error:
        sys.exit(f"ablate-report: {error}")


def results_folder() -> Path:
    """$ABLATIONS_RESULTS (relative to the caller's folder) if set; else results/ of the checkout this file belongs to;
    else, for an installed package, results/ in the caller's folder. The same rule as for `ablate`."""
    if named := os.environ.get("ABLATIONS_RESULTS"):
        return Path(named).absolute()
    checkout = Path(__file__).resolve().parent.parent
    return (checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()) / "results"


def report(results: Path | str, name: str, allow_missing: bool = False) -> str:
    """Write the report of an ablation -> the verdict table and the paths of the files, to be printed.

    Raises IncompleteAblation if runs of the crossing are missing, running or failed and `allow_missing` is not set, or
    if none has a point. A diverged run is a result, not a missing one: it is counted beside every number.
    """
    results = Path(results)
    question = claims.read_question(results, name)
    stored, strangers = _of_the_crossing(load(results, name), question)
    _refuse_incomplete(stored, question, allow_missing)
    verdicts = claims.verdicts(stored, question)
    folder = results / name
    figures, skipped = _figures(stored, question, verdicts, folder / "figures")
    facts = of_runs(results, name, stored.runs)
    text = words.page(question, stored, verdicts, figures, skipped, facts, strangers, _counted(stored))
    (folder / "report.md").write_text(text, encoding="utf-8")
    summary(stored, question).to_csv(folder / "summary.csv", index=False, float_format="%.6g", lineterminator="\n")
    # pandas and others read the bare word "null" as a missing value
    table = verdicts.table.replace({"verdict": {claims.NULL: "null result"}})
    table.to_csv(folder / "claims.csv", index=False, float_format="%.6g", lineterminator="\n")
    paths = [folder / file for file in WRITTEN] + [folder / file for _, file in figures]
    return "\n".join([words.terminal(question, verdicts), "", *map(str, paths)])


def _of_the_crossing(stored: Stored, question: claims.Question) -> tuple[Stored, int]:
    """Only the runs that the crossing consists of, if it says which; and how many others the store has under this
    name."""
    return (stored, 0) if question.cells is None else within(stored, [str(cell["hash"]) for cell in question.cells])


def _refuse_incomplete(stored: Stored, question: claims.Question, allow_missing: bool) -> None:
    total, missing = expected(stored, question)
    states = stored.runs.state.value_counts()
    if not len(stored.rows) or (missing and not allow_missing):
        budget = f" budget={question.budget}" if question.budget not in ("", claims.FULL) else ""
        also = "".join(f", {count} {state}" for state, count in sorted(states.items()) if state != "complete")
        there = (
            ""
            if not len(stored.rows)
            else f", or report what is there with `ablate-report {question.name} allow_missing=true`"
        )
        raise IncompleteAblation(
            f"{question.name}: {states.get('complete', 0)} of {total} runs are complete{also}; to be finished: "
            f"{'; '.join(missing[:3]) or 'all'}{' ...' if len(missing) > 3 else ''}. Finish them with "
            f"`ablate ablation={question.name}{budget}`{there}."
        )


def expected(stored: Stored, question: claims.Question) -> tuple[int, list[str]]:
    """How many runs there should be, and those that have no outcome yet, as "arm, seed 3: failed". Without a list of
    cells in ablation.yaml, the runs that were started."""
    runs = stored.runs.astype(object)
    state = dict(zip(runs.hash, runs.state, strict=True))
    cells = question.cells if question.cells is not None else runs[["hash", "arm", "seed"]].to_dict("records")
    open_ = [cell for cell in cells if state.get(str(cell["hash"])) not in ("complete", "diverged")]
    return len(cells), [f"{c['arm']}, seed {c['seed']}: {state.get(str(c['hash']), 'not started')}" for c in open_]


def _counted(stored: Stored) -> pd.DataFrame:
    return counts(stored.runs, ["arm", "base"])


def _figures(
    stored: Stored, question: claims.Question, verdicts: claims.Verdicts, folder: Path
) -> tuple[list[tuple[str, str]], list[str]]:
    """Draw and save -> [(caption, path within the ablation's folder)], and the metrics asked for but not logged."""
    for old in [*folder.glob("*.png"), *folder.glob("*.pdf")]:
        old.unlink()  # of an earlier report with other claims
    logged = set(stored.rows.metric.unique())
    asked = list(dict.fromkeys(question.figures or FIGURES))
    shown = [metric for metric in asked if metric in logged]
    first_claims = [claim.metric for claim in question.claims[:1] if claim.metric in logged]
    curves = [("main", first_claims), ("length", [m for m in shown if m in LENGTHS])]
    others = [m for m in shown if m not in LENGTHS]
    curves += [
        (f"training{start // 4 + 1 if start else ''}", others[start : start + 4]) for start in range(0, len(others), 4)
    ]
    figures = []
    if len(verdicts.table) and verdicts.table.n.max() > 0:
        look.save(plots.forest(*verdicts), folder, "claims")
        figures.append((words.FOREST, "figures/claims.png"))
    arm = claims.main_knob(question, stored)
    how = {
        "by": plots.facets(stored.runs, arm, stored.knobs),
        "styles": look.arm_styles(list(stored.runs[arm].cat.categories)),
    }
    caption = words.CURVES
    for file, metrics in curves:
        if metrics:
            look.save(plots.small_multiples(stored.rows, metrics, arm, stored.runs, **how), folder, file)
            figures.append(
                (f"{'; '.join(look.name_of(m)[0] for m in metrics).capitalize()}. {caption}", f"figures/{file}.png")
            )
            caption = words.SAME
    return figures, [m for m in asked if m not in logged]


def summary(stored: Stored, question: claims.Question) -> pd.DataFrame:
    """Mean over complete runs of every metric but timings, by arm and base: at the first and last step and in every
    claim's window.

    Columns arm, base, metric, first_step, last_step, n, mean, low, high (95 % t interval), sd. A run's value is its
    mean over the steps of the window at which it has the metric; n counts the runs that have it at all.
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
            mean, low, high, n, _ = stats.t_interval(values)
            lines.append((arm, base, metric, first, last, n, mean, low, high, stats.spread(values)))
    table = pd.DataFrame(
        lines, columns=["arm", "base", "metric", "first_step", "last_step", "n", "mean", "low", "high", "sd"]
    )
    return table
