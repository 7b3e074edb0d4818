"""Figures: what they draw, that they never flatter, and that nothing on them is cut off."""

import colorsys
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image
from synthetic import ACCURACY_CLAIM, LENGTH_CLAIM, Cell, crossing, rich, write, write_question

from analysis import claims, look, plots, stats
from analysis.load import Absent, load


def stored(tmp_path, cells):
    return load(write(tmp_path, "x", cells), "x")


def flat(levels, *, ends=None, states=None, knob="a", steps=10, **others):
    """One run per level, constant at it up to step ends[i]."""
    ends, states = ends or [steps] * len(levels), states or ["complete"] * len(levels)
    return [
        Cell({"k": knob, **others}, seed, {"m": dict.fromkeys(range(ends[seed] + 1), float(level))}, "r", states[seed])
        for seed, level in enumerate(levels)
    ]


def curves(data, arm="k", **more):
    return plots.learning_curves(data.rows, "m", arm, data.runs, **more)


def mean_lines(ax):
    return [line for line in ax.lines if line.get_linewidth() > 1.5 and len(line.get_xdata()) > 1]


def seed_lines(ax):
    return [line for line in ax.lines if line.get_linewidth() < 1 and len(line.get_xdata()) > 1]


def marks(ax, marker):
    return [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in ax.lines
        if len(line.get_xdata()) == 1 and line.get_marker() == marker
    ]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_line_is_the_mean_the_band_the_t_interval_and_every_seed_is_drawn(tmp_path):
    figure = curves(stored(tmp_path, flat([0.1, 0.4, 0.5])))
    ax = figure.axes[0]
    assert mean_lines(ax)[0].get_ydata() == pytest.approx([1 / 3] * 11)
    assert sorted(line.get_ydata()[0] for line in seed_lines(ax)) == [0.1, 0.4, 0.5]
    _, low, high, *_ = stats.t_interval([0.1, 0.4, 0.5])
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((low, high))


def test_a_run_that_stops_cuts_the_mean_and_is_marked_where_it_stops(tmp_path):
    cells = flat([0.8, 0.8, 0.1], ends=[10, 10, 4], states=["complete", "complete", "diverged"])
    figure = curves(stored(tmp_path, cells))
    mean = mean_lines(figure.axes[0])[0]
    drawn = np.isfinite(mean.get_ydata())
    assert mean.get_xdata()[drawn].max() == 4 and set(mean.get_ydata()[drawn].round(3)) == {0.567}
    assert marks(figure.axes[0], "x") == [(4, 0.1)]
    assert legend(figure) == ["a (n = 3, 1 diverged)", "run failed or diverged"]


def test_a_run_whose_metric_turns_nan_is_as_gone_as_one_that_stopped(tmp_path):
    cells = flat([0.8, 0.8, 0.1])
    cells[2].points["m"].update(dict.fromkeys(range(5, 11), math.nan))
    mean = mean_lines(curves(stored(tmp_path, cells)).axes[0])[0]
    assert mean.get_xdata()[np.isfinite(mean.get_ydata())].max() == 4


def test_a_metric_undefined_at_a_step_does_not_end_the_mean(tmp_path):
    cells = flat([0.2, 0.4, 0.6])
    del cells[0].points["m"][5]
    cells[0].points["other"] = dict.fromkeys(range(11), 1.0)
    mean = mean_lines(curves(stored(tmp_path, cells)).axes[0])[0]
    assert mean.get_ydata() == pytest.approx([0.4] * 5 + [0.5] + [0.4] * 5)


def test_one_seed_is_a_line_without_band_and_the_legend_says_so(tmp_path):
    figure = curves(stored(tmp_path, flat([0.3])))
    band = figure.axes[0].collections[0]
    assert not any(len(path.vertices) for path in band.get_paths())
    assert legend(figure) == ["a (n = 1, no interval)"]


def test_a_band_of_two_seeds_does_not_flatten_the_curves_and_all_seeds_are_inside(tmp_path):
    ax = curves(stored(tmp_path, flat([0.4, 0.5]))).axes[0]
    low, high = ax.get_ylim()
    assert low < 0.4 and high > 0.5 and high - low < 0.3
    assert ax.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(stats.t_interval([0.4, 0.5]).high)


