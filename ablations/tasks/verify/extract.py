"""Which part of a response is its answer. A policy is one function; its name and version are part of a run's config.

A careless rule decides more than any objective does: "the last number" invents answers in unmarked text, and a window
of the last characters loses answers that are followed by chat. Every policy here reads marks only, returns None where
there is none, takes any text, never raises, and costs time linear in the length of the text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

LONGEST_LINE = 100  # characters
_GOES_ON = (
    "or and to hundred thousand thousands million millions billion billions trillion trillions dozen dozens "
    "score k m bn percent times plus minus over by x squared cubed factorial point half halves third thirds "
    "quarter quarters"
)
GOES_ON = frozenset(_GOES_ON.split())
_BOX = re.compile(r"\\(?:boxed|fbox)\{")  # found in one pass: looking back from each for the one before is quadratic
VERSION = 2  # raised when a policy or a number form comes to read any text differently


@dataclass(frozen=True)
class Extract:
    """read(text) -> the answer or None; form(text) -> whether the response has the asked-for form, right or wrong.

    asks: the sentence that tells a model so, for the prompt. writes: the form, with {answer} in the answer's place.
    version: what the config was written for. Raises ValueError if the code has another one, since accuracies would not
    be comparable with those stored, and for a form that the policy does not read back.
    """

    read: Callable[[str], str | None]
    form: Callable[[str], bool]
    asks: str
    writes: str
    version: int

    def __post_init__(self) -> None:
        for name in ("read", "form"):
            object.__setattr__(self, name, unwrapped(getattr(self, name)))
        if self.version != VERSION:
            raise ValueError(
                f"the config asks for version {self.version} of the answer extraction and this is version {VERSION}, "
                "which reads some texts differently. Run it with the release that the config belongs to, or set "
                f"task.prompt.extract.version={VERSION} and do not compare with earlier runs."
            )
        if self.read(self.write("0")) != "0" or not self.form(self.write("0")):
            raise ValueError(
                f"task.prompt.extract.writes is {self.writes!r}, from which the policy does not read the answer back; "
                "write the form that it reads, with {answer} in the answer's place."
            )

    def write(self, answer: str) -> str:
        """The answer in the asked-for form."""
        return self.writes.replace("{answer}", answer)


def unwrapped(function: Callable) -> Callable:
    """The same function without the layers of a configured one, which cost more per call than grading does."""
    settings: dict = {}
    layered = function
    while isinstance(function, partial) and not function.args:
        function, settings = function.func, {**function.keywords, **settings}
    if function is layered:
        return function
    return partial(function, **settings) if settings else function


def whole(text: str) -> str | None:
    """Everything that was written, without the space around it; None if that is nothing."""
    return text.strip() or None


def first_marked(text: str, *, marker: str) -> str | None:
    """What follows the first `marker` on its line; None without a marker or with nothing after it.

    What a model writes after its answer, another marked answer included, changes nothing.
    """
    before, mark, after = text.partition(marker)
    return _line(after) if mark else None


def last_marked(text: str, *, marker: str) -> str | None:
    """What follows the last `marker` on its line: for models that use the mark for headings too."""
    before, mark, after = text.rpartition(marker)
    return _line(after) if mark else None


def boxed(text: str) -> str | None:
    """The contents of the last \\boxed{...} or \\fbox{...} whose braces close; None if there is none."""
    end = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        # Up to the box that was looked at before: a brace that closes later than that belongs to no inner box.
        closed = _closing(text, box.end() - 1, end)
        if closed is not None:
            return text[box.end() : closed].strip() or None
        end = box.start()
    return None


def tagged(text: str) -> str | None:
    """What stands between the first <answer> and the next </answer>, after the thinking if there is any.

    Tags inside <think> are drafts. None where a tag is missing.
    """
    after = text.rpartition("</think>")[2]
    _, opened, rest = after.partition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    return (inside.strip() or None) if opened and closed else None


# --- forms -----------------------------------------------------------------------------------------------------------


def one_line(text: str) -> bool:
    """Some text, and no line break in it."""
    return bool(text.strip()) and "\n" not in text.strip()


def ends_with_mark(text: str, *, marker: str) -> bool:
    """One marker only, in the last line, with something after it."""
    lines = text.strip().splitlines()
    return text.count(marker) == 1 and bool(lines) and last_marked(lines[-1], marker=marker) is not None


def one_box(text: str) -> bool:
    """One box only, closed."""
    return text.count("\\boxed{") + text.count("\\fbox{") == 1 and boxed(text) is not None


def one_tag(text: str) -> bool:
    """One <answer>...</answer>, at the end."""
    once = text.count("<answer>") == text.count("</answer>") == 1
    return once and text.rstrip().endswith("</answer>") and tagged(text) is not None


def think_then_tag(text: str) -> bool:
    """(<think>) ... </think> <answer> ... </answer> and nothing else; the opening may stand in the prompt."""
    body = text.strip().removeprefix("<think>")
    thought, closed, rest = body.partition("</think>")
    stray = "<think>" in body or "<answer>" in thought
    return bool(closed) and not stray and rest.strip().startswith("<answer>") and one_tag(rest)


def _line(after: str) -> str | None:
    """The line. One that is too long for an answer is an answer with chat behind it: its first word, unless the next
    one makes another number of it."""
    line = after.partition("\n")[0].strip()
    if len(line) > LONGEST_LINE:
        word, _, rest = line.partition(" ")
        following = rest[:40].split(" ")[0].strip(".,;:").lower()
        if word and following not in GOES_ON and following[:1].isalpha():
            return word
    return line or None


def _closing(text: str, opened: int, end: int) -> int | None:
    """Index of the brace that closes the one at `opened`, before `end`; a brace after a backslash does not count."""
    depth, at = 0, opened
    while at < end:
        sign = text[at]
        if sign == "\\":
            at += 1
        elif sign == "{":
            depth += 1
        elif sign == "}":
            depth -= 1
            if not depth:
                return at
        at += 1
    return None
