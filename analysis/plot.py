"""Any logged metric against any other, from the command line. The command is `ablate-plot`."""

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from analysis import claims, look, plots
from analysis.files import Unreadable
from analysis.load import Absent, Stored, load, value
from analysis.report import results_folder

USAGE = """ablate-plot NAME x=... y=... [by=KNOB] [col=KNOB] [KNOB=VALUE ...] [to=FILE] [store=WHERE]

Plots what the runs of the ablation NAME logged and writes it as PNG and PDF: metric y against x, which is step,
samples, tokens, seconds or another metric. by= is the knob that tells the lines apart (the one that the first claim
compares, if not given); col= gives every value of another knob a panel; KNOB=VALUE keeps those runs alone. Several
metrics on y, separated by commas, get a panel each. to= is where it goes, results/NAME/plots/y-x by itself."""
WORDS = ("x", "y", "by", "col", "to", "store")


def cli(arguments: list[str] | None = None) -> None:
    """`ablate-plot NAME x=... y=...`"""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    named = [word for word in arguments if "=" not in word]
    settings = dict(word.split("=", 1) for word in arguments if "=" in word)
    if len(named) != 1 or "y" not in settings or any(word.startswith("-") for word in named):
        sys.exit(f"ablate-plot: cannot read {' '.join(arguments)!r}; it takes one NAME and y=METRIC.\n\n{USAGE}")
    where = {key: settings.pop(key) for key in list(settings) if key not in WORDS}
    results, name = results_folder(), named[0]
    try:
        stored = load(settings.get("store") or results, name)
        by = settings.get("by") or _main_knob(results, name, stored)
        metrics = settings["y"].split(",")
        drawn = figure(stored, settings.get("x", "step"), metrics, by=by, col=settings.get("col"), where=where)
    except (Absent, FileNotFoundError, ConnectionError, claims.BadClaim, Unreadable) as error:
        sys.exit(f"ablate-plot: {error}")
    stem = "-".join([*metrics, settings.get("x", "step")]).replace("/", "_")
    to = Path(settings.get("to") or results / name / "plots" / stem)
    for file in look.save(drawn, to.parent, to.name.removesuffix(".png").removesuffix(".pdf")):
        print(file)


def figure(
    stored: Stored,
    x: str,
    y: list[str] | str,
    *,
    by: str = "arm",
    col: str | None = None,
    where: dict | None = None,
) -> Figure:
    """y against x, one line per value of `by`, a panel per value of `col` (or per metric of y).

    x: step, samples, tokens, seconds or a metric. where: knob -> value, the runs to keep. Colours go by all values that
    the ablation has, so that leaving runs out changes no colour. Raises Absent for a metric, knob or value that is not
    there, with those that are.
    """
    metrics = [y] if isinstance(y, str) else list(y)
    rows, runs = chosen(stored, where or {})
    for key in filter(None, (by, col)):
        if key not in (*stored.knobs, "base", "seed", "arm"):
            raise Absent(f"nothing called {key} was swept; there are {', '.join(_swept(stored))}, base, seed and arm.")
    if len(metrics) > 1 and (col or x != "step"):
        raise Absent("several metrics on y need x=step and no col.")
    styles = look.arm_styles(list(dict.fromkeys(stored.runs[by].cat.categories)))
    there = set(runs[by].astype(object))
    styles = {name: style for name, style in styles.items() if name in there}
    facets = [col] if col else []
    if x == "step":
        return plots.small_multiples(rows, metrics, by, runs, by=facets, styles=styles)
    return plots.against(rows, x, metrics[0], by, runs, by=facets, styles=styles)


def chosen(stored: Stored, where: dict) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows and runs with these values of knobs. Raises Absent for a knob or a value that no run has."""
    runs = stored.runs
    for key, text in where.items():
        if key not in runs or key in ("run", "hash"):
            raise Absent(f"nothing called {key} was swept; there are {', '.join(_swept(stored))}, base, seed and arm.")
        wanted = text if key in ("arm", "state") else value(text)
        found = runs[runs[key].astype(object).eq(wanted)]
        if not len(found):
            there = ", ".join(map(str, dict.fromkeys(runs[key].astype(object))))
            raise Absent(f"no run has {key}={text}; there are {there}.")
        runs = found
    return stored.rows[stored.rows.run.isin(runs.run.astype(object))], runs


def _swept(stored: Stored) -> list[str]:
    return stored.knobs or ["no knob"]


def _main_knob(results: Path, name: str, stored: Stored) -> str:
    """What the first claim compares, if the question is there."""
    if (results / name / "ablation.yaml").is_file():
        return claims.main_knob(claims.read_question(results, name), stored)
    return "arm"


if __name__ == "__main__":
    cli()
