"""What a search is, put together from its config: read once, then plain values.

`ablate-search search=lr_beta scale=none trials=20` has two kinds of overrides: those of the search (search=,
search.KEY=, search/sampler=, and the short forms KEY= and sampler=) and those of every run of it (scale=none).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from optuna.pruners import BasePruner
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ablations import build, identity
from ablations.contradictions import Refused, refuse, refuse_unwritable
from ablations.search import objective, sampling, space
from ablations.search.objective import Objective
from ablations.search.space import Space

SHORT = ("trials", "seeds", "first_seed", "confirm_seeds", "workers", "sampler_seed", "storage", "compare_default")
GROUPS = ("sampler", "pruner", "window")
STEPS, SEEDS = "steps", "seeds"  # what a pruner looks at


class Plan(NamedTuple):
    """A search. Its definition is what may not change once it has begun; the rest may, from one start to the next."""

    name: str  # of the study, and of its folder under results/
    question: str
    results: Path
    space: Space
    objective: Objective
    seeds: list[int]  # each point is trained with each
    fresh: list[int]  # none of them: for the best point, at the end
    settings: list[str]  # overrides of every run, besides the point
    trials: int
    sampler: sampling.Distinct
    pruner: BasePruner
    over: str  # STEPS or SEEDS
    storage: str  # journal, or the URL of a database
    workers: int
    tracking: str  # as in machine.tracking
    example: dict[str, Any]  # a run of it, resolved
    runner: Callable[..., str]
    compare_default: bool
    grace: float  # seconds without a sign of life until a trial of another machine counts as abandoned
    definition: dict[str, Any]
    command: str  # that starts it, and goes on with it

    @property
    def folder(self) -> Path:
        return self.results / self.name

    @property
    def locks(self) -> Path:
        return self.folder / ".search"

    @property
    def budget(self) -> int:
        """Trials in all: no more than there are points."""
        return min(self.trials, self.sampler.most() or self.trials)


def parted(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Overrides of the search, of its runs, and of the launcher; short forms are written out."""
    search, runs, launcher = [], [], []
    for argument in arguments:
        key, found, text = argument.partition("=")
        bare = key.lstrip("+~")
        if bare in SHORT or bare in GROUPS:
            key = f"search/{bare}" if bare in GROUPS else f"search.{bare}"
            search.append(f"{key}={_quoted(text) if bare == 'storage' else text}" if found else argument)
        elif bare == "search.storage":
            search.append(f"{key}={_quoted(text)}")
        elif re.split(r"[./]", bare)[0] == "search":
            search.append(argument)
        elif re.split(r"[./]", bare)[0] == "hydra":
            launcher.append(argument)
        else:
            runs.append(argument)
    return search, runs, launcher


def _quoted(text: str) -> str:
    return text if text[:1] in "'\"" else f"'{text}'"


def read(arguments: Sequence[str]) -> tuple[Plan, DictConfig]:
    """The plan that a command line asks for, and the config of the launcher. Needs an initialised Hydra."""
    search, runs, launcher = parted(arguments)
    if any(text.startswith("search=") for text in search):
        cfg = compose("config", [*search, *runs, *launcher], return_hydra_config=True)
    else:
        there = sorted(path.stem for path in (build.CONF / "search").glob("*.yaml"))
        raise Refused(f"No search is named; give search=NAME, one of {', '.join(there)}.")
    named = [text for key, _, text in (override.partition("=") for override in runs) if key == "name"]
    command = " ".join(["ablate-search", *map(shown, arguments)])
    return made(cfg.search, runs, named[-1] if named else cfg.search.name, command), cfg


