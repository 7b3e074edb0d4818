"""Where arms end: accuracy against KL, one point per run."""

import pandas as pd
import pytest
from synthetic import Cell, write, write_question

from analysis import load, plots
from analysis.load import Absent
from analysis.look import Style
from analysis.question import of_the_crossing, read_question

CLAIM = {"says": "a", "metric": "kl/k1", "window": [1, 3], "compare": {"beta": [0.2, 0]}, "expect": "less"}


@pytest.fixture
def stored(tmp_path):
    cells = [
        Cell(
            {"beta": beta, "reward": reward}, seed,
            {"kl/k1": {0: 0.0, 1: 9.0, 2: kl, 3: kl + 0.02 * seed}, "accuracy/heldout": {0: 0.2, 3: accuracy}},
        )
        for seed in range(3)
        for beta, reward, kl, accuracy in (
            ("0", "correctness", 0.4, 0.9), ("0.2", "correctness", 0.1, 0.6), ("0", "random", 2.0, 0.1),
        )
    ]
    write(tmp_path, "x", cells)
    write_question(tmp_path, "x", [CLAIM])
    return of_the_crossing(load.load(tmp_path, "x"), read_question(tmp_path, "x"))[0]


def test_a_run_stands_at_its_last_accuracy_and_its_mean_kl_of_the_last_third(stored):
    figure = plots.frontier(stored.rows, "kl/k1", "accuracy/heldout", "beta", stored.runs)
    (ax,) = figure.axes
    points = sorted(tuple(point) for group in ax.collections for point in getattr(group, "get_offsets", list)())
    runs = [p for p in points if p[1] in (0.9, 0.6, 0.1)]
    assert ax.get_xscale() == "log" and len(runs) == 9
    assert sorted(round(x, 2) for x, y in runs if y == 0.6) == [0.1, 0.12, 0.14]
    marked = [line for line in ax.lines if line.get_marker() != "None"]
    means = sorted((round(line.get_xdata()[0], 2), line.get_ydata()[0]) for line in marked)
    assert means == [(0.12, 0.6), (0.42, 0.9), (2.02, pytest.approx(0.1))]
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == ["0.0 (n = 3)", "0.2 (n = 3)", "reward correctness", "reward random"]


def test_an_arm_has_the_colour_of_the_other_figures_and_a_lone_arm_its_grey(stored):
    runs = stored.runs.assign(kl=pd.Categorical(["k1", "k3", "k1"] * 3))
    styles = {"0": Style("#0000ff", (), "o"), "0.2": Style("#00ff00", (), "s"), "placebo": Style("#777777", (), "<")}
    names = [f"{b:g}" if r == "correctness" else "placebo" for b, r in zip(runs.beta, runs.reward, strict=True)]
    runs = runs.assign(beta=pd.Categorical(names, categories=list(styles)))
    how = {"styles": styles, "everywhere": ["placebo"]}
    figure = plots.frontier(stored.rows, "kl/k1", "accuracy/heldout", "beta", runs, **how)
    (ax,) = figure.axes
    ends = {line.get_ydata()[0]: line for line in ax.lines if line.get_marker() != "None"}
    drawn = {round(y, 2): (line.get_color(), line.get_marker()) for y, line in ends.items()}
    assert drawn[0.9][0] == "#0000ff" and drawn[0.6][0] == "#00ff00" and drawn[0.1] == ("#777777", "<")


def test_without_a_complete_run_there_is_nothing_to_draw(stored):
    failed = stored.runs.assign(state=pd.Series("failed", index=stored.runs.index))
    with pytest.raises(Absent, match="No complete run has kl/k1"):
        plots.frontier(stored.rows, "kl/k1", "accuracy/heldout", "beta", failed)
