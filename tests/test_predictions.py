"""Predictions of an ablation: measured once, kept beside its results, and told as they are."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml
from composing import composed
from hydra.utils import instantiate
from matplotlib.backends.backend_agg import FigureCanvasAgg
from omegaconf import OmegaConf
from synthetic import write, write_question
from test_report import CLAIM, little

from ablations import build, crossing
from ablations.contradictions import Refused
from ablations.knobs.call import needs
from ablations.predictions import measured
from ablations.predictions.points import Point
from analysis import look, plots, predictions
from analysis.report import report

CALLS: list[str] = []


def squares(law, upto, noise=0.0):
    """Squares of 1 .. upto against a law that may be wrong about them."""
    CALLS.append(law)
    power = {"square": 2, "cube": 3}[law]
    yield from (Point("", law, x, x**power, x**2, noise, 4 * noise or 1e-10) for x in range(1, upto + 1))


def raising(at):
    yield Point("", "", 1, 1, 1, 0, 1)
    raise ZeroDivisionError(f"nothing to divide by at {at}")


def nothing(at):
    yield from ()


def folder_given(results, name):
    yield Point("", "", 1, 1, float((results / name).is_dir()), 0, 0)


def part(target, says="it grows", budgets=("paper",), **settings):
    axes = {"x": {"label": "number", "log": False}, "y": {"label": "its square", "log": True}}
    measure = {"_target_": f"test_predictions.{target}", "_partial_": True, **settings}
    return {"says": says, "paper": "arXiv:2503.20783", **axes, "budgets": list(budgets), "measure": measure}


RIGHT, WRONG = part("squares", law="square", upto=3), part("squares", law="cube", upto=3)


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


@pytest.fixture
def folder(results):
    return results / "x"


def section(folder, asked, budget="paper"):
    from analysis.page import markdown

    parts = predictions.read(folder, asked, budget)
    return markdown(predictions.section(parts, {name: f"figures/{name}.png" for name in asked}))  # drawing is slow


# --- measuring -------------------------------------------------------------------------------------------------------


def test_what_was_written_is_read_back_to_the_last_bit(results, folder):
    asked = {"growth": part("squares", law="square", upto=30, noise=1 / 3)}
    assert measured.measure(results, folder, asked, "paper") == 0
    (read,) = predictions.read(folder, asked, "paper")
    points = list(squares("square", 30, 1 / 3))
    assert [Point(*row[:7]) for row in read.points.itertuples(index=False)] == points
    assert read.points.holds.tolist() == [point.holds for point in points] and not read.why
    about = yaml.safe_load((folder / "predictions/growth.yaml").read_text())
    assert (about["points"], about["hold"], about["says"]) == (30, 30, "it grows") and about["commit"]


def test_a_wrong_law_is_shown_as_not_holding(results, folder):
    measured.measure(results, folder, {"wrong": WRONG}, "paper")
    text = section(folder, {"wrong": WRONG})
    assert "**1 of 3 points hold.**" in text and text.count("**no**") == 2 and "| yes |" in text
    assert "Worst: cube at number 3: predicted 27.0, measured 9.00" in text and "A ring marks" in text


def test_a_number_that_is_not_one_holds_nothing():
    assert not Point("", "", 1, math.nan, 1, 0, 1).holds and not Point("", "", 1, 1, math.nan, 0, 1).holds
    assert predictions.used({"measured": math.nan, "predicted": 1.0, "tolerance": 1.0}) == math.inf


def test_a_part_that_raises_loses_no_other_and_is_told_and_tried_again(results, folder, capsys):
    asked = {"broken": part("raising", at=7), "empty": part("nothing", at=1), "right": RIGHT}
    assert measured.measure(results, folder, asked, "paper") == 2
    told = "ZeroDivisionError: nothing to divide by at 7"
    assert f"prediction broken: not measured: {told}" in capsys.readouterr().out
    assert not (folder / "predictions/broken.csv").exists()
    text = section(folder, asked)
    assert f"**Not measured**: {told}." in text and "yielded no point" in text and "**3 of 3 points hold.**" in text
    assert measured.measure(results, folder, asked, "paper") == 2 and CALLS == ["square"]


def test_what_is_there_is_not_measured_again_unless_a_number_changes(results, folder):
    measured.measure(results, folder, {"a": RIGHT}, "paper")
    before = (folder / "predictions/a.csv").read_bytes()
    measured.measure(results, folder, {"a": RIGHT | {"says": "in other words"}}, "paper")
    assert CALLS == ["square"] and (folder / "predictions/a.csv").read_bytes() == before
    assert "In other words (" in section(folder, {"a": RIGHT})
    measured.measure(results, folder, {"a": part("squares", law="square", upto=4)}, "paper")
    assert CALLS == ["square"] * 2 and "4 of 4 points hold" in section(folder, {"a": RIGHT})
    (folder / "predictions/a.csv").unlink()
    measured.measure(results, folder, {"a": part("squares", law="square", upto=4)}, "paper")
    assert CALLS == ["square"] * 3


def test_a_part_is_measured_at_its_budgets_only_and_the_dry_run_says_which(results, folder):
    asked = {"now": RIGHT, "later": WRONG, "never": part("squares", budgets=["smoke"], law="cube", upto=2)}
    measured.measure(results, folder, {"now": RIGHT}, "paper")
    assert measured.listed(folder, asked, "paper").splitlines() == [
        "prediction now: there",
        "prediction later: to be measured",
        "prediction never: not measured at budget=paper",
    ]
    measured.measure(results, folder, asked, "paper")
    assert CALLS == ["square", "cube"]
    assert "**Not measured**: at budget paper it is not; it is at smoke." in section(folder, asked)


def test_a_measure_that_asks_for_the_results_folder_gets_it(results, folder):
    (results / "bases").mkdir(parents=True)
    measured.measure(results, folder, {"a": part("folder_given", name="bases")}, "paper")
    assert "**1 of 1 points hold.**" in section(folder, {"a": RIGHT})


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("a", {"says": None}, "predictions.a has no says"),
        ("a", {"sayz": "it"}, "predictions.a has sayz; it may have says"),
        ("a/b", {}, "letters, digits and underscores"),
        ("a", {"x": {"lable": "number"}}, r"predictions.a.x has lable; it needs a label"),
        ("a", {"measure": part("gone")["measure"]}, "test_predictions.gone cannot be imported"),
        ("a", {"measure": part("squares", law="cube", up=3)["measure"]}, "given law, up; it takes law, upto"),
        ("a", {"measure": part("squares", law="cube")["measure"]}, "does not set upto"),
        ("a", {"measure": {"law": "cube"}}, "needs a _target_"),
    ],
)
def test_a_part_that_cannot_be_measured_is_refused_before_any_run(name, change, told):
    given = {key: value for key, value in (RIGHT | change).items() if value is not None}
    with pytest.raises(Refused, match=told):
        measured.refuse({name: given}, "paper")
    measured.refuse({"a": RIGHT}, "paper")


# --- the end of a crossing -------------------------------------------------------------------------------------------


@pytest.fixture
def ended(results):
    """A crossing of one complete run whose start wrote these predictions down."""

    def made(asked):
        cell = crossing.Cell("0" * 16, "default", "0", results / "x/runs/default-00000000", {"seed": "0"})
        cell.folder.mkdir(parents=True, exist_ok=True)
        (cell.folder / "status.json").write_text('{"state": "complete", "reason": ""}')
        ending = crossing.Crossing("x", results, [cell], "none")
        crossing.record(ending, {"budget": "paper", "predictions": asked}, [], None)
        return ending

    return made


def test_a_crossing_measures_at_its_end_and_a_raising_part_shows_in_its_exit_code(ended, folder, capsys):
    assert crossing.finish(ended({"right": RIGHT})) == 0 and (folder / "predictions/right.csv").is_file()
    assert "prediction right: 3 of 3 points hold" in capsys.readouterr().out
    assert crossing.finish(ended({"right": RIGHT, "broken": part("raising", at=7)})) == 1
    assert "the same command tries it again" in capsys.readouterr().out
    assert crossing.finish(ended({"wrong": WRONG})) == 0, "what does not hold is a result"


def test_an_interrupted_crossing_and_one_without_a_complete_run_measure_nothing(ended, folder):
    crossing.finish(ended({"right": RIGHT}), wait=False)
    ending = ended({"right": RIGHT})
    (ending.cells[0].folder / "status.json").write_text('{"state": "failed", "reason": "boom"}')
    assert crossing.finish(ending) == 1
    assert not (folder / "predictions").exists() and not CALLS


# --- the report ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_report_has_the_section_after_its_figures_and_a_clone_makes_the_same_one(results, folder):
    cells = little()
    write(results, "x", cells)
    write_question(results, "x", [CLAIM], cells, budget="paper", predictions={"growth": RIGHT, "other": WRONG})
    measured.measure(results, folder, {"growth": RIGHT, "other": WRONG}, "paper")
    report(results, "x")
    text = (folder / "report.md").read_text()
    assert text.index("## Figures") < text.index("## What theory predicts") < text.index("## Runs")
    assert text.index("### Growth") < text.index("### Other")
    assert "![figures/predicted_growth.png](figures/predicted_growth.png)" in text
    assert all((folder / f"figures/predicted_other.{kind}").is_file() for kind in ("png", "pdf"))
    (results / "mlflow.db").unlink()
    shutil.rmtree(folder / "figures")
    report(results, "x")
    assert (folder / "report.md").read_text() == text and (folder / "figures/predicted_growth.png").is_file()


def test_a_report_without_predictions_has_no_such_section(results, folder, monkeypatch):
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: [])
    cells = little()
    write(results, "x", cells)
    write_question(results, "x", [CLAIM], cells)
    report(results, "x")
    assert "What theory predicts" not in (folder / "report.md").read_text()


def test_many_points_are_drawn_and_only_those_that_do_not_hold_are_listed(results, folder):
    asked = {"a": part("squares", law="square", upto=25), "b": part("squares", law="cube", upto=25)}
    measured.measure(results, folder, asked, "paper")
    right, wrong = section(folder, asked).split("### B")
    assert "| yes |" not in right and "| square |" not in right and "25 of 25" in right
    assert "1 of 25" in wrong and wrong.count("| cube |") == 24


def test_a_figure_draws_predictions_as_lines_measurements_with_two_errors_and_rings_what_does_not_hold():
    points = pd.DataFrame(
        [
            Point(panel, line, x, x * (1 + (line == "v")), x * (1 + (line == "v")) + (x == 3), 0.1, 0.4)
            for panel in "ab"
            for line in "uv"
            for x in (3.0, 1.0, 2.0)
        ]
    )
    points["holds"] = points.x.ne(3)
    figure = plots.predicted(points, {"label": "x", "log": True}, {"label": "y", "log": False})
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "b"]
    assert {ax.get_xscale() for ax in figure.axes} == {"log"} and {ax.get_yscale() for ax in figure.axes} == {"linear"}
    for ax in figure.axes:
        laws = [line for line in ax.lines if line.get_linestyle() == "-"]
        assert [list(line.get_xdata()) for line in laws] == [[1, 2, 3]] * 2
        assert len({line.get_color() for line in laws}) == 2
        rings = [line for line in ax.lines if line.get_fillstyle() == "none"]
        assert [(list(line.get_xdata()), list(line.get_ydata())) for line in rings] == [([3], [4]), ([3], [7])]
        bars = [path.vertices[:, 1] for bar in ax.containers for path in bar.lines[2][0].get_paths()]
        assert all(high - low == pytest.approx(4 * 0.1) for low, high in bars) and len(bars) == 6
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "u", "v", "predicted", "measured", "does not hold",
    ]  # fmt: skip


def test_of_predictions_that_coincide_each_is_seen():
    points = pd.DataFrame([Point("", line, x, 10, 20, 0, 1) for line in "uvw" for x in (1.0, 2.0)]).assign(holds=True)
    figure = plots.predicted(points, {"label": "x"}, {"label": "y"})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (ax,), pixels = figure.axes, np.asarray(canvas.buffer_rgba())[:, :, :3]
    at = pixels[len(pixels) - round(ax.transData.transform((1.0, 10.0))[1])]  # the row of the lines
    colours = [np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) for colour in look.COLOURS[:3]]
    shares = [(np.abs(at - colour).sum(1) < 30).sum() for colour in colours]
    assert min(shares) > 0.5 * max(shares) > 20, shares


# --- the ablation files ----------------------------------------------------------------------------------------------


def file_of(ablation):
    return build.CONF / "ablation" / f"{ablation}.yaml"


FILES = sorted(path.stem for path in (build.CONF / "ablation").glob("*.yaml"))
WITH = [name for name in FILES if "predictions" in OmegaConf.load(file_of(name))]


def asked_by(ablation, budget):
    return build.plain(composed(f"ablation={ablation}", f"budget={budget}")).get("predictions") or {}


@pytest.mark.parametrize("ablation", WITH)
@pytest.mark.parametrize("budget", ["paper", "replication", "demo", "smoke"])
def test_every_ablation_file_asks_for_what_can_be_measured(ablation, budget):
    measured.refuse(asked_by(ablation, budget), budget)


SMOKE = [(ablation, name) for ablation in WITH for name in OmegaConf.load(file_of(ablation)).predictions]


@pytest.mark.parametrize(("ablation", "name"), SMOKE)
def test_what_an_ablation_file_predicts_holds_at_the_smallest_budget(results, folder, ablation, name):
    given = asked_by(ablation, "smoke")[name]
    if "results" in needs(instantiate(given["measure"])):
        pytest.skip("needs base policies; tested where they are made")
    assert measured.measure(results, folder, {name: given}, "smoke") == 0
    (part,) = predictions.read(folder, {name: given}, "smoke")
    assert len(part.points) >= 6 and part.points.holds.all(), part.points[~part.points.holds]
