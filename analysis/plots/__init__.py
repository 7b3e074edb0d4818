"""Figures from the tidy frame: every one shows n and the single seeds, and reads in colour, in grey and without colour
vision.

Each function takes frames and returns a matplotlib figure; nothing is shown, saved or changed. No figure goes through
pyplot, so nothing here depends on a window system or changes settings that other code sees.
"""

from analysis.plots.against import against, agreement
from analysis.plots.arms import heat_map, ladder, levels
from analysis.plots.curves import learning_curves, small_multiples
from analysis.plots.forest import forest
from analysis.plots.frontier import frontier
from analysis.plots.hacking import hacking
from analysis.plots.layout import facets, layout
from analysis.plots.predicted import predicted

__all__ = [
    "against",
    "agreement",
    "facets",
    "forest",
    "frontier",
    "hacking",
    "heat_map",
    "ladder",
    "layout",
    "learning_curves",
    "levels",
    "predicted",
    "small_multiples",
]