def test_running_runs_are_marked_with_a_ring_and_counted(tmp_path):
    figure = curves(stored(tmp_path, flat([0.3, 0.5], ends=[10, 6], states=["complete", "running"])))
    assert marks(figure.axes[0], "o") == [(6, 0.5)]
    assert legend(figure) == ["a (n = 2, 1 running)", "run not finished"]


def test_a_run_without_any_value_is_not_in_n_but_named(tmp_path):
    cells = flat([0.3, 0.5, 0.4], states=["complete", "complete", "failed"])
    cells[2].points.clear()
    assert legend(curves(stored(tmp_path, cells)))[0] == "a (n = 2, 1 failed)"


def test_an_arm_that_is_nan_throughout_has_no_line_and_is_named_without_value(tmp_path):
    cells = [*flat([0.3, 0.5], knob="a"), *flat([math.nan, math.nan], knob="b")]
    figure = curves(stored(tmp_path, cells))
    assert legend(figure) == ["a (n = 2)", "b (n = 0, no value)"] and len(mean_lines(figure.axes[0])) == 1
    for cell in cells:
        cell.points["other"] = dict.fromkeys(range(11), 9.0)
    data = stored(tmp_path / "two", cells)
    both = plots.small_multiples(data.rows, ["m", "other"], "k", data.runs)
    assert legend(both) == ["a (n = 2)", "b (n = 0 to 2, no value in a panel)"]


def test_arms_stand_in_the_order_of_their_values_and_none_is_lost(tmp_path):
    cells = [cell for knob in ("16", "2", "None") for cell in flat([0.3, 0.5], knob=knob)]
    assert legend(curves(stored(tmp_path, cells))) == ["None (n = 2)", "2 (n = 2)", "16 (n = 2)"]


def test_an_arm_looks_the_same_in_every_figure(tmp_path):
    cells = [cell for knob in "abc" for cell in flat([0.3, 0.5], knob=knob)]
    data = stored(tmp_path, cells)
    styles = look.arm_styles(["a", "b", "c"])
    some = load(write(tmp_path / "some", "x", [cell for cell in cells if cell.knobs["k"] != "a"]), "x")
    whole, part = curves(data, styles=styles), curves(some, styles=styles)
    colours = [[line.get_color() for line in mean_lines(figure.axes[0])] for figure in (whole, part)]
    assert colours[0][1:] == colours[1] and len(set(colours[0])) == 3


def luminance(colour):
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2


def test_arms_differ_in_colour_in_dash_and_in_marker_and_the_first_two_in_grey():
    styles = list(look.arm_styles([str(i) for i in range(35)]).values())
    for kind in ("colour", "dash", "marker"):
        assert len({getattr(style, kind) for style in styles[:5]}) == 5
    assert len({(style.colour, style.dash) for style in styles}) == 35
    assert abs(luminance(styles[0].colour) - luminance(styles[1].colour)) > 0.2
    assert all(luminance(style.colour) < 0.5 for style in styles)  # every line stands out from white


def test_the_first_arms_differ_by_more_than_red_against_green():
    hues = [
        colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))[0] for colour in look.COLOURS[:2]
    ]
    # blue and orange are apart for every kind of vision
    assert abs(hues[0] - hues[1]) > 0.3


def test_names_of_arms_drop_what_all_share():
    assert look.short_names(["k=a s=n", "k=b s=n"]) == ({"k=a s=n": "a", "k=b s=n": "b"}, "k")
    assert look.short_names(["k=a s=n", "k=b s=m"])[0] == {"k=a s=n": "k=a s=n", "k=b s=m": "k=b s=m"}
    assert look.short_names(["default"]) == ({"default": "default"}, "")


def test_crossed_knobs_and_bases_get_panels_of_their_own_so_that_no_mean_is_over_different_policies(tmp_path):
    data = stored(tmp_path, crossing(scales=("none", "std"), bases=("r", "s"), seeds=2, steps=5))
    assert plots.facets(data.runs, "aggregate", data.knobs) == ["base", "scale"]
    figure = plots.small_multiples(
        data.rows, ["reward/mean", "length/mean"], "aggregate", data.runs, by=["base", "scale"]
    )
    assert len(figure.axes) == 8
    assert all(len(seed_lines(ax)) == 4 for ax in figure.axes)


def test_bases_that_go_with_the_seeds_stay_in_one_panel(tmp_path):
    cells = [cell._replace(base=f"b{cell.seed}") for cell in crossing(seeds=4, steps=5)]
    data = stored(tmp_path, cells)
    assert plots.facets(data.runs, "aggregate", data.knobs) == []


