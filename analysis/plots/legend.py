"""The legend that the figures share: each arm with its n, and what did not complete."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.look import Style, short_names


def legend(
    figure: Figure,
    arms: Sequence[str],
    styles: Mapping[str, Style],
    counts: Mapping[str, set[int]],
    runs: pd.DataFrame,
    arm: str,
    *,
    also: Sequence[Line2D] = (),
    crosses: bool = True,
) -> int:
    """Below the panels: each arm with its n, and how many of its runs did not complete -> its height in lines."""
    names, heading = short_names(arms) if arm == "arm" else ({name: str(name) for name in arms}, arm)
    handles = []
    for name in arms:
        style, n = styles[name], sorted(counts[name])
        seen = f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}" if n else "0"
        states = runs.state[runs[arm].astype(object).eq(name)].value_counts().drop("complete", errors="ignore")
        more = ["no interval"] if n == [1] else ["no value"] if n == [0] else ["no value in a panel"] if 0 in n else []
        more += [f"{count} {state}" for state, count in sorted(states.items())]
        text = f"{names[name]} ({', '.join([f'n = {seen}', *more])})"
        line = Line2D([], [], color=style.colour, linewidth=1.8, marker=style.marker, markersize=4.5, label=text)
        line.set_dashes(style.dash or (None, None))
        handles.append(line)
    if crosses and runs.state.isin(["failed", "diverged"]).any():
        handles.append(Line2D([], [], linestyle="none", marker="x", color="#555555", label="run failed or diverged"))
    if crosses and runs.state.eq("running").any():
        handles.append(
            Line2D([], [], linestyle="none", marker="o", fillstyle="none", color="#555555", label="run not finished")
        )
    handles += also
    widest = max(len(handle.get_label()) for handle in handles)
    per_row = max(1, min(len(handles), int(figure.get_figwidth() * 15 // (widest + 8))))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=per_row,
        frameon=False,
        title=heading or None,
        handlelength=3.2,
    )
    return math.ceil(len(handles) / per_row) + bool(heading)
