"""What a search leaves in its folder: the contract with the analysis, which reads nothing else.

search.yaml    what was searched, how, and how far it got
trials.csv     one line per settled trial: point, score, the scores of its seeds, why it failed, its runs
confirm.csv    one line per run on a fresh seed
best.yaml      the best trial: number, point, runs, the command that trains it again, its whole config
"""

import csv
import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from omegaconf import OmegaConf
from optuna import Study
from optuna.trial import FrozenTrial

from ablations import build
from ablations.search import confirm, space
from ablations.search import study as studies
from ablations.search.confirm import Confirmed
from ablations.search.mirror import STATES
from ablations.search.plan import Plan

TRIALS, CONFIRM, SEARCH, BEST = "trials.csv", "confirm.csv", "search.yaml", "best.yaml"


def write(plan: Plan, study: Study, confirmed: Sequence[Confirmed]) -> None:
    """Everything, as far as it is known."""
    settled = studies.settled(study)
    _put(plan.folder / TRIALS, _csv(_header(plan), [_line(plan, trial) for trial in settled]))
    _put(plan.folder / CONFIRM, _csv(Confirmed._fields, [[_text(value) for value in row] for row in confirmed]))
    about = {
        "name": plan.name,
        "question": plan.question,
        "command": plan.command,
        **plan.definition,
        "fresh_seeds": plan.fresh,
        "trials": plan.budget,
        "workers": plan.workers,
        "sampler": type(plan.sampler.sampler_of(0)).__name__,
        "sampler_seed": plan.sampler.seed,
        "pruner": type(plan.pruner).__name__,
    }
    _put(plan.folder / SEARCH, OmegaConf.to_yaml(OmegaConf.create(about)))
    if (best := confirm.best(study)) is not None:
        _put(plan.folder / BEST, OmegaConf.to_yaml(OmegaConf.create(_best(plan, best))))


def rerun(plan: Plan, best: FrozenTrial) -> str:
    """The command that trains the best point again, with the fresh seeds, in a folder of its own."""
    seeds = f"seed=range({plan.fresh[0]},{plan.fresh[-1] + 1})"
    point = [*plan.settings, *space.overrides(best.params), f"name={plan.name}_best", seeds]
    return f"ablate -m {shlex.join(point)}"


def _best(plan: Plan, best: FrozenTrial) -> dict[str, Any]:
    overrides = [*plan.settings, *space.overrides(best.params)]
    config = build.plain(compose("config", [*overrides, f"name={plan.name}", f"seed={plan.fresh[0]}"]))
    return {
        "trial": best.number,
        "point": dict(best.params),
        "search_score": best.value,
        "folders": [f"runs/{folder}" for folder in best.user_attrs.get("folders", [])],
        "command": rerun(plan, best),
        "config": config,
    }


def _header(plan: Plan) -> list[str]:
    seeds = [f"seed {seed}" for seed in plan.seeds]
    return ["trial", "state", "score", *plan.space.distributions, *seeds, "reason", "runs", "seconds"]


def _line(plan: Plan, trial: FrozenTrial) -> list[str]:
    kept = trial.user_attrs
    scores = [*kept.get("scores", []), *[None] * len(plan.seeds)][: len(plan.seeds)]
    score = trial.value if STATES[trial.state] == "complete" else None
    point = [trial.params.get(key) for key in plan.space.distributions]
    cells = [trial.number, STATES[trial.state], score, *point, *scores, kept.get("reason", "")]
    return [_text(value) for value in (*cells, " ".join(kept.get("folders", [])), kept.get("seconds"))]


def _text(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