def test_a_metric_has_one_scale_in_all_panels_and_lengths_share_one(tmp_path):
    data = stored(tmp_path, crossing(seeds=2, steps=5))
    metrics = ["length/mean", "length/correct", "length/incorrect", "reward/mean"]
    figure = plots.small_multiples(data.rows, metrics, "aggregate", data.runs)
    limits = [ax.get_ylim() for ax in figure.axes]
    assert limits[0] == limits[1] == limits[2] != limits[3]


def test_an_unknown_metric_is_refused_with_the_list(tmp_path):
    data = stored(tmp_path, flat([0.3]))
    with pytest.raises(Absent, match="No run logged lenght; there are m"):
        plots.learning_curves(data.rows, "lenght", "k", data.runs)


def verdicts(tmp_path, cells, *given):
    write(tmp_path, "x", cells)
    write_question(tmp_path, "x", list(given))
    return claims.verdicts(load(tmp_path, "x"), claims.read_question(tmp_path, "x"))


def test_the_forest_shows_mean_interval_single_pairs_margin_and_n_of_every_claim(tmp_path):
    found = verdicts(tmp_path, crossing(seeds=6), LENGTH_CLAIM, ACCURACY_CLAIM)
    figure = plots.forest(*found)
    for ax, (_, row) in zip(figure.axes, found.table.iterrows(), strict=True):
        drawn = [line.get_xdata() for line in ax.lines]
        assert any(list(x) == [row.low, row.high] for x in drawn) and any(
            list(np.ravel(x)) == [row.difference] for x in drawn
        )
        assert any(len(x) == 6 and set(x) == set(found.pairs.difference[found.pairs.claim == row.claim]) for x in drawn)
        assert ax.texts[0].get_text() == f"{row.verdict}\nn = 6"
        band = ax.collections[0].get_paths()[0].vertices[:, 0]
        assert (band.min(), band.max()) == (-row.margin, row.margin)


def test_claims_without_a_pair_are_not_drawn_and_a_forest_of_none_is_refused(tmp_path):
    found = verdicts(
        tmp_path,
        [cell for cell in crossing(seeds=6) if cell.knobs["aggregate"] == "constant"] + crossing(seeds=1),
        LENGTH_CLAIM,
    )
    empty = found.table.assign(n=0)
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.forest(empty, found.pairs)


def test_long_names_of_arms_leave_a_forest_its_axis(tmp_path):
    found = verdicts(tmp_path, crossing(seeds=6, steps=12), *[ACCURACY_CLAIM] * 3, LENGTH_CLAIM | {"window": [5, 12]})
    arms = {"x": "beta=0.04 placement=reward_before_baseline kl=k1", "y": "beta=0 placement=none kl=k3"}
    figure = plots.forest(found.table.assign(**arms, where="reward=correctness"), found.pairs)
    every_text_can_be_read(figure)
    assert all(ax.get_position().width > 1 / 3 for ax in figure.axes)  # of the figure, or the ticks touch each other


def test_names_of_three_lines_stand_apart_in_a_ladder(tmp_path):
    knobs = {"kl": "k1", "placement": "reward_before_baseline", "reward": "correctness"}
    runs = [Cell(knobs | {"beta": beta}, 0, {"m": {0: 0.0, 1: float(beta)}}) for beta in ("0.04", "0.2", "0.5")]
    runs.append(Cell(knobs | {"beta": "0", "kl": "k3", "placement": "none", "reward": "random"}, 0, {"m": {1: 0.1}}))
    data = stored(tmp_path, runs)
    every_text_can_be_read(plots.ladder(data.rows, "m", "arm", data.runs))


