"""Two ablations side by side, the index over all, and a report that follows a crossing."""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from synthetic import write, write_question
from test_report import CLAIM, little, made

from analysis import compare, index, look
from analysis.load import Absent
from analysis.report import cli, watch


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: [])


def two(folder, first=(2.0, 2.2, 1.9, 2.1, 2.3), second=(2.1, 2.0, 2.2, 1.8, 2.2), *, claims=(CLAIM,)):
    for name, differences in (("a", first), ("b", second)):
        write(folder, name, little(differences))
        write_question(folder, name, list(claims))
    return compare.side(folder, "a"), compare.side(folder, "b")


def test_effects_that_agree_and_effects_that_differ_are_told_apart_by_the_difference_of_the_two(tmp_path):
    row = compare.claims_of_both(*two(tmp_path / "one")).iloc[0]
    assert row.agree == "the effects agree" and (row.verdict_x, row.verdict_y) == ("reproduced", "reproduced")
    far = (0.2, 0.1, -0.1, 0.0, 0.15)
    row = compare.claims_of_both(*two(tmp_path / "two", second=far)).iloc[0]
    assert row.agree == "the effects differ" and row.apart == pytest.approx(2.1 - np.mean(far))
    oracle = scipy_stats.ttest_ind([2.0, 2.2, 1.9, 2.1, 2.3], far, equal_var=False)
    assert row.p == pytest.approx(oracle.pvalue)
    assert (row.apart_low, row.apart_high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_only_claims_that_ask_the_same_are_compared(tmp_path):
    x, y = two(tmp_path)
    other = write_question(tmp_path, "b", [CLAIM | {"window": [0, 10]}])
    assert other.is_file() and len(compare.claims_of_both(x, compare.side(tmp_path, "b"))) == 0
    text = compare.report(tmp_path, "a", "b")
    assert "The two state no claim alike" in (tmp_path / "compare" / "a-b.md").read_text() and "a-b.html" in text


def test_one_ablation_in_two_stores_is_two_sides_and_their_runs_stay_apart(tmp_path):
    two(tmp_path / "here")
    two(tmp_path / "there", first=(2.0, 2.2, 1.9, 2.1))
    x, y = compare.side(tmp_path / "here", "a"), compare.side(tmp_path / "here", str(tmp_path / "there" / "a"))
    rows, runs = compare.both_sides(x, y)
    assert len(runs) == 18 and runs.run.is_unique and y.label == "there/a"
    printed = compare.report(tmp_path / "here", "a", str(tmp_path / "there" / "a"))
    assert "it is longer: reproduced, no verdict; the effects agree" in printed
    text = (tmp_path / "here" / "compare" / "a-there_a.md").read_text()
    assert "| seed | 4 | – |" in text and "**1 of 1 claims that both can judge have effects that agree**" in text


def test_an_ablation_is_not_compared_with_itself(tmp_path):
    two(tmp_path)
    with pytest.raises(Absent, match="are the same ablation"):
        compare.report(tmp_path, "a", str(tmp_path / "a"))


def test_without_two_pairs_on_a_side_nothing_is_said_to_agree(tmp_path):
    row = compare.claims_of_both(*two(tmp_path, second=(2.0,))).iloc[0]
    assert row.agree == "not enough pairs" and np.isnan(row.p)
    assert compare.welch(np.array([1.0, 1.0]), np.array([1.0, 1.0]))[3] == 1.0


def test_the_index_has_every_ablation_with_its_verdicts_and_what_is_to_be_done(tmp_path):
    made(tmp_path, little(), name="done")
    write_question(tmp_path, "planned", [CLAIM])
    page = index.write(tmp_path).read_text()
    assert 'href="done/report.html"' in page and "1 reproduced" in page and "10 of 10 runs are complete" in page
    assert "ablate-report planned" in page and page.count('class="card"') == 2


def test_an_index_over_nothing_says_what_to_do(results):
    results.mkdir()
    with pytest.raises(SystemExit, match="holds no ablation. Make one with `ablate"):
        cli(["--index"])


def test_a_report_follows_a_crossing_until_every_run_has_an_outcome(tmp_path, capsys):
    cells = little()
    write_question(tmp_path, "x", [CLAIM], cells)
    arrivals = [cells[:4], cells[4:9], [cells[9]._replace(state="diverged")]]
    pages = []

    def pause(seconds):
        assert seconds == 7
        page = tmp_path / "x" / "report.html"
        pages.append(page.read_text() if page.is_file() else None)
        write(tmp_path, "x", arrivals[len(pages) - 1])

    text = watch(tmp_path, "x", 7, pause=pause)
    assert pages[0] is None and all('content="7"' in page for page in pages[1:]) and len(pages) == 3
    last = (tmp_path / "x" / "report.html").read_text()
    assert 'http-equiv="refresh"' not in last and "1 diverged" in last and "1  no verdict" in text
    said = capsys.readouterr().out
    assert "nothing to report yet" in said and "4 of 10 runs are complete, 6 not started" in said


def test_a_watch_ends_when_the_runs_that_are_left_have_failed(tmp_path):
    cells = little()
    write_question(tmp_path, "x", [CLAIM], cells)
    write(tmp_path, "x", [*cells[:9], cells[9]._replace(state="failed", reason="disk full")])
    assert "disk full" in watch(tmp_path, "x", 7, pause=None) or "report.html" in watch(tmp_path, "x", 7, pause=None)
    assert "disk full" in (tmp_path / "x" / "report.html").read_text()


@pytest.mark.parametrize(
    "arguments", [["--compare", "a"], ["--index", "x"], ["x", "--watch", "every=0"], ["x", "--wach"], ["--compare"]]
)
def test_flags_that_do_not_fit_are_refused_with_the_usage(results, arguments):
    with pytest.raises(SystemExit, match="cannot read .*\n\nablate-report NAME"):
        cli(arguments)