def made(node: DictConfig, runs: Sequence[str], name: str, command: str) -> Plan:
    """A plan from the node `search` of a config, for runs with these overrides. Raises Refused for what contradicts
    itself, in the search or in a run of it."""
    given: Mapping[str, Any] = OmegaConf.to_container(node, resolve=True)
    for key in ("trials", "seeds", "workers"):
        if not isinstance(given[key], int) or given[key] < 1:
            raise Refused(f"search.{key} is {given[key]}; it must be a whole number of at least 1.")
    if not isinstance(given["confirm_seeds"], int) or given["confirm_seeds"] < 2:
        raise Refused(
            f"search.confirm_seeds is {given['confirm_seeds']}; the best point needs at least 2 fresh seeds to have an "
            "interval, because its search score is partly luck. Set it to 5, for example."
        )
    searched = space.space(given["space"])
    window, way = given["window"], given["objective"]
    wanted = objective.objective(way["metric"], way["direction"], build._plain(instantiate(node.window)))
    first, count = given["first_seed"], given["seeds"]
    seeds = list(range(first, first + count))
    fresh = list(range(first + count, first + count + given["confirm_seeds"]))
    settings = _merged(given["overrides"] or [], [text for text in runs if not text.startswith("name=")])
    pruner = given["pruner"]
    sampler = sampling.Distinct(
        build._plain(instantiate(node.sampler.make)), searched, given["sampler_seed"], given["sampler"]["one_sequence"]
    )
    definition = {
        "space": space.described(searched),
        "objective": {**way, "window": _window(window)},
        "seeds": seeds,
        "settings": [text for text in settings if not text.startswith("machine.")],
    }
    example = _example(settings, searched, name)
    results = Path(identity.results_folder())
    refuse_unwritable(str(results))
    return Plan(
        name=name,
        question=given.get("question") or "",
        results=results,
        space=searched,
        objective=wanted,
        seeds=seeds,
        fresh=fresh,
        settings=settings,
        trials=given["trials"],
        sampler=sampler,
        pruner=instantiate(node.pruner.make),
        over=pruner["over"],
        storage=_storage(given["storage"]),
        workers=given["workers"],
        tracking=example["machine"]["tracking"],
        example=example,
        runner=build._plain(instantiate(node.runner)),
        compare_default=bool(given["compare_default"]),
        grace=float(given["grace"]),
        definition=definition,
        command=command,
    )


def _merged(first: Sequence[str], then: Sequence[str]) -> list[str]:
    """Overrides of which later ones replace earlier ones: a choice given twice is refused by Hydra."""
    return list({override.partition("=")[0].lstrip("+"): override for override in (*first, *then)}.values())


def _window(node: Mapping[str, Any]) -> str:
    """ "mean_of_last(k=3)"."""
    settings = ", ".join(f"{key}={value}" for key, value in node.items() if not key.startswith("_"))
    return node["_target_"].rpartition(".")[2] + (f"({settings})" if settings else "")


def _example(settings: Sequence[str], searched: Space, name: str) -> dict[str, Any]:
    """A run of the search, resolved: shows that its keys exist and that it contradicts nothing, before any trial."""
    point = {key: sampling.first(given) for key, given in searched.distributions.items()}
    cfg = compose("config", [*settings, *space.overrides(point), f"name={name}"])
    resolved = build.plain(cfg)
    refuse(resolved)
    build.knobs(cfg)
    return resolved


def _storage(given: str) -> str:
    """Raises Refused unless it is `journal` or a database URL that does not depend on where a worker is started."""
    if given == "journal":
        return given
    try:
        url = make_url(given)
    except ArgumentError:
        url = None
    if url is None or (url.get_backend_name() == "sqlite" and not (url.database or "").startswith("/")):
        raise Refused(
            f"search.storage is {shown(given)}; it can be journal (a file in the search's folder) or the URL of a "
            "database, such as postgresql://user@host/database or sqlite:////folder/file.db from the root."
        )
    return given


def shown(text: str) -> str:
    """Text without the password of a URL."""
    return re.sub(r"(://[^:/@\s]+):[^@\s]+@", r"\1:***@", text)
