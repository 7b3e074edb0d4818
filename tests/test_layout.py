"""Which runs share a panel, arms that stand alone in every panel, and metrics against what training has cost."""

import pytest
from synthetic import Cell, write, write_question
from test_plots import every_text_can_be_read, mean_lines
from test_report import CLAIM, little, made

from analysis import axes, drawn, look, plots
from analysis.claims import BadClaim, read_question
from analysis.load import load
from analysis.plots.panels import broken
from analysis.question import Asked

LONE = [{"place": "none", "kl": "k3", "beta": "0", "reward": r} for r in ("right", "random")]
CROSSED = [
    {"place": place, "kl": kl, "beta": beta, "reward": "right"}
    for place in ("loss", "reward") for kl in ("k1", "k3") for beta in ("0.04", "0.2")
]  # fmt: skip


def cells(arms, bases=("ramble",), seeds=2):
    return [
        Cell(knobs, seed, {"m": {step: float(step + place) for step in (0, 1, 2)}, "n": {0: 1.0, 2: 3.0}}, base)
        for place, knobs in enumerate(arms) for base in bases for seed in range(seeds)
    ]  # fmt: skip


def laid_out(folder, arms, **more):
    data = load(write(folder, "x", cells(arms, **more)), "x")
    return data, plots.layout(data.runs, "beta", data.knobs)


def test_an_arm_that_stands_alone_is_a_grey_dashed_line_in_every_panel_and_has_none_of_its_own(tmp_path):
    data, found = laid_out(tmp_path, CROSSED + LONE)
    assert found.by == ["kl", "place"]
    assert found.everywhere == ["place=none reward=random beta=0", "place=none beta=0"]
    assert list(found.styles) == [0.04, 0.2, *found.everywhere]
    greys = {found.styles[name].colour for name in found.everywhere}
    assert len(greys) == 2 and not greys & set(look.COLOURS)
    assert all(found.styles[name].dash for name in found.everywhere)
    how = {"by": found.by, "styles": found.styles, "everywhere": found.everywhere}
    for figure in (
        plots.small_multiples(data.rows, ["m"], "beta", found.runs, **how),
        plots.against(data.rows, "n", "m", "beta", found.runs, **how),
    ):
        panels = [ax for ax in figure.axes if ax.axison]
        assert len(panels) == 4 and all(len(mean_lines(ax)) == 4 for ax in panels)
        assert all(greys <= {line.get_color() for line in ax.lines} for ax in panels)
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        assert legend == [f"{name} (n = 2)" for name in found.styles]
    assert panels[0].get_title(loc="left") == "kl = k1\nplace = loss"


def test_what_a_lone_arm_would_add_to_the_keys_makes_no_panels(tmp_path):
    """A placebo beside one crossed knob: one panel, and no title that says reward = right."""
    arms = [{"beta": beta, "reward": "right"} for beta in ("1", "2", "3")] + [{"beta": "1", "reward": "random"}]
    _, found = laid_out(tmp_path, arms)
    assert found.by == [] and list(found.styles) == [1, 2, 3, "reward=random beta=1"]


def test_a_hole_in_a_crossing_is_no_lone_arm(tmp_path):
    """All of its knobs' values are crossed elsewhere, so its panel has a line less and is there."""
    _, found = laid_out(tmp_path, [*CROSSED[1:], *LONE])
    assert found.by == ["kl", "place"] and len(found.everywhere) == 2


def test_a_value_has_the_colour_that_it_has_without_lone_arms(tmp_path):
    data, found = laid_out(tmp_path, CROSSED + LONE)
    every = look.arm_styles(list(data.runs.beta.cat.categories))
    assert found.styles[0.2] == every[0.2] and found.styles[0.04] == every[0.04]


def test_a_lone_arm_stands_only_in_panels_of_its_own_base_policy(tmp_path):
    some = cells(CROSSED[:2], bases=("control", "ramble")) + cells(LONE[:1], bases=("ramble",))
    data = load(write(tmp_path, "x", some), "x")
    found = plots.layout(data.runs, "beta", data.knobs)
    assert found.by == ["base"]
    how = {"by": found.by, "styles": found.styles, "everywhere": found.everywhere}
    figure = plots.small_multiples(data.rows, ["m"], "beta", found.runs, **how)
    assert {ax.get_title(loc="left"): len(mean_lines(ax)) for ax in figure.axes} == {
        "base = control": 2,
        "base = ramble": 3,
    }


def test_a_crossing_without_lone_arms_or_with_many_is_left_as_it_is(tmp_path):
    for name, arms in {
        "none": CROSSED,
        "many": CROSSED + [{**LONE[0], "kl": kl} for kl in ("k4", "k5", "k6", "k7")],
        "all": [arm for arm in CROSSED if arm["beta"] == "0.2"],
    }.items():
        data, found = laid_out(tmp_path / name, arms)
        assert found.everywhere == [] and found.by == plots.facets(data.runs, "beta", data.knobs), name
        assert found.runs is data.runs


def test_runs_of_different_policies_are_apart_also_where_each_has_one_seed(tmp_path):
    assert laid_out(tmp_path, CROSSED, seeds=1)[1].by == ["kl", "place"]


