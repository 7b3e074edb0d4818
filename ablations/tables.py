"""`ablate-check tables`: README's tables of options and of presets, made from the config files.

The source of an option's row is the head of its yaml, exactly three comment lines:

    # formula: A = c / (std_g(r) + eps)
    # paper: arXiv:2402.03300 eq. 4
    # peers: TRL scale_rewards=group

with "-" where there is none. A file without them is refused, so that a new option cannot be left out. The row of a
preset is read from its composed config; its paper from a line `# paper: ...` among the comments of its yaml.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from ablations import grpo
from ablations.build import CONF, PACKAGE, register_resolvers

README = PACKAGE.parent / "README.md"
ROOMS = (*[room for room in grpo.Knobs._fields if room not in ("aggregate_kl", "aggregate_entropy")], "reference")
# Groups that are no choice of the objective.
OTHERS = ("optimizer", "schedule", "clipping", "task", "task/prompt", "task/extract", "task/same", "model")
OTHERS += ("model/architecture", "base", "adapter", "budget")
NUMBERS = ("scale", "whiten", "surrogate", "entropy")  # rooms whose settings tell two presets apart
TECHNICAL = {"subtract_mean", "divide", "token_clamp", "coefficient", "low", "high"}  # but not these
DASH = "–"


class BadHead(ValueError):
    """A config file that does not begin as this module needs it; the message names the file."""


class Head(NamedTuple):
    """What an option's yaml says of itself in its first three lines; "-" for nothing."""

    formula: str
    paper: str
    peers: str


def head(path: Path) -> Head:
    """The first three lines of an option's yaml. Raises BadHead where they are not the three that are asked for."""
    lines = path.read_text(encoding="utf-8").splitlines()[:3]
    found = [re.fullmatch(rf"# {key}: (\S.*)", line) for key, line in zip(Head._fields, lines, strict=False)]
    if len(found) < len(Head._fields) or not all(found):
        raise BadHead(
            f"{path} begins with {lines!r}; the first three lines of an option are `# formula: ...`, `# paper: ...` "
            "and `# peers: ...`, with - where there is none. Add them: README's table is made of them."
        )
    return Head(*(match[1].strip() for match in found))


def paper_of(path: Path) -> str:
    """The text of the `# paper:` line of a preset. Raises BadHead where there is none."""
    match = re.search(r"^# paper: (\S.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise BadHead(f"{path} has no line `# paper: ...`; add it, with - if nothing was published.")
    return match[1].strip()


def options(room: str, conf: Path = CONF) -> list[Path]:
    return sorted((conf / room).glob("*.yaml"))


@functools.cache
def composed(*overrides: str) -> DictConfig:
    """The config that a command line makes, with Hydra's own part, which knows the names of the options."""
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base=None):
        return compose("config", list(overrides), return_hydra_config=True)


# --- the two tables ---------------------------------------------------------------------------------------------------


def rooms_table(conf: Path = CONF) -> str:
    """Every option with formula, paper and the peers' names; below it, the names of what is no choice of the
    objective."""
    default = composed().hydra.runtime.choices
    rows = [
        [f"`{room}={path.stem}`" + (" (default)" if path.stem == default[room] else ""), *_linked(head(path))]
        for room in ROOMS
        for path in options(room, conf)
    ]
    listed = {room: [_named(path.stem, default.get(room)) for path in options(room, conf)] for room in OTHERS}
    others = [f"- `{room}`: {', '.join(names)}" for room, names in listed.items()]
    return "\n".join([*_table(["option", "formula", "paper", "elsewhere"], rows), "", "Beside them:", "", *others])


def _named(option: str, default: str | None) -> str:
    return f"`{option}`" + (" (default)" if option == default else "")


def _linked(given: Head) -> list[str]:
    return [DASH if text == "-" else text for text in (given.formula, _links(given.paper), given.peers)]


def _links(text: str) -> str:
    """arXiv:2402.03300 -> a Markdown link."""
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", text)


