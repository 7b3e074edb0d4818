"""results/<search>/report.md with its figures, from the files that a search leaves: see ablations/search/written.py.

The score that is reported is the one on fresh seeds. The search score of the best trial is shown beside it, so that the
reader sees how much of it was luck.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from omegaconf import OmegaConf

from analysis import look, search_figures, stats


class Search(NamedTuple):
    """A search as it is stored. trials: trials.csv. fresh: confirm.csv. about: search.yaml. best: best.yaml."""

    about: dict[str, Any]
    trials: pd.DataFrame
    fresh: pd.DataFrame
    best: dict[str, Any]

    @property
    def keys(self) -> list[str]:
        return [entry["key"] for entry in self.about["space"]]

    @property
    def metric(self) -> str:
        return self.about["objective"]["metric"]


def load(folder: Path) -> Search:
    """Read a search's folder. Raises FileNotFoundError with the file that is missing."""
    about = OmegaConf.to_container(OmegaConf.load(folder / "search.yaml"))
    keep = {"keep_default_na": False, "na_values": [""]}  # `none` and `null` are names of options
    best = folder / "best.yaml"
    return Search(
        about,
        pd.read_csv(folder / "trials.csv", **keep),
        pd.read_csv(folder / "confirm.csv", **keep),
        OmegaConf.to_container(OmegaConf.load(best)) if best.is_file() else {},
    )


def report(results: Path | str, name: str) -> str:
    """Write report.md and figures/ -> what the terminal shows."""
    folder = Path(results) / name
    search = load(folder)
    figures = search_figures.draw(search, folder / "figures")
    lines = _verdict(search)
    (folder / "report.md").write_text(_page(search, lines, figures), encoding="utf-8")
    files = ("report.md", "trials.csv", "confirm.csv", "best.yaml")
    return "\n".join([*lines, "", *(str(folder / file) for file in files)])


class Fresh(NamedTuple):
    """Mean over the fresh seeds with a 95 % t interval."""

    mean: float
    low: float
    high: float
    n: int


def fresh(search: Search, label: str) -> Fresh | None:
    """The score of a point on the fresh seeds that were completed; None without any."""
    values = search.fresh[search.fresh.label.eq(label) & search.fresh.state.eq("complete")].score
    if not len(values):
        return None
    mean, low, high, n, _ = stats.t_interval(values)
    return Fresh(mean, low, high, n)


def gain(search: Search) -> Fresh | None:
    """Best minus default, paired by fresh seed; None without pairs."""
    wide = search.fresh[search.fresh.state.eq("complete")].pivot(index="seed", columns="label", values="score")
    if not {"best", "default"} <= set(wide) or not len(pairs := (wide.best - wide.default).dropna()):
        return None
    mean, low, high, n, _ = stats.t_interval(pairs)
    return Fresh(mean, low, high, n)


def _verdict(search: Search) -> list[str]:
    """The best point in words, its fresh score first."""
    about, best = search.about, search.best
    name, unit = look.name_of(search.metric)
    point = ", ".join(f"{key} = {value}" for key, value in best["point"].items())
    lines = [f"Best of {len(search.trials)} trials: trial {best['trial']}, {point}."]
    found = fresh(search, "best")
    searched = f"{best['search_score']:.4g} over the {len(about['seeds'])} seeds that chose it"
    if not len(search.fresh):
        return [*lines, f"It was not trained on fresh seeds here: {searched}, which is no estimate of its score."]
    if found is None:
        return [*lines, f"Its score is not known: no run on fresh seeds is complete. ({searched}: no estimate.)"]
    lines.append(f"{name} ({unit}) on {found.n} fresh seeds: {_interval(found)}. The search had seen {searched}.")
    if (difference := gain(search)) is not None:
        lines.append(f"Against the unsearched setting on the same seeds: {_interval(difference, signed=True)}.")
    return lines


def _interval(given: Fresh, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if given.n < 2:
        return f"{given.mean:{sign}.4g} (one seed, no interval)"
    return f"{given.mean:{sign}.4g}, 95 % interval [{given.low:{sign}.4g}, {given.high:{sign}.4g}]"


def _page(search: Search, lines: list[str], figures: list[tuple[str, str]]) -> str:
    about = search.about
    way = about["objective"]
    counts = search.trials.state.value_counts()
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    cost = search.trials.seconds.sum() / 60
    seeds, again = about["seeds"], about["fresh_seeds"]
    parts = [
        f"# {about['question'] or about['name']}",
        "\n".join(f"**{line}**" if place == 1 else line for place, line in enumerate(lines)),
        "```sh\n" + search.best["command"] + "\n```",
        "## How it was searched",
        "\n".join(
            [
                f"- objective: {way['direction']} `{way['metric']}`, {way['window']} of the steps, mean over training "
                f"seeds {seeds[0]} to {seeds[-1]}; fresh seeds {again[0]} to {again[-1]}",
                f"- sampler {about['sampler']} (seed {about['sampler_seed']}), pruner {about['pruner']}, "
                f"{about['workers']} workers; {len(search.trials)} trials: {told}; {cost:.0f} minutes of wall time",
                f"- every run: `{' '.join(about['settings']) or 'the default run'}`",
                f"- started by `{about['command']}`",
            ]
        ),
        _space_table(search),
        "## Trials\n\nThe ten best by search score. All of them: [trials.csv](trials.csv).",
        _best_table(search),
        "## Figures",
        *(f"![{caption}]({path})\n\n*{caption}*" for caption, path in figures),
    ]
    failed = search.trials[search.trials.state.eq("failed")]
    if len(failed):
        listed = "\n".join(f"- trial {row.trial}: {row.reason}" for row in failed.itertuples())
        parts.insert(5, f"### Failed trials\n\n{listed}")
    return "\n\n".join(parts) + "\n"


def _space_table(search: Search) -> str:
    rows = ["| parameter | range | scale | best |", "|---|---|---|---|"]
    for entry in search.about["space"]:
        choices = entry.get("choices")
        span = ", ".join(map(str, choices)) if choices else f"{entry['low']:g} to {entry['high']:g}"
        scale = "choices" if choices else "logarithmic" if entry["log"] else "linear"
        rows.append(f"| `{entry['key']}` | {span} | {scale} | {search.best['point'][entry['key']]} |")
    return "\n".join(rows)


def _best_table(search: Search) -> str:
    complete = search.trials[search.trials.state.eq("complete")]
    descending = search.about["objective"]["direction"] == "maximize"
    top = complete.sort_values(["score", "trial"], ascending=[not descending, True]).head(10)
    seeds = [column for column in top if column.startswith("seed ")]
    header = ["trial", "search score", *search.keys, *seeds]
    rows = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for _, row in top.iterrows():
        cells = [row.trial, f"{row.score:.4f}", *(row[key] for key in search.keys), *(f"{row[s]:.4f}" for s in seeds)]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)
