"""What makes two runs one run."""

import pytest
from composing import composed

from ablations import build, identity


def hashed(*overrides: str) -> str:
    return identity.config_hash(build.plain(composed(*overrides)))


@pytest.mark.parametrize(("one", "other"), [("beta=1", "beta=1.0"), ("optimizer.lr=1e-3", "optimizer.lr=0.001")])
def test_two_spellings_of_a_value_are_one_run(one, other):
    assert hashed(one) == hashed(other) != hashed()


@pytest.mark.parametrize(
    "machine", ["machine.threads=2", "machine.tracking=none", "name=elsewhere", "hydra.verbose=true"]
)
def test_where_and_how_it_runs_is_not_part_of_it(machine):
    assert hashed(machine) == hashed()


@pytest.mark.parametrize("choice", ["seed=1", "beta=0.1", "scale=none", "aggregate.rows=non_empty", "evaluate.every=5"])
def test_every_other_setting_is(choice):
    assert hashed(choice) != hashed()


def test_a_folder_name_is_short_and_safe_whatever_the_overrides_are():
    """a/b, brackets and 260 characters (hydra#1832)."""
    name = identity.slug({"task.file": "a/b", "levels": "[1,2]", "text": "x" * 260}, "0123456789abcdef")
    assert len(name) <= 80 and name.endswith("-01234567")
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def test_an_arm_is_every_choice_but_seed_and_base():
    choices = identity.swept(
        ["ablation=length_bias", "budget=demo", "scale=none", "base=control", "seed=3", "+beta=0.1"]
    )
    assert choices == {"scale": "none", "base": "control", "seed": "3", "beta": "0.1"}
    assert identity.arm(choices) == "beta=0.1 scale=none"


def test_results_go_to_one_place_whatever_folder_the_command_is_given_in(tmp_path, monkeypatch):
    monkeypatch.delenv("ABLATIONS_RESULTS")
    here = identity.results_folder()
    monkeypatch.chdir(tmp_path)
    assert identity.results_folder() == here
    monkeypatch.setenv("ABLATIONS_RESULTS", "mine")
    assert identity.results_folder() == str(tmp_path / "mine")
