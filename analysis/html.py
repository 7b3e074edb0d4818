"""A page's blocks as one self-contained file of HTML: no network, no script, figures inside the file.

Jinja escapes every text, so what comes from a run is shown and never obeyed: a sampled answer with a script tag stays
an answer.
"""

import base64
from collections.abc import Sequence
from pathlib import Path

import jinja2
from PIL import Image

from analysis.page import Block, as_parts

SHORT = 18  # characters of a cell that is kept on one line: an interval, a number
SCALE = 0.8  # of a figure's dots to CSS pixels: its text then has the size of the page's

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(title: str, blocks: Sequence[Block], folder: Path, *, refresh: int = 0) -> str:
    """The blocks as HTML. folder: where the files of its pictures lie. refresh: seconds after which a browser reads the
    file again, for a report that is still being written; 0: never."""
    return TEMPLATES.get_template("page.html").render(
        title=title,
        blocks=blocks,
        refresh=refresh,
        kind=lambda block: type(block).__name__,
        parts=as_parts,
        picture=lambda file: embedded(folder / file),
        width=lambda file: width(folder / file),
        short=lambda cell: isinstance(cell, str | int) and len(str(cell)) <= SHORT,
    )


def embedded(file: Path) -> str:
    """A PNG as a data URI; empty if it is not there."""
    if not file.is_file():
        return ""
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def width(file: Path) -> int:
    """At which a figure is shown, in CSS pixels."""
    if not file.is_file():
        return 0
    with Image.open(file) as opened:
        return round(SCALE * opened.width)
