"""A report as blocks of plain text, and as Markdown. `analysis.html` writes the same blocks as a web page.

Text in a block is text: whatever markup it holds is shown and not obeyed. Emphasis and links are parts of their own, so
that nothing that comes from a run can pretend to be one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Strong(NamedTuple):
    text: str


class Emphasis(NamedTuple):
    text: str


class Link(NamedTuple):
    text: str
    target: str


Part = str | Strong | Emphasis | Link


class Heading(NamedTuple):
    """level: 1 is the page's title."""

    text: str
    level: int = 2


class Text(NamedTuple):
    """A paragraph. lead: the sentence that a hurried reader should see."""

    parts: Sequence[Part]
    lead: bool = False


class Bullets(NamedTuple):
    entries: Sequence[Sequence[Part]]


class Table(NamedTuple):
    """Cells are texts or sequences of parts. main: column of what the row is about (a card's title on a narrow
    screen)."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    main: int = 0


class Picture(NamedTuple):
    """file: path of a PNG from the folder of the report."""

    file: str
    caption: str


class Source(NamedTuple):
    """Text as it is, in fixed width. language: sh, yaml, or empty."""

    text: str
    language: str = ""


class Fold(NamedTuple):
    """Blocks behind a title, closed at first."""

    title: str
    blocks: Sequence[object]


class Card(NamedTuple):
    """One ablation among others. file: of its picture, from the folder of the page; alt: what it shows."""

    title: Link
    file: str
    alt: str
    lines: Sequence[Sequence[Part]]


class Cards(NamedTuple):
    cards: Sequence[Card]


Block = Heading | Text | Bullets | Table | Picture | Source | Fold | Cards


def text(*parts: Part, lead: bool = False) -> Text:
    return Text([part for part in parts if part], lead)


def markdown(blocks: Iterable[Block]) -> str:
    """The blocks as Markdown, without a final newline."""
    return "\n\n".join(_markdown(block) for block in blocks)


def _markdown(block: Block) -> str:
    match block:
        case Heading(title, level):
            return f"{'#' * level} {plain(title)}"
        case Text(parts):
            return inline(parts)
        case Bullets(entries):
            return "\n".join(f"- {inline(entry)}" for entry in entries)
        case Table(head, rows):
            lines = [head, ["---"] * len(head), *rows]
            return "\n".join("| " + " | ".join(inline(as_parts(cell)) for cell in line) + " |" for line in lines)
        case Picture(file, caption):
            return f"![{plain(file)}]({file})\n\n*{plain(caption)}*"
        case Source(content, language):
            fence = "```"
            while fence in content:
                fence += "`"
            return f"{fence}{language}\n{content}\n{fence}"
        case Fold(title, inside):
            return f"<details><summary>{plain(title)}</summary>\n\n{markdown(inside)}\n\n</details>"
    raise TypeError(f"{type(block).__name__} is not a block of a page.")


def as_parts(cell: object) -> Sequence[Part]:
    """A cell as parts: a text or number is one."""
    whole = isinstance(cell, Strong | Emphasis | Link)
    return [cell] if whole else list(cell) if isinstance(cell, list | tuple) else [str(cell)]


def inline(parts: Sequence[Part]) -> str:
    return "".join(map(_inline, parts))


def _inline(part: Part) -> str:
    match part:
        case Strong(content):
            return f"**{plain(content)}**"
        case Emphasis(content):
            return f"*{plain(content)}*"
        case Link(content, target):
            return f"[{plain(content)}]({target})"
    return plain(part)


def plain(content: object) -> str:
    """One line of Markdown that starts no tag, no bracketed link, no picture and no table cell; emphasis and backticks
    pass. A space at either end stays. What cannot be seen (control signs, turns of the writing direction) is
    written as its number."""
    content = "".join(sign if sign.isprintable() or sign.isspace() else f"U+{ord(sign):04X}" for sign in str(content))
    ends = content[:1].isspace(), content[-1:].isspace()
    line = " ".join(content.split())
    line = f"{' ' * ends[0]}{line}{' ' * ends[1]}" if line else ""
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")
    return line.replace("](", "]\\(").replace("![", "!\\[")
