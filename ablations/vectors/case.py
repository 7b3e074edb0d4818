"""Reading a reference case: a JSON file whose every entry knows where it stands, so that an error can say so."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCHEMA = 2
WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}


class BadCase(ValueError):
    """A case that does not follow the schema; the message names the key, what was given and what is allowed."""


class Node:
    """A value of the file with its path. An entry that is left out reads as null."""

    def __init__(self, value: Any, path: str):
        self.value, self.path = value, path

    def __getitem__(self, key: str) -> "Node":
        if not isinstance(self.value, Mapping | None):
            raise self.bad(f"an object with {key}")
        return Node((self.value or {}).get(key), f"{self.path}.{key}" if self.path else key)

    def bad(self, allowed: str) -> BadCase:
        return BadCase(f"{self.path or 'the case'} is {_shown(self.value)}; allowed: {allowed}.")

    def only(self, *keys: str) -> "Node":
        """Itself, if it is an object with no other key than these, but for keys that are null: those say nothing."""
        if not isinstance(self.value, Mapping):
            raise self.bad(f"an object with {', '.join(keys)}" if keys else "an object without any entry")
        if strange := sorted(key for key in set(self.value) - set(keys) if self.value[key] is not None):
            raise BadCase(
                f"{self.path} has the key {', '.join(map(repr, strange))}; allowed: {', '.join(keys) or 'none'}."
            )
        return self

    def items(self) -> list["Node"]:
        """The entries of a list; null reads as an empty one."""
        if not isinstance(self.value, list | None):
            raise self.bad("a list, or null")
        return [Node(value, f"{self.path}[{i}]") for i, value in enumerate(self.value or [])]

    def pick(self, table: Mapping[str | None, Any]) -> Any:
        """What the table holds for this name."""
        if not isinstance(self.value, str | None) or self.value not in table:
            raise self.bad(", ".join(map(_shown, table)))
        return table[self.value]

    def one_of(self, *allowed: Any) -> Any:
        """Itself, if it is one of these values, and of its type: 1 is not true."""
        if not any(type(self.value) is type(value) and self.value == value for value in allowed):
            raise self.bad(", ".join(map(_shown, allowed)))
        return self.value

    def number(self) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.bad("a number")
        return float(self.value)

    def number_or_null(self) -> float | None:
        return None if self.value is None else self.number()

    def interval(self) -> list[float | None] | None:
        ends = self.items()
        if self.value is not None and len(ends) != 2:
            raise self.bad("null, or [low, high] with null for an open end")
        return [end.number_or_null() for end in ends] or None

    def names(self, *allowed: str) -> list[str]:
        return [entry.one_of(*allowed) for entry in self.items()]


def _shown(value: Any) -> str:
    """As it stands in the file, cut after 60 characters."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def read(path: Path) -> Node:
    """The file as a node. Raises BadCase where it is no JSON object of the schema."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCase(f"the file cannot be read as JSON ({error}); a case is one JSON object.") from None
    case = Node(content, "")
    if not isinstance(content, Mapping):
        raise case.bad("an object")
    case["schema_version"].one_of(SCHEMA)
    for key in ("options", "inputs", "outputs", "verification"):
        if not isinstance(case[key].value, Mapping):
            raise case[key].bad("an object")
    return case


def numbers(node: Node) -> Tensor:
    """A number, or nested lists of numbers of one shape, as float64. Those that are not finite are written as words."""

    def convert(entry: Any) -> Any:
        if isinstance(entry, list):
            return [convert(one) for one in entry]
        if isinstance(entry, str) and entry in WORDS:
            return WORDS[entry]
        if isinstance(entry, int | float):
            return float(entry)
        raise BadCase(f"{node.path} holds {_shown(entry)}; allowed: numbers, and the words {', '.join(WORDS)}.")

    table = convert(node.value)
    try:
        return torch.tensor(table, dtype=torch.float64)
    except (ValueError, TypeError) as error:
        raise BadCase(f"{node.path} is no table ({error}); all its rows must have the same length.") from None
