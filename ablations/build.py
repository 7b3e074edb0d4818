"""From a composed config to the objects that a run is made of: the edge where configuration ends and plain arguments
begin."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from ablations import grpo, identity
from ablations.contradictions import Refused
from ablations.knobs.call import needs

PACKAGE = Path(__file__).resolve().parent
CONF = (
    PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
)  # a wheel carries it inside the package

ROWS = {
    "group",
    "lengths",
    "truncated",
    "mask",
    "parts",
    "part_weights",
    "total",
    "correct",
    "fillers",
    "kept",
    "logp_old",
    "logp_sampler",
}
ROWS |= {"entropies", "step_ends", "step_rewards", "texts", "problems"}
ANSWERS = {"grades", "texts", "lengths", "truncated", "group", "generator"}
TOKENS = ROWS | {"rewards", "advantage", "advantages", "counted", "logp", "logp_ref"}

# What each room's function may ask for by parameter name.
OFFERED: dict[str, set[str]] = {
    "transform": {"rewards", "truncated"},
    "combine": {"parts", "weights", "rewards", "normalise"},
    "baseline": ROWS | {"rewards"},
    "scale": ROWS | {"rewards", "centred"},
    "credit": ROWS | {"rewards", "advantage"},
    "whiten": ROWS | {"rewards", "advantage", "advantages"},
    "ratio": TOKENS | {"masks", "chosen"},
    "surrogate": TOKENS | {"masks", "chosen", "ratio"},
    "correction": TOKENS | {"masks", "chosen", "ratio"},
    "kl": TOKENS | {"masks", "chosen", "ratio"},
    "aggregate": {"mask", "counted", "group"},
    "aggregate_kl": {"mask", "counted", "group"},
    "aggregate_entropy": {"mask", "counted", "group"},
}


def register_resolvers() -> None:
    """The few functions that the yaml files use: ${mod:7,2}, ${sum:1,2}, ${mul:60,2}, ${div:128,8},
    ${results_folder:}."""
    for name, function in {
        "mod": lambda a, b: int(a) % int(b),
        "sum": lambda *numbers: sum(map(int, numbers)),
        "div": lambda a, b: _divided(int(a), int(b)),
        "mul": lambda *numbers: functools.reduce(lambda a, b: a * b, map(int, numbers), 1),
        "results_folder": identity.results_folder,
    }.items():
        OmegaConf.register_new_resolver(name, function, replace=True)


def _divided(a: int, b: int) -> int:
    if a % b:
        raise Refused(f"{a} cannot be divided into parts of {b}; choose a divisor of {a}.")
    return a // b


def knobs(cfg: DictConfig) -> grpo.Knobs:
    """The chosen option of every room. Raises Refused for a key that does not exist, a function that cannot be
    imported, a setting that its option does not take, and a function that asks for what there is not."""
    _refuse_unknown(cfg)
    chosen = {room: cfg.get(room) for room in grpo.Knobs._fields}
    for room in ("aggregate_kl", "aggregate_entropy"):
        chosen[room] = chosen[room] or cfg.aggregate
    built = grpo.Knobs(**{room: _plain(_made(room, node)) for room, node in chosen.items()})
    if not built.reward:
        raise Refused("reward has no part; name at least one, for example reward=correctness.")
    for room, function in _functions(built):
        _check(room, function)
    return built


@functools.cache
def _known() -> dict[str, set[str]]:
    """Keys of a config -> keys below them, where these are listed in config.yaml and belong to no option."""
    declared = OmegaConf.load(CONF / "config.yaml")
    listed = (str(name) for entry in declared.pop("defaults") if isinstance(entry, DictConfig) for name in entry)
    groups = {name.rpartition("@")[2] for name in listed if not name.startswith("override ")}
    below = {str(key): set(node) if isinstance(node, DictConfig) else set() for key, node in declared.items()}
    return dict.fromkeys((*groups, *identity.OUTSIDE, "tuned"), set()) | below


def _refuse_unknown(cfg: DictConfig) -> None:
    """`+key=value` adds what nobody reads: as good as misspelled."""
    known = _known()
    for key, node in cfg.items():
        strange = [] if key in known else [key]
        if known.get(key) and isinstance(node, DictConfig):
            strange = [f"{key}.{name}" for name in node if name not in known[key]]
        for name in strange:
            room, _, below = name.rpartition(".")
            there = sorted(known[room] if room else set(known) - {"plain", "question", "paper", "crossing", "hydra"})
            raise Refused(f"There is no {name}; {room or 'a run'} has {', '.join(there)}. Correct the spelling.")


def _made(room: str, node: Any) -> Any:
    try:
        return instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ValueError):  # the option's own sentence
            raise Refused(str(cause)) from None
        target = str(error).partition("'")[2].partition("'")[0]
        why, what = f"does not take these settings ({cause})", "Correct the option's yaml, or the override."
        if isinstance(cause, ImportError):
            why, what = "cannot be imported", "Correct its name, or put the folder of your module on PYTHONPATH."
        raise Refused(f"{room}: {target} {why}. {what}") from None


def _plain(made: Any) -> Any:
    """Hydra's partial functions check their permission at every call; once, when they are made, is enough here."""
    if isinstance(made, dict):
        return {name: _plain(entry) for name, entry in made.items()}
    if not isinstance(made, functools.partial):
        return made
    function, settings = made.func, dict(made.keywords)
    while isinstance(function, functools.partial):
        function, settings = function.func, {**function.keywords, **settings}
    return functools.partial(function, **settings)


def _functions(built: grpo.Knobs) -> list[tuple[str, Callable]]:
    functions = [(room, getattr(built, room)) for room in OFFERED]
    functions += [(f"reward.{name}", entry["part"]) for name, entry in built.reward.items()]
    functions += [(f"tokens.{name}", rule) for name, rule in built.tokens.items()]
    return [*functions, ("keep", built.keep.rule)]


def _check(room: str, function: Callable) -> None:
    offered = (
        OFFERED.get(room)
        or {"reward": ANSWERS, "tokens": TOKENS | {"masks"}, "keep": {"rewards", "group"}}[room.split(".")[0]]
    )
    try:
        wanted = needs(function)
    except TypeError as error:
        raise Refused(f"{room}: {error}") from None
    if strange := sorted(set(wanted) - offered):
        raise Refused(
            f"{room}: its function asks for {', '.join(strange)}; in this room it can have "
            f"{', '.join(sorted(offered))}. "
            "Rename the parameter, or set it in the option's yaml."
        )


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The config, resolved, as plain dictionaries without Hydra's own part."""
    resolved: Mapping[str, Any] = OmegaConf.to_container(cfg, resolve=True)
    return {str(key): value for key, value in resolved.items() if key != "hydra"}
