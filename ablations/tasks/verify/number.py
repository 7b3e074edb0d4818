"""The forms in which a plain number may be written, and no others.

Values are exact fractions: 0.1 is one tenth, and no rounding makes two different numbers equal. A percentage is a
hundredth of its number on both sides (50% is 0.5 and not 50). An expression that is still to be worked out, `8*9`, is
no number. Where a text could be read as two numbers it is read as none.
"""

import re
from fractions import Fraction

LONGEST = 200  # characters; a longer text is no plain number

# A text may say of what there are so many. A closed list: "5 million", "5 dozen" or "5 or 6" are other numbers.
# Which unit it is is not compared. One letter, or "cents", is left out: `5m` may be millions, 50 cents is not 50.
_UNITS = (
    "dollar dollars usd euro euros eur pound pounds gbp yen rupees second seconds sec minute minutes min hour "
    "hours day days week weeks month months year years mm cm km meter meters metre metres kilometer kilometers "
    "kilometre kilometres inch inches foot feet yard yards mile miles gram grams kg kilogram kilograms ounce "
    "ounces lb lbs ton tons liter liters litre litres gallon gallons degree degrees mph point points person "
    "people student students apple apples book books item items unit units piece pieces"
)
UNITS = frozenset(_UNITS.split())

_WHOLE = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)"  # a group of three after a leading 0 could be a decimal comma
_DECIMAL = rf"(?:{_WHOLE}(?:\.\d+)?|\.\d+)"
_PLAIN = re.compile(
    rf"(?P<sign>[-+]?)(?P<currency>[$€£]?)(?P<inner>[-+]?)(?P<number>{_DECIMAL})"
    rf"(?:[eE](?P<e>[-+]?\d{{1,3}})|\s?(?:\\times|\\cdot|[×·*])\s?10\^(?:(?P<t>\d{{1,3}})|\{{(?P<b>[-+]?\d{{1,3}})\}}))?"
    rf"(?P<percent>\s?%|\s?percent)?(?P<behind>\s?[$€£])?(?:\s*(?P<unit>[A-Za-z]+))?",
    re.ASCII,
)
_FRACTION = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<whole>{_WHOLE})(?:\s+|(?=\\)))?"  # "11/2" has no whole part
    rf"(?:(?P<a>{_WHOLE})\s?/\s?(?P<b>-?{_WHOLE})"
    rf"|\\[cdt]?frac(?:\{{(?P<c>[-+]?{_WHOLE})\}}|\s?(?P<d>\d))(?:\{{(?P<e>[-+]?{_WHOLE})\}}|\s?(?P<f>\d)))"
    rf"(?:\s*(?P<unit>[A-Za-z]+))?",
    re.ASCII,
)
_ALIKE = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-") | {"\u00a0": " "})
_RAISED = re.compile("(?<=10)[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_LOWERED = str.maketrans("\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "-0123456789")
_DEGREES = re.compile(r"\s?(?:\u00b0|\^\s?(?:\\circ|\{\\circ\}))")
_TEXT = re.compile(r"\\(?:text|mathrm)\{([^{}]*)\}")
_GROUPING = re.compile(r"(?<=\d)(?:\\,|,?\\!|\{,\}|[\u2009\u202f])(?=\d{3})", re.ASCII)
_PAIRS = (("**", "**"), ("__", "__"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"), ("\\boxed{", "}"))
_PAIRS += (("\\mathrm{", "}"), ("\\mathbf{", "}"), ("\\textbf{", "}"))
_PAIRS += (("*", "*"), ("`", "`"), ('"', '"'), ("'", "'"), ("$", "$"), ("\u201c", "\u201d"))


def number(text: str) -> Fraction | None:
    """The number that `text` writes, or None.

    Read are integers, decimals, groups of three (`1,800`, `1\\,800`), fractions (`1/2`, `\\frac{1}{2}`, `1 1/2`), a
    number times a power of ten (`1.8e3`, `1.8 \\times 10^{3}`), percentages, any common minus sign, a currency sign or
    one unit of the list UNITS, and marks around it (Markdown, LaTeX, quotes, a full stop at the end).
    """
    if len(text) > LONGEST:
        return None
    text = _bare(text)
    if len(text.splitlines()) > 1:
        return None  # "5" above "1/2" are two numbers, and not five and a half
    text = _GROUPING.sub(",", text.translate(_ALIKE)).replace("\\$", "$").replace("\\%", "%")
    if not text.isascii():
        text = _RAISED.sub(lambda power: f"^{{{power[0].translate(_LOWERED)}}}", text)
    if "\\" in text or "~" in text or "\u00b0" in text:
        text = _DEGREES.sub(" degrees", text)
        text = _TEXT.sub(r" \1", text).replace("\\ ", " ").replace("\\,", " ").replace("~", " ").strip()
    if match := _PLAIN.fullmatch(text):
        return _plain(match)
    if match := _FRACTION.fullmatch(text):
        return _fraction(match)
    return None


def _bare(text: str) -> str:
    """Without the marks around the number."""
    before = None
    while text != before:
        before = text
        text = text.strip()
        if text.endswith(".") and text[-2:-1] not in ("", "."):
            text = text[:-1]
        for opening, closing in _PAIRS:
            inside = len(text) > len(opening) + len(closing)
            if inside and text.startswith(opening) and text.endswith(closing):
                text = text[len(opening) : -len(closing)]
                break
    return text


def _plain(match: re.Match) -> Fraction | None:
    if match["sign"] and match["inner"] or match["inner"] and not match["currency"]:
        return None  # "--3" and "+-3" are no numbers
    if not _counts(match["unit"]) or sum(map(bool, match.group("unit", "percent", "currency", "behind"))) > 1:
        return None
    value = Fraction(match["number"].replace(",", ""))
    value *= Fraction(10) ** int(match["e"] or match["t"] or match["b"] or 0)
    if match["percent"]:
        value /= 100
    return -value if "-" in (match["sign"], match["inner"]) else value


def _fraction(match: re.Match) -> Fraction | None:
    above, below = match["a"] or match["c"] or match["d"], match["b"] or match["e"] or match["f"]
    inner = "-" in above + below or "+" in above + below
    if not _counts(match["unit"]) or inner and (match["sign"] or match["whole"] or "-" in below and "-" in above):
        return None  # as with decimals, one sign is a number and two are none
    above, below = int(above.replace(",", "")), int(below.replace(",", ""))
    if not below:
        return None
    value = int((match["whole"] or "0").replace(",", "")) + Fraction(above, below)
    return -value if match["sign"] == "-" else value


def _counts(unit: str | None) -> bool:
    """Whether a word behind a number leaves it the number that it is."""
    return unit is None or unit.lower() in UNITS
