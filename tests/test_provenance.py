"""When a claim was written, from the history of its file."""

import subprocess

import pytest
from omegaconf import OmegaConf

from ablations import provenance
from analysis.question import read_question

LONGER = {"says": "longer", "metric": "m", "window": [1, 2]}
WORSE = {"says": "worse", "metric": "a", "window": [1, 2]}


@pytest.fixture
def file(tmp_path):
    for command in (["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path / "q.yaml"


def committed(file, *claims, text=None):
    """Commit the file with these claims -> the commit."""
    file.write_text(text or OmegaConf.to_yaml(OmegaConf.create({"claims": list(claims)})))
    git = ["git", "-C", str(file.parent)]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def commits(file, *claims):
    return [claim["written"]["commit"] for claim in provenance.dated(claims, file)]


def test_a_claim_was_written_when_it_got_its_present_form(file):
    committed(file, LONGER | {"window": [1, 9]})
    first = committed(file, LONGER)
    second = committed(file, LONGER, WORSE)
    committed(file, WORSE, LONGER, text=None)  # their order is no part of them
    assert commits(file, LONGER, WORSE) == [first, second]


def test_a_claim_that_was_changed_and_changed_back_is_as_old_as_the_last_change(file):
    committed(file, LONGER)
    committed(file, LONGER | {"window": [1, 9]})
    last = committed(file, LONGER)
    assert commits(file, LONGER) == [last]


def test_a_claim_that_is_not_committed_has_no_commit(file):
    committed(file, LONGER)
    assert commits(file, LONGER | {"margin": 0.5}) == [""] and commits(file.parent / "none.yaml", LONGER) == [""]


def test_a_commit_at_which_the_file_was_no_yaml_does_not_hide_the_later_ones(file):
    committed(file, text="{: [")
    assert commits(file, LONGER) == [""]
    now = committed(file, LONGER)
    assert commits(file, LONGER) == [now]


def test_the_claim_itself_is_kept_as_it_is(file):
    (dated,) = provenance.dated([LONGER], file)
    assert {key: dated[key] for key in LONGER} == LONGER
    assert (dated["written"]["commit"], dated["written"]["date"]) == ("", "")


def test_a_claim_that_is_edited_after_the_crossing_wrote_it_down_has_no_commit_any_more(file, tmp_path):
    whole = {**LONGER, "compare": {"beta": [0.0, 1e-6]}, "expect": "greater", "margin": 0.5, "at": {"kl/k1": [0.1, 1]}}
    committed(file, whole)
    kept = tmp_path / "q" / "ablation.yaml"
    kept.parent.mkdir()

    def read(**changed):
        claims = [{**claim, **changed} for claim in provenance.dated([whole], file)]
        OmegaConf.save(OmegaConf.create({"claims": claims}), kept)
        return read_question(tmp_path, "q").claims[0].written

    assert read()[0] == commits(file, whole)[0] != ""
    for changed in ({"says": "EDITED"}, {"expect": "equal"}, {"margin": 3.5}, {"window": [1, 3]}):
        assert read(**changed) == ("", "")
