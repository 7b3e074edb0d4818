"""The report: complete, honest about what is missing, and the same twice."""

import ast
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from synthetic import ACCURACY_CLAIM, LENGTH_CLAIM, Cell, crossing, write, write_folders, write_question

import analysis
from analysis import look, stats, words
from analysis.claims import BadClaim
from analysis.load import Absent, load
from analysis.report import IncompleteAblation, cli, report, results_folder, summary


def little(differences=(2.0, 2.2, 1.9, 2.1, 2.3), states=None):
    """Pairs with these differences in one metric at a few steps; quick to draw."""
    cells = [
        Cell({"aggregate": arm}, seed, {"m": {0: 1.0, 10: seed + own, 20: seed + own}, "seconds/update": {10: 0.1}})
        for seed, own_x in enumerate(differences)
        for arm, own in (("sequence_mean", own_x), ("constant", 0.0))
    ]
    for place, state, reason in states or ():
        cells[place] = cells[place]._replace(state=state, reason=reason)
    return cells


CLAIM = LENGTH_CLAIM | {"metric": "m", "window": [10, 20], "says": "it is longer"}


def made(folder, cells, *given, name="x", expected=None, allow_missing=False, **more):
    write(folder, name, cells)
    write_question(folder, name, list(given) or [CLAIM], expected or cells, **more)
    write_folders(folder, name, cells)
    printed = report(folder, name, allow_missing)
    return (folder / name / "report.md").read_text(), printed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A realistic crossing, reported once: (folder, report.md, what was printed)."""
    folder = tmp_path_factory.mktemp("whole")
    text, printed = made(folder, crossing(seeds=6, steps=40), LENGTH_CLAIM, ACCURACY_CLAIM)
    return folder / "x", text, printed


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Writing pictures takes most of a report's time; `whole` has them, the rest is about words and numbers."""
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: [])


def test_the_verdict_comes_first_in_one_sentence_with_its_interval(whole):
    folder, text, _ = whole
    row = pd.read_csv(folder / "claims.csv").iloc[0]
    first = text.split("## Verdict\n\n")[1].split("\n\n")[0]
    assert text.index("## Verdict") < text.index("## Figures") < text.index("## Runs")
    assert first.startswith(
        f"**Reproduced**: “{LENGTH_CLAIM['says']}”; length/incorrect over steps 20 to 40 differs by "
    )
    assert f"{words.number(row.difference, sign=True)} {words.ends(row.low, row.high)} tokens" in first
    assert "6 paired differences" in first and first.count("\n") == 0


def test_every_figure_and_file_that_the_report_names_is_there(whole):
    folder, text, printed = whole
    named = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    names = ["claims", "main", "length", "training", "accuracy_length", "ladder", "more1"]
    assert named == [f"figures/{name}.png" for name in names]
    assert all((folder / file).is_file() and (folder / file).with_suffix(".pdf").is_file() for file in named)
    paths = [Path(line) for line in printed.splitlines() if line.startswith("/")]
    assert {path.name for path in paths} >= {"report.md", "summary.csv", "claims.csv", "claims.png"}
    assert all(path.is_file() for path in paths)


def test_what_is_printed_has_a_line_per_claim(whole):
    lines = whole[2].splitlines()
    assert re.match(r"1  reproduced +\+\d.\d+ \[\+\d.\d+, \+\d.\d+\] +6  < 0.001 +sequence_mean leaves", lines[3])
    assert lines[4].startswith("2  reproduced (equal)")


def test_the_report_says_what_was_fixed_and_what_differed(whole):
    text = whole[1]
    assert "These keys differ between runs: aggregate._target_, seed." in text
    assert "rollout.group_size: 8" in text and "learning_rate: 0.0005" in text and "beta: 0.0" in text


def test_the_report_names_commands_versions_commit_and_paper(whole):
    text = whole[1]
    for part in (
        "ablate ablation=x ",
        "ablate-report x ",
        "commit: c0ffee1",
        "python: 3.11.9",
        "versions.torch: 2.13.0",
        "[arXiv:2503.20783](https://arxiv.org/abs/2503.20783)",
    ):
        assert part in text


def test_the_report_holds_no_path_and_no_name_of_the_machine(whole):
    folder, text, _ = whole
    assert "my-desk" not in text and "4242" not in text
    assert str(folder) not in text and "/somewhere" not in text and "/opt" not in text
    assert not re.search(r"(?<![\w.:/)])/(home|root|tmp|usr|work)\b", text)


