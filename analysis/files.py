"""Files of runs and of ablations, read so that a damaged one is told by its name and not by a traceback."""

import json
from pathlib import Path

import pandas as pd
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException


class Unreadable(ValueError):
    """A file that is there and cannot be used; the message says which one, and why."""

    def __init__(self, file: Path | str, why: object) -> None:
        super().__init__(f"{file} cannot be read ({' '.join(str(why).split())})")


def json_of(file: Path, name: str = "") -> dict:
    """The names and values of a JSON file. name: what a message calls it, if not by its path."""
    try:
        return _named(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, OSError, RecursionError) as error:
        raise Unreadable(name or file, error) from None


def yaml_of(file: Path) -> dict:
    """The names and values of a yaml file, with what they refer to put in."""
    try:
        return _named(OmegaConf.to_container(OmegaConf.load(file), resolve=True))
    except (ValueError, OSError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise Unreadable(file, error) from None


def parquet_of(file: Path, without: str) -> pd.DataFrame:
    """The table of a parquet file. without: what the report would show if it were taken away."""
    try:
        return pd.read_parquet(file)
    except (ValueError, OSError) as error:
        raise Unreadable(file, f"{error}; without it the report shows {without}") from None


def _named(content: object) -> dict:
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not names with values")
    return content
