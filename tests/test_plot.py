"""`ablate-plot`: any metric against any other, and README's examples as they are written there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from synthetic import LENGTH_CLAIM, crossing, rich, write, write_question

from analysis import load, look, plot, stats
from analysis.load import Absent

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.fixture(scope="module")
def stored_in(tmp_path_factory):
    """A results folder with an ablation that looks like the one README speaks of."""
    folder = tmp_path_factory.mktemp("plot")
    arms, scales = ("sequence_mean", "token_mean", "constant"), ("none", "group_std")
    cells = crossing(arms=arms, scales=scales, seeds=5, bases=("rambling", "control"), steps=40)
    write(folder, "length_bias", rich(cells))
    write_question(folder, "length_bias", [LENGTH_CLAIM | {"where": {"base": "rambling", "scale": "none"}}])
    return folder


@pytest.fixture(autouse=True)
def here(stored_in, monkeypatch):
    monkeypatch.setenv("ABLATIONS_RESULTS", str(stored_in))


def examples():
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.S)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("ablate-plot ")]


def test_readme_has_three_examples():
    assert len(examples()) == 3


@pytest.mark.parametrize("place", range(3))
def test_an_example_of_readme_makes_its_figure(place, capsys):
    plot.cli(examples()[place])
    files = [Path(line) for line in capsys.readouterr().out.split()]
    assert [file.suffix for file in files] == [".png", ".pdf"] and all(file.stat().st_size > 5_000 for file in files)
    assert Image.open(files[0]).width > 500


def test_the_worked_example_for_notebooks_runs_as_it_is_written(stored_in, monkeypatch, tmp_path):
    code = next(b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "from analysis" in b)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(stored_in)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)  # the project's own text
    assert names["verdicts"].table.verdict[0] == "reproduced"
    assert names["figure"].axes and (tmp_path / "kl.png").is_file()
    assert names["interval"].n == 5


def test_lines_are_the_arms_that_by_names_and_panels_the_values_of_col(stored_in):
    stored = load.load(stored_in, "length_bias")
    figure = plot.figure(stored, "kl/k3", "accuracy/heldout", by="aggregate", col="scale")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["scale = group_std", "scale = none"]
    assert len(figure.legends[0].get_texts()) == 3


def test_leaving_arms_out_changes_no_colour(stored_in):
    stored = load.load(stored_in, "length_bias")
    one = plot.figure(stored, "step", "reward/mean", by="aggregate", where={"aggregate": "token_mean"})
    colours = {line.get_color() for line in one.axes[0].lines if line.get_linewidth() > 1.5}
    assert colours == {look.arm_styles(["constant", "sequence_mean", "token_mean"])["token_mean"].colour}


def test_a_filter_keeps_its_runs_and_the_mean_is_theirs(stored_in):
    stored = load.load(stored_in, "length_bias")
    where = {"aggregate": "constant", "scale": "none", "base": "control"}
    rows, runs = plot.chosen(stored, where)
    assert len(runs) == 5 and rows.run.nunique() == 5
    line = next(
        line
        for line in plot.figure(stored, "step", "reward/mean", by="aggregate", where=where).axes[0].lines
        if line.get_linewidth() > 1.5
    )
    last = rows[rows.metric.eq("reward/mean") & rows.step.eq(40)].value
    assert line.get_ydata()[-1] == pytest.approx(stats.t_interval(last).mean)


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"y": "nothing"}, "No run logged nothing; there are accuracy/heldout"),
        ({"by": "colour"}, "nothing called colour was swept; there are aggregate, scale"),
        ({"by": "hash"}, "nothing called hash was swept; there are aggregate, scale, base, seed and arm"),
        ({"by": "state"}, "nothing called state was swept"),
        ({"col": "started"}, "nothing called started was swept"),
        ({"where": {"scale": "16"}}, "no run has scale=16; there are group_std, none"),
        ({"y": ["reward/mean", "kl/k3"], "x": "kl/k3"}, "several metrics on y need x=step"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(stored_in, settings, answer):
    stored = load.load(stored_in, "length_bias")
    with pytest.raises(Absent, match=answer):
        plot.figure(stored, **{"x": "step", "y": "reward/mean", "by": "aggregate"} | settings)


@pytest.mark.parametrize("arguments", [["length_bias"], ["y=reward/mean"], ["a", "b", "y=c"], ["--watch", "y=c"]])
def test_a_command_that_cannot_be_read_ends_with_the_usage(arguments):
    with pytest.raises(SystemExit, match="cannot read .*\n\nablate-plot NAME"):
        plot.cli(arguments)


def test_a_missing_ablation_ends_with_one_sentence():
    with pytest.raises(SystemExit, match="ablate-plot: The store has no ablation 'none'"):
        plot.cli(["none", "y=reward/mean"])


@pytest.mark.parametrize(
    "module", ["analysis.plot", "analysis.report", "ablations.status", "ablations.track", "ablations.check"]
)
def test_a_command_runs_by_the_name_of_its_module_too(module):
    done = subprocess.run([sys.executable, "-m", module, "no", "such"], capture_output=True, text=True, check=False)
    assert done.returncode and "ablat" in done.stderr