def test_every_seed_stands_in_the_report(whole):
    text = whole[1]
    table = text.split("<details><summary>Claim 1: ")[1].split("</details>")[0]
    assert [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| ") and line[2].isdigit()] == [
        f"| {seed}" for seed in range(6)
    ]


def test_the_same_store_gives_the_same_files_byte_for_byte(tmp_path):
    cells = little()
    made(tmp_path, cells)
    files = {file: file.read_bytes() for file in (tmp_path / "x").rglob("*") if file.is_file()}
    report(tmp_path, "x")
    assert all(file.read_bytes() == content for file, content in files.items())


def test_figures_of_an_earlier_report_do_not_stay(tmp_path):
    (tmp_path / "x" / "figures").mkdir(parents=True)
    (tmp_path / "x" / "figures" / "old.png").write_bytes(b"")
    made(tmp_path, little())
    assert not (tmp_path / "x" / "figures" / "old.png").exists()


@pytest.mark.parametrize(
    ("differences", "changes", "begins", "also"),
    [
        ((0.02, -0.03, 0.01, -0.02, 0.03), {}, "**Null**", "lies inside the margin of 0.5"),
        ((3.0, -2.0, 1.0, -2.0, 2.0), {}, "**Underpowered**", "pairs would be needed"),
        ((2.0, 2.2, 1.9), {}, "**No verdict**", "3 paired seeds; a verdict needs 5"),
        ((2.0, 2.2, 1.9, 2.1, 2.3), {"expect": "less"}, "**Reversed**", "+2.10"),
    ],
)
def test_a_verdict_that_is_not_the_hoped_for_one_is_said_as_plainly(tmp_path, differences, changes, begins, also):
    text, _ = made(tmp_path, little(differences), CLAIM | changes)
    first = text.split("## Verdict\n\n")[1].split("\n\n")[0]
    assert first.startswith(begins) and also in first and "Reproduced" not in text


def test_missing_runs_stop_the_report_and_the_message_says_how_many_and_what_to_do(tmp_path):
    cells = little()
    with pytest.raises(IncompleteAblation) as error:
        made(tmp_path, cells[:7], expected=cells, budget="demo")
    assert str(error.value) == (
        "x: 7 of 10 runs are complete; to be finished: aggregate=constant, seed 3: not started; "
        "aggregate=sequence_mean, seed 4: not started; aggregate=constant, seed 4: not started. Finish them with "
        "`ablate ablation=x budget=demo`, or report what is there with `ablate-report x allow_missing=true`."
    )
    assert not (tmp_path / "x" / "report.md").exists()


@pytest.mark.parametrize("state", ["failed", "running"])
def test_a_failed_or_running_run_is_missing_too(tmp_path, state):
    with pytest.raises(IncompleteAblation, match=f"9 of 10 runs are complete, 1 {state}; .*seed 1: {state}"):
        made(tmp_path, little(states=[(3, state, "")]))


def test_a_diverged_run_is_a_result_and_stands_beside_every_number(tmp_path):
    text, printed = made(
        tmp_path, little((2.0, 2.2, 1.9, 2.1, 2.3, 2.0), states=[(3, "diverged", "loss is NaN at step 7")])
    )
    assert "**11 of 12 runs are complete, 1 diverged.**" in text
    first = text.split("## Verdict\n\n")[1].split("\n\n")[0]
    assert "runs not counted: constant: 1 diverged" in first and "loss is NaN at step 7" in text


def test_with_leave_a_report_of_missing_runs_says_so_first(tmp_path):
    cells = little()
    text, _ = made(tmp_path, cells[:8], expected=cells, allow_missing=True)
    assert text.index("**8 of 10 runs are complete, 2 not started.**") < text.index("## Verdict")
    assert "**No verdict**" in text


def test_a_store_without_any_point_cannot_be_reported_even_with_leave(tmp_path):
    cells = [cell._replace(points={}, state="failed") for cell in little()]
    with pytest.raises(IncompleteAblation, match="0 of 10 runs are complete, 10 failed"):
        made(tmp_path, cells, allow_missing=True)


def test_runs_that_do_not_belong_to_the_crossing_are_left_out_and_counted(tmp_path):
    cells = little()
    trial = [cell._replace(hash=f"trial{place}", points={"m": {10: 1e9}}) for place, cell in enumerate(cells[:4])]
    text, _ = made(tmp_path, cells + trial, expected=cells)
    assert "differs by +2.10 " in text and "4 other runs under this name are not part of this crossing" in text