@pytest.mark.slow
def test_the_figures_of_the_widest_shipped_crossing_can_be_read(tmp_path):
    """Three estimators at two places with long names, two coefficients, and two lone arms, as in kl_placement."""
    long = {"loss": "loss", "reward": "reward_before_baseline", "none": "none"}
    third = [{**arm, "kl": "k2"} for arm in CROSSED if arm["kl"] == "k1"]
    arms = [{**arm, "place": None, "placement": long[arm["place"]]} for arm in CROSSED + third + LONE]
    some = cells([{key: v for key, v in arm.items() if v} for arm in arms])
    named = {"m": "kl/k1", "n": "accuracy/heldout"}
    some = [c._replace(points={named[m]: v for m, v in c.points.items()} | {"kl/k3": c.points["m"]}) for c in some]
    data = load(write(tmp_path, "x", some), "x")
    found = plots.layout(data.runs, "beta", data.knobs)
    how = {"by": found.by, "styles": found.styles, "everywhere": found.everywhere}
    for metrics in (["kl/k1"], ["kl/k1", "kl/k3", "accuracy/heldout"]):
        figure = plots.small_multiples(data.rows, metrics, "beta", found.runs, **how)
        assert len([ax for ax in figure.axes if ax.axison]) == 6 * len(metrics)
        every_text_can_be_read(figure)
    every_text_can_be_read(plots.against(data.rows, "step", "accuracy/heldout", "beta", found.runs, **how))


def test_a_long_title_is_broken_at_its_commas_and_then_before_its_values():
    title = "kl = k1, placement = reward_before_baseline"
    assert broken(title, 60) == title and broken(title, 36) == "kl = k1\nplacement = reward_before_baseline"
    assert broken(title, 20) == "kl = k1\nplacement =\nreward_before_baseline"


# --- against what training has cost -----------------------------------------------------------------------------------

COSTS = [{"y": "m", "x": "seconds"}, "m", {"y": "m", "x": "samples"}, {"y": "m", "x": "step"}]


def test_a_figure_against_a_cost_is_drawn_captioned_and_named_by_both(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: saved.append((name, figure)))
    text, _ = made(tmp_path, little(), CLAIM, figures=COSTS)
    assert read_question(tmp_path, "x").figures == [
        Asked("m", "seconds"),
        Asked("m"),
        Asked("m", "samples"),
        Asked("m"),
    ]
    figure = dict(saved)["m-seconds"]
    assert figure.axes[0].get_xlabel() == "seconds of training so far" and figure.axes[0].get_ylabel() == "m"
    assert [list(line.get_xdata()) for line in mean_lines(figure.axes[0])] == [pytest.approx([0, 0.1])] * 2
    assert "![figures/m-seconds.png](figures/m-seconds.png)\n\n*M against seconds of training so far. " in text
    assert "evaluations are not among them" in text
    assert "Asked for but logged by no run: m against samples." in text


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"y": "m", "x": "hours"}, "x is 'hours' for m; it must be one of step, samples, tokens, seconds."),
        ({"y": "m"}, "is no figure; it must be a METRIC, or {y: METRIC, x: step, samples, tokens, seconds}."),
        ({"x": "step", "y": ["m"]}, "is no figure"),
        (3, "3 is no figure"),
    ],
)
def test_a_figure_that_cannot_be_read_is_refused_with_what_can(tmp_path, entry, words):
    write_question(tmp_path, "x", [CLAIM], figures=["m", entry])
    with pytest.raises(BadClaim) as caught:
        read_question(tmp_path, "x")
    assert words in str(caught.value) and "ablation.yaml, figures: " in str(caught.value)


def test_evaluating_is_no_cost_of_an_arm_and_the_base_policy_stands_at_0(tmp_path):
    points = {
        "m": {0: 1.0, 1: 2.0, 2: 3.0},
        "seconds/update": {1: 0.25, 2: 0.25},
        "seconds/sample": {1: 1.0, 2: 1.0},
        "seconds/evaluate": {0: 50.0, 2: 50.0},
    }
    data = load(write(tmp_path, "x", [Cell({"a": "b"}, 0, points)]), "x")
    assert axes.course(data.rows, "seconds")[["step", "at"]].values.tolist() == [[0, 0], [1, 1.25], [2, 2.5]]
    only = {"m": {0: 1.0}, "seconds/evaluate": {0: 50.0}}
    data = load(write(tmp_path / "only", "x", [Cell({"a": "b"}, 0, only)]), "x")
    assert not any(drawn._possible(Asked("m", "seconds"), [name]) for name in data.rows.metric.cat.categories)


def test_the_shipped_questions_have_figures_that_can_be_read():
    from omegaconf import OmegaConf

    from ablations.build import CONF
    from analysis.question import asked

    files = sorted((CONF / "ablation").glob("*.yaml"))
    read = {f.stem: [asked(each) for each in OmegaConf.to_container(OmegaConf.load(f))["figures"]] for f in files}
    assert {Asked("accuracy/heldout", "seconds"), Asked("accuracy/train", "samples")} <= set(read["group_size"])
