"""The figures that are no course over steps: what they draw, with n, and what they refuse."""

import math

import numpy as np
import pytest
from synthetic import Cell, crossing, rich, write, write_question
from test_plots import mean_lines, seed_lines

from analysis import axes, bootstrap, claims, drawn, look, plots, stats
from analysis.load import Absent, load


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    cells = rich(crossing(arms=("sequence_mean", "constant"), scales=("none", "group_std"), seeds=4, steps=20))
    cells[0] = cells[0]._replace(
        state="diverged", points={m: {s: v for s, v in p.items() if s <= 10} for m, p in cells[0].points.items()}
    )
    return load(write(tmp_path_factory.mktemp("figures"), "x", cells), "x")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_path_is_the_mean_of_both_metrics_at_the_steps_that_all_runs_have(data):
    figure = plots.against(data.rows, "kl/k3", "accuracy/heldout", "aggregate", data.runs, by=["scale"])
    assert len(figure.axes) == 2
    none = data.runs[data.runs.scale.eq("none") & data.runs["aggregate"].eq("constant")]
    own = data.rows[data.rows.run.isin(none.run)]
    kl, accuracy = (own[own.metric.eq(m)].groupby("step").value.mean() for m in ("kl/k3", "accuracy/heldout"))
    common = kl.index.intersection(accuracy.index)
    ax = next(ax for ax in figure.axes if "none" in ax.get_title(loc="left"))
    line = mean_lines(ax)[0]
    assert line.get_xdata() == pytest.approx(kl[common]) and line.get_ydata() == pytest.approx(accuracy[common])
    assert len(seed_lines(ax)) == 8 and any("n = 4" in text for text in legend(figure))


def test_a_path_ends_where_the_first_run_ends_and_the_run_that_broke_is_marked(data):
    figure = plots.against(data.rows, "length/mean", "reward/mean", "aggregate", data.runs, by=["scale"])
    ax = next(ax for ax in figure.axes if "none" in ax.get_title(loc="left"))
    lengths = sorted(len(line.get_xdata()) for line in mean_lines(ax))
    assert lengths == [11, 21] and sum(line.get_marker() == "x" for line in ax.lines) == 1
    assert "run failed or diverged" in legend(figure)


def test_costs_add_up_along_a_run(data):
    course = axes.course(data.rows, "samples")
    own = course[course.run.eq(course.run.iloc[-1])]
    assert own.step.tolist() == list(range(21)) and own["at"].tolist() == [128.0 * step for step in range(21)]
    assert axes.course(data.rows, "seconds")["at"].max() == pytest.approx(2.0)
    with pytest.raises(Absent, match="tokens/generated, which tokens are counted from"):
        axes.course(data.rows, "tokens")


def test_measured_against_predicted_has_the_diagonal_and_points_that_are_means_of_steps(data):
    figure = plots.agreement(
        data.rows, "groups/zero_advantage", "groups/zero_advantage_predicted", "aggregate", data.runs
    )
    ax = figure.axes[0]
    assert list(ax.lines[0].get_xdata()) == list(ax.lines[0].get_ydata()) and ax.get_xlim() == ax.get_ylim()
    points = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert [len(line.get_xdata()) for line in points] == [8 * 6, 8 * 6]
    assert "measured = predicted" in legend(figure)


def test_the_ladder_stands_in_the_order_of_the_means_and_counts_what_is_missing(data):
    figure = plots.ladder(data.rows, "length/incorrect", "arm", data.runs)
    ax = figure.axes[0]
    ends = data.rows[data.rows.metric.eq("length/incorrect") & data.rows.step.eq(20)]
    complete = ends[ends.run.isin(data.runs.run[data.runs.state.eq("complete")])]
    means = complete.groupby(complete.arm.astype(object)).value.mean().sort_values()
    dots = [line for line in ax.lines if line.get_marker() in look.MARKERS and line.get_markersize() == 6]
    shown = [line.get_xdata()[0] for line in dots]
    assert shown == pytest.approx(means.tolist())
    assert sorted(texts(ax)) == ["n = 3, 1 diverged", "n = 4", "n = 4", "n = 4"]
    diamonds = [line.get_xdata()[0] for line in ax.lines if line.get_fillstyle() == "none"]
    expected = [float(bootstrap.iqm(own.value.to_numpy())) for _, own in complete.groupby(complete.arm.astype(object))]
    assert sorted(diamonds) == pytest.approx(sorted(expected))