def test_a_hash_that_looks_like_a_number_stays_a_hash(tmp_path):
    cells = [cell._replace(hash=f"{place}2e34567") for place, cell in enumerate(little(), start=1)]
    assert "10 of 10 runs are complete" in made(tmp_path, cells)[0]


def test_text_from_runs_cannot_break_the_page(tmp_path):
    states = [(3, "diverged", "x | y <script>alert(1)</script>\nsecond line")]
    text, _ = made(tmp_path, little((2.0, 2.2, 1.9, 2.1, 2.3, 2.0), states=states))
    assert "<script>" not in text and "x \\| y &lt;script&gt;alert(1)&lt;/script&gt; second line |" in text


def test_claims_about_arms_of_a_larger_budget_get_no_verdict_and_do_not_stop_the_report(tmp_path):
    far = CLAIM | {"compare": {"aggregate": ["sequence_mean", "token_mean"]}}
    text, printed = made(tmp_path, little(), CLAIM, far, budget="demo")
    assert "Of 2 claims: 1 reproduced, 1 no verdict." in text and "there are constant, sequence_mean.\n" in text
    assert "2  no verdict  –" in printed


def test_a_crossing_of_two_seeds_and_three_steps_still_gets_a_report(tmp_path):
    cells = crossing(seeds=2, steps=3)
    for cell in cells:
        del cell.points["length/incorrect"]
    text, _ = made(tmp_path, cells, LENGTH_CLAIM, ACCURACY_CLAIM | {"window": [60, 60]}, budget="smoke")
    assert "Of 2 claims: 2 no verdict." in text


def test_every_paper_is_cited_once(tmp_path):
    given = [
        CLAIM | {"paper": f"arXiv:{paper}"}
        for paper in ("2503.20783, fig. 5", "2503.20783, app. C", "2503.14476 (DAPO)")
    ]
    text, _ = made(tmp_path, little(), *given, paper="Liu et al. 2025, arXiv:2503.20783")
    assert text.split("## Citation")[1].strip().splitlines()[:2] == [
        "- Liu et al. 2025, [arXiv:2503.20783](https://arxiv.org/abs/2503.20783)",
        "- [arXiv:2503.14476](https://arxiv.org/abs/2503.14476)",
    ]


def test_an_ablation_without_claims_is_reported_without_verdict(tmp_path):
    write(tmp_path, "x", little())
    write_question(tmp_path, "x", [], figures=["m", "kl/k3"])
    printed = report(tmp_path, "x")
    text = (tmp_path / "x" / "report.md").read_text()
    assert "no claims" in text and "no claims" in printed and "figures/training.png" in text
    assert "Asked for but logged by no run: kl/k3." in text


def test_a_store_without_run_folders_is_reported_and_says_that_configs_are_not_there(tmp_path):
    write(tmp_path, "x", little())
    write_question(tmp_path, "x", [CLAIM])
    report(tmp_path, "x")
    assert "The folders of the runs are not beside this store" in (tmp_path / "x" / "report.md").read_text()


def test_summary_holds_means_over_seeds_at_the_ends_and_in_every_window(tmp_path):
    text, _ = made(tmp_path, little())
    table = pd.read_csv(tmp_path / "x" / "summary.csv")
    assert set(table.metric) == {"m"}  # timings differ from machine to machine
    row = table[table.arm.eq("aggregate=sequence_mean") & table.first_step.eq(10) & table.last_step.eq(20)].iloc[0]
    mean, low, high, n, _ = stats.t_interval([2.0, 3.2, 3.9, 5.1, 6.3])
    assert (row["n"], row["mean"], row.low, row.high) == pytest.approx((n, mean, low, high), rel=1e-5)
    assert sorted(set(zip(table.first_step, table.last_step, strict=True))) == [(0, 0), (10, 20), (20, 20)]


def test_summary_counts_complete_runs_only(tmp_path):
    write(tmp_path, "x", little(states=[(0, "diverged", "")]))
    from analysis.claims import read_question

    write_question(tmp_path, "x", [CLAIM])
    table = summary(load(tmp_path, "x"), read_question(tmp_path, "x"))
    assert set(table.n[table.arm.eq("aggregate=sequence_mean")]) == {4}


