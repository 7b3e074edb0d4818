"""The figure of reward hacking: the height above the diagonal is the gap."""

import numpy as np
import pytest
from synthetic import Cell, write

from analysis import drawn, plots
from analysis.load import load


def store(folder):
    """Two arms, five seeds: the strict one learns, the careless one is paid for more and more and is right less."""
    cells = []
    for seed in range(5):
        for reward, slope in (("correctness", 0.0), ("lenient", 0.04)):
            strict = {step: 0.3 + (0.03 if not slope else -0.01) * step + 0.01 * seed for step in range(1, 11)}
            careless = {step: value + 0.05 + slope * step for step, value in strict.items()}
            points = {"accuracy/train": strict, "accuracy/lenient": careless}
            points["accuracy/lenient_gap"] = {step: careless[step] - strict[step] for step in strict}
            cells.append(Cell({"reward": reward}, seed, points))
    return load(write(folder, "x", cells), "x")


def test_a_paths_height_above_the_diagonal_is_the_gap(tmp_path):
    data = store(tmp_path)
    figure = plots.hacking(data.rows, "reward", data.runs)
    (ax,) = figure.axes
    diagonal = [line for line in ax.lines if line.get_linestyle() == "--" and line.get_color() == "#444444"]
    assert len(diagonal) == 1 and list(diagonal[0].get_xdata()) == list(diagonal[0].get_ydata()) == [0, 1]
    assert ax.get_xlim() == ax.get_ylim() == (0, 1)
    means = [line for line in ax.lines if line.get_linewidth() == 1.8]
    gaps = sorted(float((np.array(line.get_ydata()) - line.get_xdata())[-1]) for line in means)
    assert gaps == pytest.approx([0.05, 0.45])
    assert sum(line.get_linewidth() == 0.6 for line in ax.lines) == 10  # single seeds


def test_a_report_draws_it_where_the_gap_is_asked_for_and_only_there(tmp_path):
    data = store(tmp_path)
    logged = list(data.rows.metric.cat.categories)
    assert drawn.hacked(["accuracy/lenient_gap"], logged)
    assert not drawn.hacked(["accuracy/heldout"], logged)
    assert not drawn.hacked(["accuracy/lenient_gap"], ["accuracy/lenient_gap"])
