"""Generated answers with known verdicts, and strings that break parsers."""

import random
from collections.abc import Iterator
from fractions import Fraction

FORMS = [
    "{n}", " {n} ", "{n}.", "**{n}**", "*{n}*", "`{n}`", "${n}$", "$${n}$$", "\\({n}\\)", "\\[{n}\\]", "\\text{{{n}}}",
    "\\boxed{{{n}}}", "\"{n}\"", "{n}.0", "{n}.00", "{n} dollars", "{n} apples", "{n} km", "{n}\\text{{ dollars}}",
    "{n}/1", "\\frac{{{n}}}{{1}}", "\\cfrac{{{n}}}1", "{n}/1 hours", "{h}%", "{h}\\%", "{h} percent",
    "{n}e0", "{n} \\times 10^{{0}}", "**{n}.**",
    "{n} \\cdot 10^{{0}}", "{n}\u00d710\u2070", "{n}\u00a0km", "{n}\u20ac", "{n} \u00a3", "{n}^\\circ", "{n}\u00b0",
    "\\frac{{{n}}}{{1}}\\text{{ mile}}", "\\mathbf{{{n}}}",
]  # fmt: skip
SIGNED = ["-{n}", "\u2212{n}", "\u2013{n}", "\u2011{n}", "-{n}.0", "$-{n}$", "-${n}", "$-{n}", "**-{n}**", "-{n}/1"]
SIGNED += ["\\frac{{-{n}}}{{1}}", "\\frac{{{n}}}{{-1}}", "{n}/\u22121"]
GROUPED = ["{g}", "{g}.00", "\\${g}", "${g}", "\u20ac{g}", "{t}", "{b}", "{s}", "{c}"]
SPOILT = [
    "not {n}", "{n} or {m}", "{n}, {m}", "{n} is wrong", "about {n}", "{n}!", "{n}^2", "({n})", "--{n}", "- {n}",
    "{n} million", "{n}k", "{n}*1", "{n}+0", "x={n}+1", "{n}{n}", "1/{n}{n}", "{n}.5", "{n}%", "", "?", "{n}\n{m}",
    "{n},{n}", "0x{n}", "{n}_000", "\\frac{{{n}}}{{2}}", "{n} 1/2", "\u0663", "{n}\u00b2", "{n}e1", "{n}..",
    "\\boxed{{}}", "{n}\n1/2", "{n}\n%", "{n}\r\nkm", "{n}\u00b0F", "${n}\u20ac", "{n}^\\circ\\text{{C}}", "10^{n}",
    "1/{n} percent", "-\\frac{{-{n}}}{{1}}", "{n}\\frac{{-1}}{{1}}",
]  # fmt: skip


def numeric(count: int, rng: random.Random) -> Iterator[tuple[str, str, bool]]:
    """(answer, gold, right) in equal parts right and wrong; `count` of them."""
    for i in range(count):
        n, m = rng.randrange(2, 999), rng.randrange(1000, 2000)
        if i % 2:
            yield rng.choice(SPOILT).format(n=n, m=m), str(n), False
        elif i % 6 == 0:
            yield rng.choice(SIGNED).format(n=n), str(-n), True
        elif i % 6 == 2:
            n = rng.randrange(1000, 10**7)
            grouped = f"{n:,}"
            forms = dict(g=grouped, t=grouped.replace(",", "\\,"), b=grouped.replace(",", "{,}"))
            forms |= dict(s=grouped.replace(",", "\u202f"), c=grouped.replace(",", ",\\!"))
            yield rng.choice(GROUPED).format(**forms), str(n), True
        else:
            yield rng.choice(FORMS).format(n=n, h=100 * n), str(n), True


def fraction_of(text: str) -> Fraction | None:
    """A second, much duller reader of plain numbers, for comparison."""
    try:
        return Fraction(text.replace(",", "")) if text.isascii() and not set(text) & set(" \n_") else None
    except (ValueError, ZeroDivisionError):
        return None


ALPHABET = "0123456789.,-+*/()[]{}<>\\$%#^_=!?\u2212\u2013\u00bd\u0663 \n\tabexyz"
PIECES = ["####", "\\boxed{", "<answer>", "</answer>", "<think>", "</think>", "\\frac{", "}", "{", "\\text{", "1,800"]
PIECES += ["\\,", "$", "**", "answer is", "\x00", "\ud7ff", "\U0001f600", "1e999", "9^9^9", "0" * 300, "(" * 300]
PIECES += ["-" * 300, "1," * 300]


def hostile(count: int, rng: random.Random) -> Iterator[str]:
    """Random text, text of marks that do not close, and long runs of one mark."""
    for i in range(count):
        if i % 3 == 0:
            yield "".join(rng.choices(ALPHABET, k=rng.randrange(200)))
        elif i % 3 == 1:
            marks = rng.choices(PIECES, k=rng.randrange(40))
            yield "".join(mark + rng.choice(ALPHABET) * rng.randrange(3) for mark in marks)
        else:
            piece = rng.choice(PIECES)
            yield piece * rng.choice((1, 100, 140_000 // len(piece)))
