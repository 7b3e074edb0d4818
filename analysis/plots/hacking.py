"""Reward hacking in one look: what passes the careless checker against what is right."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.look import Style
from analysis.plots.against import against

STRICT, CARELESS = "accuracy/train", "accuracy/lenient"


def hacking(
    rows: pd.DataFrame,
    arm: str,
    runs: pd.DataFrame,
    *,
    by: Sequence[str] = (),
    styles: Mapping[str, Style] | None = None,
    everywhere: Sequence[str] = (),
) -> Figure:
    """The careless checker's accuracy against the strict one's along training, one path per arm, single seeds thin.

    On the dashed diagonal the two agree; a path's height above it is accuracy/lenient_gap, what is paid for and not
    right. Learning moves to the right, hacking moves up. Both axes reach from 0 to 1. n counts runs.
    """
    figure = against(rows, STRICT, CARELESS, arm, runs, by=by, styles=styles, everywhere=everywhere)
    for ax in figure.axes:
        ax.plot([0, 1], [0, 1], color="#444444", linewidth=0.8, linestyle="--", zorder=1, scalex=False, scaley=False)
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
    return figure