def everything(tmp_path):
    big = crossing(
        arms=("sequence_mean", "token_mean", "constant"),
        scales=("none", "group_std"),
        seeds=4,
        bases=("rambling", "control"),
        steps=30,
    )
    big[3] = big[3]._replace(state="diverged")
    big[9] = big[9]._replace(state="running")
    data = stored(tmp_path / "big", big)
    by = ["base", "scale"]
    four = ["reward/mean", "accuracy/heldout", "entropy/mean", "groups/zero_advantage"]
    yield plots.small_multiples(data.rows, four, "aggregate", data.runs, by=by)
    yield plots.small_multiples(
        data.rows, ["length/mean", "length/correct", "length/incorrect"], "aggregate", data.runs, by=by
    )
    yield plots.learning_curves(data.rows, "length/gap", "aggregate", data.runs, by=by)
    yield plots.learning_curves(data.rows, "length/gap", "arm", data.runs)
    yield plots.small_multiples(data.rows, four, "arm", data.runs)
    yield plots.small_multiples(data.rows, four[:2], "arm", data.runs)
    more = stored(tmp_path / "more", rich(big))
    for x, y in (("kl/k3", "accuracy/heldout"), ("length/mean", "accuracy/train"), ("samples", "reward/mean")):
        yield plots.against(more.rows, x, y, "aggregate", more.runs, by=by)
        yield plots.against(more.rows, x, y, "arm", more.runs)
    predicted = "groups/zero_advantage_predicted"
    yield plots.agreement(more.rows, "groups/zero_advantage", predicted, "aggregate", more.runs, by=by)
    yield plots.ladder(more.rows, "accuracy/heldout", "arm", more.runs, by=["base"])
    yield plots.heat_map(more.rows, "accuracy/heldout", "aggregate", "scale", more.runs)
    yield plots.levels(more.rows, "aggregate", more.runs, by=by)
    where = {"base": "rambling", "scale": "none"}
    yield plots.forest(
        *verdicts(
            tmp_path / "claims",
            big,
            LENGTH_CLAIM | {"where": where},
            ACCURACY_CLAIM | {"where": where},
            LENGTH_CLAIM | {"where": {"base": "control", "scale": "group_std"}},
        )
    )


@pytest.mark.slow
def test_no_text_is_cut_off_or_covers_another_text(tmp_path):
    for figure in everything(tmp_path):
        every_text_can_be_read(figure)


def every_text_can_be_read(figure):
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [text.get_window_extent(renderer) for text in _shown(figure)]
    page = figure.bbox
    assert all(page.x0 <= b.x0 and b.x1 <= page.x1 and page.y0 <= b.y0 and b.y1 <= page.y1 for b in boxes)
    overlaps = [
        (a, b)
        for a, b in itertools.combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert not overlaps


def _shown(figure):
    """All text on the page. Axes keep tick labels outside their limits, which are not drawn."""
    ticks, drawn = set(), []
    for axis in itertools.chain.from_iterable((ax.xaxis, ax.yaxis) for ax in figure.axes if ax.axison):
        low, high = sorted(axis.get_view_interval())
        ticks |= {label for tick in axis.get_major_ticks() for label in (tick.label1, tick.label2)}
        labels = [(tick.get_loc(), tick.label1) for tick in axis.get_major_ticks() if tick.label1.get_visible()]
        drawn += [label for place, label in labels if low <= place <= high]
    others = [text for text in figure.findobj(Text) if text not in ticks and text.get_visible()]
    return [text for text in drawn + others if text.get_text().strip()]


def test_files_are_small_enough_to_commit(tmp_path):
    data = stored(tmp_path, crossing(seeds=8, steps=60))
    four = ["reward/mean", "accuracy/heldout", "entropy/mean", "groups/zero_advantage"]
    files = look.save(plots.small_multiples(data.rows, four, "aggregate", data.runs), tmp_path, "f")
    assert [file.name for file in files] == ["f.png", "f.pdf"]
    assert all(file.stat().st_size < 300_000 for file in files)
    assert Image.open(files[0]).width >= 900


def test_the_same_runs_give_the_same_bytes(tmp_path):
    data = stored(tmp_path, flat([0.1, 0.4]))
    first, second = (look.save(curves(data), tmp_path / folder, "f") for folder in ("one", "two"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_a_long_run_does_not_make_a_heavy_file(tmp_path):
    rng = np.random.default_rng(0)
    cells = [Cell({"k": "a"}, seed, {"m": dict(enumerate(rng.normal(size=8_000).tolist()))}, "r") for seed in range(3)]
    files = look.save(curves(stored(tmp_path, cells)), tmp_path, "f")
    assert all(file.stat().st_size < 1_000_000 for file in files)


def test_drawing_changes_no_setting_that_other_code_sees(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    look.save(curves(stored(tmp_path, flat([0.1, 0.4]))), tmp_path, "f")
    assert dict(matplotlib.rcParams) == before


def test_the_caller_s_frame_is_left_alone(tmp_path):
    data = stored(tmp_path, flat([0.1, 0.4]))
    before = data.rows.copy()
    curves(data)
    pd.testing.assert_frame_equal(data.rows, before)
