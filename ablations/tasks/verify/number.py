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
    rf"(?:[eE](?P<e>[-+]?\d{{1,3}})|\s?(?:\\times|×|\*)\s?10\^(?:(?P<t>\d{{1,3}})|\{{(?P<b>[-+]?\d{{1,3}})\}}))?"
    rf"(?P<percent>\s?%|\s?percent)?(?:\s*(?P<unit>[A-Za-z]+))?",
    re.ASCII,
)
_FRACTION = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<whole>{_WHOLE})(?:\s+|(?=\\)))?"  # "11/2" has no whole part
    rf"(?:(?P<a>{_WHOLE})\s?/\s?(?P<b>{_WHOLE})|\\[dt]?frac\{{(?P<c>{_WHOLE})\}}\{{(?P<d>{_WHOLE})\}}"
    rf"|\\[dt]?frac(?P<e>\d)(?P<f>\d))",
    re.ASCII,
)
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"))
_TEXT = re.compile(r"\\(?:text|mathrm)\{([^{}]*)\}")
_GROUPING = re.compile(r"(?<=\d)(?:\\,|\\!|\{,\}|[\u2009\u202f])(?=\d{3})", re.ASCII)
_PAIRS = (("**", "**"), ("__", "__"), ("$$", "$$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"), ("\\boxed{", "}"))
_PAIRS += (("\\mathrm{", "}"), ("*", "*"), ("`", "`"), ('"', '"'), ("'", "'"), ("$", "$"), ("\u201c", "\u201d"))


def number(text: str) -> Fraction | None:
    """The number that `text` writes, or None.

    Read are integers, decimals, groups of three (`1,800`, `1\\,800`), fractions (`1/2`, `\\frac{1}{2}`, `1 1/2`),
    powers of ten (`1.8e3`, `1.8 \\times 10^{3}`), percentages, any common minus sign, a currency sign or one unit of
    the list UNITS, and marks around it (Markdown, LaTeX, quotes, a full stop at the end).
    """
    if len(text) > LONGEST:
        return None
    text = _GROUPING.sub(",", _bare(text).translate(_DASHES)).replace("\\$", "$").replace("\\%", "%")
    if "\\" in text or "~" in text:
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
    unit = match["unit"]
    if unit and (unit.lower() not in UNITS or match["percent"] or match["currency"]):
        return None
    value = Fraction(match["number"].replace(",", ""))
    value *= Fraction(10) ** int(match["e"] or match["t"] or match["b"] or 0)
    if match["percent"]:
        value /= 100
    return -value if "-" in (match["sign"], match["inner"]) else value


def _fraction(match: re.Match) -> Fraction | None:
    above, below = next((match[a], match[b]) for a, b in ("ab", "cd", "ef") if match[a])
    below = int(below.replace(",", ""))
    if not below:
        return None
    value = int((match["whole"] or "0").replace(",", "")) + Fraction(int(above.replace(",", "")), below)
    return -value if match["sign"] == "-" else value