def test_claims_csv_has_the_numbers_of_the_verdict(tmp_path):
    made(tmp_path, little())
    row = pd.read_csv(tmp_path / "x" / "claims.csv").iloc[0]
    assert (row.verdict, row["n"], row.difference) == ("reproduced", 5, 2.1)
    assert (row.low, row.high) == pytest.approx(stats.t_interval([2.0, 2.2, 1.9, 2.1, 2.3])[1:3], rel=1e-5)


def test_a_null_is_not_read_back_from_the_csv_as_a_missing_value(tmp_path):
    made(tmp_path, little((0.02, -0.03, 0.01, -0.02, 0.03)))
    assert pd.read_csv(tmp_path / "x" / "claims.csv").verdict[0] == "null result"


def test_a_p_value_at_the_threshold_shows_on_which_side_it_is():
    assert [words.p_value(p) for p in (0.05045, 0.0499, 0.0126, 0.0004)] == ["0.05045", "0.04990", "0.013", "< 0.001"]
    assert [words.p_value(p) for p in (0.0499999, 0.05000004, 0.05)] == ["0.0499999", "0.05000004", "0.05000"]
    for p in (math.nextafter(0.05, 0), math.nextafter(0.05, 1)):
        assert (float(words.p_value(p)) < 0.05) == (p < 0.05)


def test_a_number_that_is_not_zero_is_not_printed_as_one_and_zero_has_no_minus():
    assert [words.whole(v) for v in (1e-4, 0.04, 0.5, 20.5, 42, 1234567)] == [
        *("0.000100", "0.0400", "0.5", "20.5", "42", "1,234,567")
    ]
    assert words.number(-0.0) == words.number(0.0) == "0.00" and words.number(-0.0, sign=True) == "+0.00"
    assert words.whole(-0.0) == "0" and words.number(-1e-5) == "−1.00e-05"


def test_the_command_writes_where_the_environment_says_and_prints_the_verdict(results, capsys):
    write(results, "x", little())
    write_question(results, "x", [CLAIM])
    cli(["x"])
    assert "1  reproduced  +2.10" in capsys.readouterr().out and (results / "x" / "report.md").is_file()


def test_the_results_folder_is_relative_to_the_caller_and_by_default_that_of_the_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABLATIONS_RESULTS", "here")
    assert results_folder() == tmp_path / "here"
    monkeypatch.delenv("ABLATIONS_RESULTS")
    assert results_folder() == Path(analysis.__file__).resolve().parent.parent / "results"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["x", "y"], "it takes one NAME"),
        (["x", "alow_missing=true"], "it takes one NAME"),
        (["x", "allow_missing=maybe"], "true or false"),
        (["allow_missing=true"], "it takes one NAME"),
        (["nothing"], "There is no .*ablation.yaml"),
    ],
)
def test_a_command_that_cannot_be_done_ends_with_one_sentence(results, arguments, answer):
    with pytest.raises(SystemExit, match=f"ablate-report: .*{answer}"):
        cli(arguments)


def test_incomplete_runs_a_bad_claim_and_an_unknown_metric_end_the_command_without_a_traceback(results):
    cells = little()
    for name, given, expected, kind in (
        ("a", CLAIM, cells + little((1.0,) * 6), IncompleteAblation),
        ("b", CLAIM | {"expect": "more"}, cells, BadClaim),
        ("c", CLAIM | {"metric": "lenght"}, cells, Absent),
    ):
        write(results, name, cells)
        write_question(results, name, [given], expected)
        with pytest.raises(kind):
            report(results, name)
        with pytest.raises(SystemExit, match="ablate-report: "):
            cli([name])


def test_help_is_printed_on_request(capsys):
    with pytest.raises(SystemExit) as end:
        cli(["--help"])
    assert end.value.code == 0 and "allow_missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3.4, "3.40"),
        (-0.000797, "−0.000797"),
        (123456.0, "123456"),
        (0.0, "0.00"),
        (float("inf"), "∞"),
        (float("nan"), "–"),
        (999.96, "1000"),
        (1e-7, "1.00e-07"),
    ],
)
def test_numbers_have_three_digits_and_no_number_is_a_dash(number, text):
    assert words.number(number) == text


def test_analysis_never_imports_what_makes_the_runs():
    """But for the benchmark, which runs what it measures and is no part of a report."""
    files = Path(analysis.__file__).parent.rglob("*.py")
    for file in (file for file in files if file.parent.name != "bench"):
        forbidden = ("ablations", "torch", "hydra", *(() if file.stem == "server" else ("mlflow",)))
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            )
            assert not any(name.split(".")[0] in forbidden for name in names), file
