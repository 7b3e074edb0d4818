"""Controlled ablations of group-relative policy optimisation: one run, a crossing of runs, and what they show."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

# A wheel carries the configuration inside the package; a checkout keeps it beside the package, where it is edited.
CONF = str(_PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf")