def presets_table() -> str:
    """Every preset with the choices in which presets differ, numbers included."""
    rows = [_preset(path) for path in options("algorithm")]
    columns = ["`algorithm=`", "paper", "reward", "advantage", "token loss", "mean", "KL", "updates per rollout"]
    return "\n".join(_table(columns, rows))


def _preset(path: Path) -> list[str]:
    cfg = composed(f"algorithm={path.stem}")
    choice = cfg.hydra.runtime.choices
    paper = paper_of(path)

    def also(room: str, unless: str) -> list[str]:
        return [f"{room} {_shown(room, choice, cfg)}"] if choice[room] != unless else []

    epochs = cfg["update"]["epochs"]  # cfg.update is a method
    return [
        f"`{path.stem}`",
        DASH if paper == "-" else _links(paper),
        "; ".join([_shown("reward", choice, cfg), *also("transform", "none"), *also("keep", "all")]),
        "; ".join(
            [
                _shown("baseline", choice, cfg),
                *also("scale", "none"),
                *also("whiten", "none"),
                *also("credit", "outcome"),
                *also("combine", "sum_then_normalise"),
            ]
        ),
        "; ".join(
            [
                _shown("surrogate", choice, cfg),
                *also("ratio", "token"),
                *also("tokens", "all"),
                *also("correction", "none"),
                *also("entropy", "none"),
            ]
        ),
        _aggregates(choice),
        _kl(choice, cfg),
        str(epochs * cfg["update"]["minibatches"]) + (f" ({epochs} epochs)" if epochs > 1 else ""),
    ]


def _aggregates(choice: Mapping[str, str]) -> str:
    others = {term: choice.get(f"aggregate@aggregate_{term}") for term in ("kl", "entropy")}
    return "; ".join([f"`{choice['aggregate']}`", *(f"{term} `{option}`" for term, option in others.items() if option)])


def _kl(choice: Mapping[str, str], cfg: DictConfig) -> str:
    if not cfg.beta:
        return DASH
    reference = "" if choice["reference"] == "fixed" else f", reference `{choice['reference']}`"
    return f"β {cfg.beta:g}, `{choice['kl']}`, `{choice['placement']}`{reference}"


def _shown(room: str, choice: Mapping[str, str], cfg: DictConfig) -> str:
    """An option's name, with its numbers in brackets where they matter."""
    numbers = ", ".join(_numbers(cfg[room])) if room in NUMBERS else ""
    return f"`{choice[room]}`" + (f" ({numbers})" if numbers else "")


def _numbers(node: Any) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, int | float) and not key.startswith("_") and key not in TECHNICAL:
            yield f"{key} {value:g}"


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), "|" + "---|" * len(columns), *map(line, rows)]


# --- README -----------------------------------------------------------------------------------------------------------


def filled(text: str) -> str:
    """README's text with both tables between their markers. Raises BadHead where a marker is missing or where
    something that was never verified would be printed."""
    for name, table in {"rooms": rooms_table(), "presets": presets_table()}.items():
        if "[unverified]" in table:
            raise BadHead(f"The table of {name} would print something marked [unverified]; take it out of the heads.")
        before, opening, rest = text.partition(f"<!-- {name} -->\n")
        _, closing, after = rest.partition(f"<!-- /{name} -->\n")
        if not (opening and closing):
            raise BadHead(
                f"README.md has no lines <!-- {name} --> and <!-- /{name} -->; put them where the table belongs."
            )
        text = f"{before}{opening}{table}\n{closing}{after}"
    return text


def command(write: bool, readme: Path = README) -> int:
    """Print both tables; with `write` put them into README. -> exit code 0; 1 if README has other ones or a file's
    head is wrong; 2 if there is no README."""
    if not readme.is_file():
        print(f"There is no {readme}; run this in a checkout.")
        return 2
    try:
        print(rooms_table(), presets_table(), sep="\n\n")
        before = readme.read_text(encoding="utf-8")
        after = filled(before)
    except BadHead as fault:
        print(fault)
        return 1
    if before == after:
        return 0
    if not write:
        print(f"\n{readme} has other tables; `ablate-check tables write` puts these in.")
        return 1
    readme.write_text(after, encoding="utf-8")
    print(f"\nWritten to {readme}.")
    return 0
