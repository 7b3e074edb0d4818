"""The tables of results/README.md: every claim with its replication, from committed files alone, and never stale."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from synthetic import write_question
from test_report import CLAIM, little, made

from ablations.build import CONF
from analysis import look, overview, replicated, stats
from analysis.claims import EQUAL, NO_VERDICT, NULL, REPRODUCED, REVERSED, UNDERPOWERED
from analysis.raw import Absent
from analysis.report import cli, report

RESULTS = CONF.parent / "results"
CLEAR, OPPOSITE = (2.0, 2.2, 1.9, 2.1, 2.3), (-2.0, -2.2, -1.9, -2.1, -2.3)
NOTHING, NOISE = (0.02, -0.03, 0.01, -0.02, 0.03), (3.0, -2.0, 1.0, -2.0, 2.0)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: [])


def both(folder, first=CLEAR, second=CLEAR, *, claims=(CLAIM,), again=None):
    """x, and its replication beside it."""
    made(folder, little(first), *claims, budget="paper", ablation="x")
    more = {"name": "x_replication", "budget": "replication", "ablation": "x"}
    made(folder, little(second), *(again or claims), **more)
    return folder


def rows(results, part="claims"):
    """The cells of every row of a table."""
    text = overview.write(results).read_text()
    inside = text.partition(f"<!-- {part} -->\n")[2].partition(f"<!-- /{part} -->\n")[0]
    return [line.strip("| ").split(" | ") for line in inside.splitlines() if line.startswith("| ")][2:], inside


# --- the committed page -----------------------------------------------------------------------------------------------


def test_the_committed_page_is_what_the_committed_results_make(tmp_path):
    """Of what lies in results/, only what git knows: runs that somebody made since are not part of the page."""
    found = subprocess.run(
        ["git", "ls-files", "-z", "--", "*/claims.csv", "*/ablation.yaml", "*/predictions/*.yaml", "README.md"],
        cwd=RESULTS,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        pytest.skip("no checkout of git, so nothing says which results are committed")
    names = [name for name in found.stdout.split("\0") if name and (RESULTS / name).is_file()]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RESULTS / name, tmp_path / name)
    committed = (RESULTS / "README.md").read_text()
    assert overview.write(tmp_path).read_text() == committed, "run `ablate-report --claims`"
    assert committed.count("| [") > 20


# --- a row per claim --------------------------------------------------------------------------------------------------


def test_a_claim_without_a_replication_has_its_numbers_its_command_and_a_dash(tmp_path):
    made(tmp_path, little(), CLAIM | {"paper": "arXiv:2503.20783, fig. 5"}, budget="demo")
    (row,), inside = rows(tmp_path)
    low, high = stats.t_interval(CLEAR)[1:3]
    assert row == [
        "[arXiv:2503.20783](https://arxiv.org/abs/2503.20783), fig. 5",
        "[x 1](x/report.md): it is longer",
        "reproduced",
        f"+2.10 [+{low:.2f}, +{high:.2f}]",
        "5",
        "`ablate ablation=x budget=demo`",
        "–",
    ]
    assert "replication," not in inside


def test_a_null_is_called_null_and_has_its_interval_also_after_it_was_read_back_from_a_file(tmp_path):
    both(tmp_path, NOTHING, NOTHING)
    assert "null result" in (tmp_path / "x" / "claims.csv").read_text()
    (row,), _ = rows(tmp_path)
    assert row[2] == "null" and re.fullmatch(r"\+0\.00200 \[−0\.\d+, \+0\.\d+\]", row[3])
    assert row[6].startswith("null: +0.00200 [")


def test_a_replication_is_a_column_of_its_ablation_and_no_row(tmp_path):
    both(tmp_path, CLEAR, (1.0, 1.2, 0.9, 1.1, 1.3))
    (row,), inside = rows(tmp_path)
    assert row[3].startswith("+2.10 [") and row[6].startswith("reproduced: +1.10 [+0.9")
    assert "**x**: of 1 verdicts 1 are the same in the replication, 0 changed" in inside
    (folder,), _ = rows(tmp_path, "ablations")
    assert folder[0] == "[x](x/report.md)" and folder[3] == "[of 1 claims 1 reproduced](x_replication/report.md)"


def test_a_replication_whose_ablation_is_not_there_is_a_row_of_its_own(tmp_path):
    made(tmp_path, little(), CLAIM, name="x_replication", budget="replication", ablation="x")
    (row,), _ = rows(tmp_path)
    assert row[1].startswith("[x_replication 1]") and row[5] == "`ablate ablation=x budget=replication`"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"says": "it is shorter"}, "claim text differs"),
        ({"window": [0, 20]}, "claim differs in first_step"),
        ({"margin": 0.7, "expect": "less"}, "claim differs in expect, margin"),
    ],
)
def test_a_claim_that_is_not_the_same_in_both_is_marked_and_not_compared(tmp_path, changes, why):
    both(tmp_path, again=[CLAIM | changes])
    (row,), inside = rows(tmp_path)
    assert row[6] == why and "0 are the same in the replication" in inside and "1 not judged in both" in inside


def test_a_claim_that_the_replication_lacks_is_said_to_lack(tmp_path):
    second = CLAIM | {"says": "it is much longer"}
    both(tmp_path, claims=[CLAIM, second], again=[CLAIM])
    found, _ = rows(tmp_path)
    assert [row[6].partition(":")[0] for row in found] == ["reproduced", "not in the replication"]


def test_arms_called_none_or_by_a_number_and_claims_without_a_margin_are_the_same_claim_after_reading(tmp_path):
    cells = [c._replace(knobs={"a": {"constant": "None"}.get(c.knobs["aggregate"], "0.20")}) for c in little()]
    claim = {key: v for key, v in CLAIM.items() if key != "margin"} | {"compare": {"a": ["0.20", "None"]}}
    made(tmp_path, cells, claim, ablation="x")
    made(tmp_path, cells, claim, name="x_replication", budget="replication", ablation="x")
    assert rows(tmp_path)[0][0][6].startswith("reproduced: +2.10")


# --- what became of a verdict -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "outcome"),
    [
        ((REPRODUCED, REVERSED), replicated.FLIPPED),
        ((REPRODUCED, NULL), replicated.FLIPPED),
        ((REVERSED, NULL), replicated.FLIPPED),
        ((REVERSED, EQUAL), replicated.FLIPPED),
        ((REPRODUCED, UNDERPOWERED), replicated.POWER),
        ((NULL, UNDERPOWERED), replicated.POWER),
        ((EQUAL, UNDERPOWERED), replicated.POWER),
        ((UNDERPOWERED, UNDERPOWERED), replicated.SAME),
        ((NULL, NULL), replicated.SAME),
        ((REPRODUCED, NO_VERDICT), replicated.UNJUDGED),
        ((NO_VERDICT, NO_VERDICT), replicated.UNJUDGED),
    ],
)
def test_only_two_decided_verdicts_that_disagree_are_a_flip(pair, outcome):
    assert replicated.outcome(*pair) == replicated.outcome(*reversed(pair)) == outcome


def test_flips_are_counted_and_named(tmp_path):
    third = {"says": "the third", "expect": "less"}
    claims = [CLAIM, CLAIM | {"says": "the second", "expect": "equal", "margin": 0.1}, CLAIM | third]
    both(tmp_path, CLEAR, OPPOSITE, claims=claims)
    found, inside = rows(tmp_path)
    assert [row[2] for row in found] == ["reproduced", "reversed", "reversed"]
    assert [row[6].partition(":")[0] for row in found] == ["reversed", "reversed", "reproduced"]
    words = "of 3 verdicts 1 are the same in the replication, 0 changed between decided and underpowered, 2 flipped"
    assert f"**x**: {words} (claims 1, 3).\n" in inside


def test_a_verdict_that_noise_took_is_no_flip(tmp_path):
    both(tmp_path, CLEAR, NOISE)
    assert (
        "0 are the same in the replication, 1 changed between decided and underpowered, 0 flipped." in rows(tmp_path)[1]
    )


# --- the reports ------------------------------------------------------------------------------------------------------


def test_both_samples_together_are_the_interval_of_all_their_pairs():
    for first, second in ((CLEAR, NOISE), (CLEAR, (1.0,)), (NOISE, ())):
        sides = [
            {"n": len(x), "difference": np.mean(x) if x else np.nan, "sd": stats.spread(x)} for x in (first, second)
        ]
        assert replicated.pooled(*sides) == pytest.approx(stats.t_interval([*first, *second])[:4])
    nothing = {"n": 0, "difference": np.nan, "sd": np.nan}
    assert replicated.pooled(nothing, nothing).n == 0


def test_a_report_sets_its_replication_beside_it_and_says_that_both_together_decide_nothing(tmp_path):
    both(tmp_path, CLEAR, NOISE)
    assert "Once more" not in (tmp_path / "x" / "report.md").read_text()
    report(tmp_path, "x")
    text = (tmp_path / "x" / "report.md").read_text()
    section = text.split("## Once more with other seeds\n\n")[1].split("\n## ")[0]
    assert text.index("## Verdict") < text.index("## Once more") < text.index("## Runs")
    whole = stats.t_interval([*CLEAR, *NOISE])
    assert (
        f"| reproduced | +2.10 [+1.90, +2.30] | 5 | underpowered | +0.400 [−2.46, +3.26] | 5 | +{whole.mean:.2f} ["
        in section
    )
    assert "| both together, no verdict | n together |" in section and section.count("| 10 |") == 1
    assert "0 are the same in the replication, 1 changed between decided and underpowered, 0 flipped." in section
    assert "[x_replication](../x_replication/report.md)" in section


def test_the_report_of_a_replication_links_to_what_it_replicates(tmp_path):
    both(tmp_path)
    text = (tmp_path / "x_replication" / "report.md").read_text()
    assert "## What is replicated" in text and "[x](../x/report.md)" in text and "Once more with" not in text
    assert "What is replicated" not in (tmp_path / "x" / "report.md").read_text()


# --- predictions, and the command -------------------------------------------------------------------------------------


def test_predictions_are_listed_with_the_points_at_which_they_hold(tmp_path):
    made(tmp_path, little())
    assert rows(tmp_path, "predictions")[1] == ""
    (tmp_path / "x" / "predictions").mkdir()
    for part, points, hold in (("gain", 7, 6), ("late", 0, 0)):
        words = f"says: it grows as 1 - p^G\npaper: arXiv:2402.03300, eq. 4\npoints: {points}\nhold: {hold}\n"
        (tmp_path / "x" / "predictions" / f"{part}.yaml").write_text(words)
    found, _ = rows(tmp_path, "predictions")
    assert found[0][0] == "[x: gain](x/report.md)" and found[0][2:] == ["it grows as 1 - p^G", "6 of 7"]
    assert found[1][3] == "not measured"
    (tmp_path / "x" / "predictions" / "gain.yaml").write_text("says: it\n")
    with pytest.raises(Absent, match=r"gain.yaml has no points, hold; measure it again with `ablate ablation=x`"):
        overview.write(tmp_path)


def test_the_command_replaces_what_is_between_the_markers_and_nothing_else(tmp_path, monkeypatch, capsys):
    made(tmp_path, little())
    monkeypatch.setenv("ABLATIONS_RESULTS", str(tmp_path))
    page = tmp_path / "README.md"
    page.write_text("# Mine\n" + overview.NEW.partition("\n")[2] + "the end\n")
    cli(["--claims"])
    assert capsys.readouterr().out == f"{page}\n"
    first = page.read_text()
    assert first.startswith("# Mine\n") and first.endswith("the end\n") and "[x 1]" in first
    cli(["--claims"])
    assert page.read_text() == first
    page.write_text(first.replace("<!-- /claims -->", ""))
    with pytest.raises(SystemExit, match="README.md has no lines <!-- claims --> and <!-- /claims -->"):
        cli(["--claims"])


def test_a_results_folder_without_reports_has_no_page(tmp_path):
    write_question(tmp_path, "x", [CLAIM])
    with pytest.raises(FileNotFoundError, match="holds no ablation with a report"):
        overview.write(tmp_path)
    assert not (tmp_path / "README.md").exists()


def test_an_ablation_without_claims_is_listed_as_such(tmp_path):
    made(tmp_path, little(), CLAIM)
    write_question(tmp_path, "y", [], question="How does it look?")
    pd.DataFrame([]).to_csv(tmp_path / "y" / "claims.csv", index=False)
    assert rows(tmp_path, "ablations")[0][1][1:4] == ["How does it look?", "no claims", "–"]
    assert len(rows(tmp_path)[0]) == 1