def test_a_cell_of_the_map_says_mean_half_width_and_n_and_an_empty_one_is_hatched(tmp_path):
    cells = [
        Cell({"eps": eps, "beta": beta}, seed, {"m": {9: float(place + seed)}})
        for place, (eps, beta) in enumerate([("0.1", "0"), ("0.2", "0"), ("0.2", "16")])
        for seed in range(3)
    ]
    stored = load(write(tmp_path, "x", cells), "x")
    ax = plots.heat_map(stored.rows, "m", "eps", "beta", stored.runs).axes[0]
    half = stats.t_interval([0, 1, 2]).high - 1
    assert texts(ax)[0].splitlines() == ["1.00", f"± {half:#.2g}", "n = 3"] and len(texts(ax)) == 3
    assert sum(bool(patch.get_hatch()) for patch in ax.patches) == 1
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "16"]
    shades = [np.mean(patch.get_facecolor()[:3]) for patch in ax.patches if not patch.get_hatch()]
    assert shades == sorted(shades)


def test_accuracy_by_level_shows_every_arm_every_run_and_the_base_policy(data):
    figure = plots.levels(data.rows, "aggregate", data.runs, by=["scale"])
    ax = figure.axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "3"]
    assert "base policy" in legend(figure)
    singles = [line for line in ax.lines if line.get_marker() == "." and line.get_linestyle() == "None"]
    assert [len(line.get_xdata()) for line in singles] == [12, 12]


def test_what_was_not_logged_is_refused_with_what_was(data):
    with pytest.raises(Absent, match="No run logged kl/k9; there are accuracy"):
        plots.against(data.rows, "kl/k9", "reward/mean", "aggregate", data.runs)
    with pytest.raises(Absent, match="No run logged nothing"):
        plots.ladder(data.rows, "nothing", "aggregate", data.runs)
    with pytest.raises(Absent, match="No run logged accuracy/x1"):
        plots.levels(data.rows, "aggregate", data.runs, prefix="accuracy/x")


def test_in_the_ladder_a_whole_arm_has_the_colour_of_its_value_of_the_main_knob(data):
    styles = look.arm_styles(["constant", "sequence_mean"])
    of_arms = drawn.styles_of_arms(data.runs, "aggregate", styles)
    figure = plots.ladder(data.rows, "reward/mean", "arm", data.runs, styles=of_arms)
    shown = {line.get_color() for line in figure.axes[0].lines if line.get_linewidth() == 2}
    assert shown == {style.colour for style in styles.values()} and len(of_arms) == 4
    assert of_arms["aggregate=constant scale=none"] == styles["constant"]


def test_an_arm_has_its_colour_in_every_kind_of_figure(data):
    styles = look.arm_styles(["constant", "sequence_mean"])
    wanted = {style.colour for style in styles.values()}
    for figure in (
        plots.against(data.rows, "kl/k3", "accuracy/heldout", "aggregate", data.runs, styles=styles),
        plots.levels(data.rows, "aggregate", data.runs, styles=styles),
        plots.ladder(data.rows, "reward/mean", "aggregate", data.runs, styles=styles),
        plots.small_multiples(data.rows, ["reward/mean"], "aggregate", data.runs, styles=styles),
    ):
        colours = {line.get_color() for ax in figure.axes for line in ax.lines if line.get_linewidth() >= 1.2}
        assert wanted <= colours <= wanted | {"#333333", "#444444"}


def test_a_metric_that_is_nan_in_every_run_leaves_out_the_figures_that_set_it_against_another(tmp_path):
    cells = rich(crossing(seeds=2, steps=10))
    for cell in cells:
        cell.points["length/mean"] = dict.fromkeys(cell.points["length/mean"], math.nan)
    write_question(tmp_path, "x", [])
    question, data = claims.read_question(tmp_path, "x"), load(write(tmp_path, "x", cells), "x")
    made = drawn.draw(data, question, claims.verdicts(data, question), tmp_path)
    names = {file.partition("/")[2] for _, file in made.figures}
    assert {"length.png", "kl.png"} <= names and "accuracy_length.png" not in names
