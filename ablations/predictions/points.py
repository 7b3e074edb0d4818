"""A point of a curve: what was predicted, what was measured, and how far apart they may be."""

from typing import NamedTuple


class Point(NamedTuple):
    """panel, line: where it is drawn, for example "G = 8" and "group_std". x, predicted, measured: in the units of the
    part's axes. error: standard error of the measurement, 0 where it has no sampling noise. tolerance: largest
    difference with which the prediction holds; 4 standard errors where there is noise."""

    panel: str
    line: str
    x: float
    predicted: float
    measured: float
    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return abs(self.measured - self.predicted) <= self.tolerance  # False for NaN
