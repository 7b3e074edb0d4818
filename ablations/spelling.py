"""How names and values are spelled in a store whose alphabet and lengths are narrower than a config's."""

import hashlib
import math
import re
from typing import Any

PARAMETER, KEY = 6000, 250              # characters, MLflow's limits
WORDS = {"@": "_at_", "%": "_percent", "[": ".", "]": "", "=": "-"}
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def name(metric: str) -> str:
    """A name in MLflow's alphabet: pass@1 -> pass_at_1, top[5] -> top.5, a=1 -> a-1, 95% -> 95_percent."""
    mapped = "".join(WORDS.get(character, character) for character in metric)
    mapped = re.sub(r"[^A-Za-z0-9_.\- :/]", lambda found: f"_u{ord(found[0]):x}", mapped)
    mapped = re.sub("/+", "/", mapped).strip("/")
    return mapped if len(mapped) <= KEY else f"{mapped[:KEY - 17]}_{checksum(mapped)}"


def canonical(value: Any) -> str:
    """A parameter's text, one for all spellings of a value: 1e-3 and 0.001; 1, 1.0 and "1"; true and True."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value).strip()
    if text in ("True", "False"):
        return text.lower()
    if text[:1] in ("[", "{"):  # a list as it was typed, and as Hydra writes it again
        text = re.sub(r"\s+", "", text)
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        about = f"... ({len(text)} characters, sha256 {checksum(text)}, whole in config.yaml)"
        return text if len(text) <= PARAMETER else text[:200] + about
    if re.fullmatch(r"[+-]?\d+", text):
        return str(int(text))
    number = float(text)
    return str(int(number)) if number.is_integer() else repr(number)


def checksum(text: str) -> str:
    """16 hexadecimal digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
