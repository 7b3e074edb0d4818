"""What makes two runs the same run: a hash of the resolved config without what cannot change a number, and a folder
name to read."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Where and how a run is executed, and what is asked about it afterwards.
OUTSIDE = ("hydra", "machine", "device", "dry_run", "name")
OUTSIDE += ("budget", "question", "paper", "crossing", "claims", "figures", "placebo", "plain")
OUTSIDE += ("search", "tune", "tuning", "also", "beside", "predictions", "cost", "claimed_arms")


def results_folder() -> str:
    """Absolute path of everything that commands write or read.

    $ABLATIONS_RESULTS (relative to the caller's folder) if set; else results/ of the checkout that this package runs
    from, whatever folder the command is given in; else, for an installed package, results/ in the caller's folder.
    """
    if named := os.environ.get("ABLATIONS_RESULTS"):
        return str(Path(named).absolute())
    checkout = Path(__file__).resolve().parent.parent
    home = checkout if (checkout / "pyproject.toml").is_file() else Path.cwd()
    return str(home / "results")


def canonical(value: Any) -> Any:
    """One spelling per value, so that 1 and 1.0, or the order of keys, make no second run."""
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def digest(value: Any) -> str:
    """16 hexadecimal digits of SHA-256 over the canonical JSON of `value`."""
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def config_hash(config: Mapping[str, Any]) -> str:
    """The digest of `config` (resolved) without the keys in OUTSIDE."""
    return digest({key: value for key, value in config.items() if key not in OUTSIDE})


def swept(overrides: Sequence[str]) -> dict[str, str]:
    """The choices that a command line makes inside the run's identity, key -> text. `+x=1` and `x=1` are the same
    choice."""
    pairs = (override.lstrip("+~").split("=", 1) for override in overrides if "=" in override)
    outside = (*OUTSIDE, "ablation")
    return {key: text for key, text in pairs if key.split(".")[0].split("/")[0] not in outside}


def arm(choices: Mapping[str, str]) -> str:
    """What is compared: every choice except seed and base, for example "aggregate=constant scale=none"."""
    compared = sorted((key, text) for key, text in choices.items() if key not in ("seed", "base"))
    return " ".join(f"{key}={text}" for key, text in compared) or "default"


def slug(choices: Mapping[str, str], hashed: str) -> str:
    """A folder name: options by name, settings as name and value, made of safe characters only, and eight digits of
    the hash; at most 80 characters."""
    words = [
        text if text[:1].isalpha() and "." not in key else key.split(".")[-1] + text for key, text in choices.items()
    ]
    words = words or ["default"]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).strip("-.")[:70]
    return f"{readable}-{hashed[:8]}"
