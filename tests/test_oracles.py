"""The oracles hold, and each of them can fail."""

import csv
import functools
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ablations import check
from ablations.knobs import aggregate, baseline, kl
from ablations.knobs import group as by_group
from ablations.oracles import advantage, command, dynamics, length, own, rules, sampling, table
from ablations.oracles import enumerate as groups
from ablations.oracles import kl as kl_oracles
from ablations.oracles.advantage import a_bandit, one_over_std, weight
from ablations.policy.tabular import TwoClass

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "results" / "oracles"
EXACT = [oracle for exact, _ in command.SUBJECTS.values() for oracle in exact]
TRAINED = [oracle for _, trained in command.SUBJECTS.values() for oracle in trained]


def name_of(oracle) -> str:
    return f"{oracle.__module__.rsplit('.', 1)[1]}.{oracle.__name__}"


@functools.cache
def rows_of(oracle) -> list[table.Row]:
    return list(oracle())


def failing(rows: list[table.Row]) -> list[str]:
    assert rows
    return [f"{row.id}: {row.predicted} predicted, {row.measured} measured" for row in rows if not row.passed]


@pytest.mark.parametrize("oracle", EXACT, ids=name_of)
def test_the_prediction_holds_in_expectation(oracle):
    assert failing(rows_of(oracle)) == []


@pytest.mark.slow
@pytest.mark.parametrize("oracle", TRAINED, ids=name_of)
def test_the_prediction_holds_in_training(oracle):
    assert failing(rows_of(oracle)) == []


def test_figures_quoted_for_the_theory_follow_from_the_closed_forms():
    for size, quoted in ((4, 1.07), (8, 1.41), (16, 1.93), (64, 3.40)):
        ratio = weight(0.01, size, one_over_std(size)) / weight(0.5, size, one_over_std(size))
        assert ratio == pytest.approx(quoted, abs=0.006)
    assert round(math.sqrt(0.25 / 0.0099), 2) == 5.03
    assert kl_oracles.resting_points(0.1, 1.0, 10**9)["k3 in the loss: p* = (1-b + sqrt((1-b)^2 + 4 b p0))/2"][
        0
    ] == pytest.approx(0.316, abs=5e-4)


# --- the machinery ---------------------------------------------------------------------------------------------------


def test_the_expectation_is_the_sum_over_groups_of_probability_times_gradient():
    policy = a_bandit(0.5, 0.0, -0.4, lengths=(1, 2, 4))
    of = groups.outcomes(policy, lambda ids: int(ids[0]) != 1, longest=4)
    knobs = rules.knobs(aggregate=rules.token_mean(), scale=rules.group_std())
    every = groups.every_group(policy, of, 3)
    total = 0.0
    for members, chance in zip(every.members, every.chance, strict=True):
        one = every._replace(members=members[None])
        total = total + chance * groups.differentiate(policy, [one], knobs).ascent
    torch.testing.assert_close(groups.expected(policy, of, knobs, group_size=3).ascent, total, rtol=0, atol=1e-14)


def test_the_chances_of_all_groups_sum_to_one():
    policy = a_bandit(0.5, 0.0, -0.4)
    of = groups.outcomes(policy).randomly_paid([0.0, 1.0], [0.3, 0.7])
    for size in (1, 2, 5):
        assert groups.every_group(policy, of, size).chance.sum().item() == pytest.approx(1.0, abs=1e-12)
    coin = TwoClass([0.3])
    assert groups.every_group(coin, groups.outcomes(coin), 64).chance.sum().item() == pytest.approx(1.0, abs=1e-12)
    sequences = groups.every_group(policy, of, 3, ordered=True)
    assert len(sequences.members) == 6**3 and sequences.chance.sum().item() == pytest.approx(1.0, abs=1e-12)


def test_a_population_that_cannot_be_exact_is_refused():
    policy = TwoClass([0.3])
    with pytest.raises(ValueError, match="cannot hold these outcomes exactly"):
        groups.population(policy, groups.outcomes(policy), 4)


def test_an_arrival_that_never_comes_is_an_error():
    with pytest.raises(ValueError, match="did not reach"):
        dynamics.arrival([0.0, 0.5], 1.0)
    assert dynamics.arrival([-1.0, 0.5, 2.0], 0.0) == pytest.approx(2 / 3)


def test_whole_rounds_are_drawn_until_enough_groups_are_kept():
    assert sampling.expected_rounds([1.0, 1.0], 8) == 1.0
    one_of_two = sampling.expected_rounds([0.5], 1)  # one group a round, kept with probability 1/2
    assert one_of_two == pytest.approx(2.0, abs=1e-9)


# --- the table -------------------------------------------------------------------------------------------------------


def test_of_two_vectors_the_entry_with_the_largest_difference_is_shown():
    row = table.exact("x", "", [1.0, 2.0, 3.0], [1.0, 2.5, 3.1])
    assert (row.predicted, row.measured, row.passed) == (2.0, 2.5, False)


@pytest.mark.parametrize("measured", [[1.0, math.nan], [1.0, math.inf]])
def test_a_number_that_is_not_finite_fails(measured):
    assert not table.exact("x", "", [1.0, 2.0], measured).passed


def test_vectors_of_different_size_are_no_comparison():
    with pytest.raises(ValueError, match="compare equally many"):
        table.exact("x", "", [1.0, 2.0], [1.0])


def test_a_sampled_mean_may_be_four_standard_errors_away():
    row = table.sampled("x", "", 0.0, [1.0, 3.0, 2.0, 2.0])
    assert row.tolerance == pytest.approx(4 * math.sqrt(2 / 3) / 2)
    assert table.sampled("x", "", 0.0, [1.0, 3.0], spread=0.5).tolerance == pytest.approx(4 * 0.5 / math.sqrt(2))


def test_the_table_as_csv_loses_no_digit(tmp_path):
    row = table.exact("x", "a, b", 1 / 3, 1 / 3 + 1e-16)
    (back,) = csv.DictReader(table.as_csv([row]).splitlines())
    assert (float(back["predicted"]), float(back["measured"]), back["pass"], back["what"]) == (*row[2:4], "yes", "a, b")


# --- what it takes to fail -------------------------------------------------------------------------------------------

true_std = by_group.std

FAULTS = {
    "ddof": (by_group, "std", lambda rewards, group, ddof: true_std(rewards, group, 1 - ddof), advantage.difficulty),
    "KL sign": (kl, "_k3", lambda d: torch.expm1(-d) + d, kl_oracles.placements),
    "baseline leaves itself out": (baseline, "group_mean", baseline.leave_one_out, advantage.unbiasedness),
    "baseline includes itself": (baseline, "leave_one_out", baseline.group_mean, advantage.unbiasedness),
    "aggregate": (aggregate, "sequence_mean", aggregate.token_mean, length.token_weights),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_knob_fails_an_oracle(fault, monkeypatch):
    module, name, broken, oracle = FAULTS[fault]
    assert failing(rows_of(oracle)) == []
    monkeypatch.setattr(module, name, broken)
    assert failing(list(oracle()))


# File, what stands there, what stands there in the broken copy, subject whose oracles must notice.
COPIES = {
    "ddof": ("knobs/group.py", "(count(rewards, group) - ddof)", "(count(rewards, group) - 1 + ddof)", "A1"),
    "KL sign": ("knobs/kl.py", "    d = logp_ref - logp\n", "    d = logp - logp_ref\n", "A5"),
    "self-inclusion": (
        "knobs/baseline.py",
        "_difference(rewards, by_group.mean(rewards, group), by_group.agree(rewards, group))",
        "leave_one_out(rewards, group)",
        "A1",
    ),
    "aggregate": (
        "knobs/aggregate.py",
        "    lengths = mask.sum(1, keepdim=True).clamp(min=1)\n",
        "    lengths = mask.sum(1, keepdim=True).clamp(min=1) + 1\n",
        "A4",
    ),
}


def run_copy(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """ablate-check of the package in `folder`."""
    program = "import ablations, sys; print(ablations.__file__); from ablations import check; sys.exit(check.cli())"
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.stdout.startswith(str(folder)), done.stdout + done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", *COPIES])
def test_a_broken_copy_fails_an_oracle_and_a_reference_vector(fault, tmp_path):
    for part in ("ablations", "conf"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    subject = "A1,A4,A5"
    if fault != "none":
        file, old, new, subject = COPIES[fault]
        path = tmp_path / "ablations" / file
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
    oracles = run_copy(tmp_path, "oracles", f"only={subject}", "trained=false")
    vectors = run_copy(tmp_path, "vectors", str(ROOT / "tests" / "reference"))
    expected = int(fault != "none")
    assert (oracles.returncode, vectors.returncode) == (expected, expected), oracles.stdout + vectors.stdout
    assert ("FAIL " in oracles.stdout) == bool(expected) and ("FAILED" in vectors.stdout) == bool(expected)


# --- the command -----------------------------------------------------------------------------------------------------


def rows_of_two():
    yield table.exact("x.1", "holds", 1.0, 1.0)
    yield table.exact("x.2", "holds too", 2.0, 2.0)


def one_that_fails():
    yield table.exact("y.1", "does not hold", 1.0, 2.0)


def one_that_raises():
    yield table.exact("z.1", "holds", 1.0, 1.0)
    raise RuntimeError("knob is broken")


@pytest.mark.parametrize(
    "oracles, code, failed", [((rows_of_two,), 0, 0), ((rows_of_two, one_that_fails), 1, 1), ((one_that_raises,), 1, 1)]
)
def test_the_command_writes_the_table_and_exits_by_it(oracles, code, failed, monkeypatch, results, capsys):
    monkeypatch.setattr(command, "SUBJECTS", {"A1": (oracles, ()), "A2": ((rows_of_two,), ())})
    assert check.cli(["oracles"]) == code
    with (results / "oracles" / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["pass"] for row in rows].count("no") == failed
    report = (results / "oracles" / "report.md").read_text()
    assert f"{len(rows) - failed} of {len(rows)} predictions hold" in report
    assert f"{len(rows) - failed} of {len(rows)} predictions hold" in capsys.readouterr().out


@pytest.mark.parametrize("choices", [["only=A1"], ["trained=false"]])
def test_a_part_is_printed_and_not_written(choices, monkeypatch, results):
    monkeypatch.setattr(command, "SUBJECTS", {"A1": ((rows_of_two,), (one_that_fails,)), "A2": ((rows_of_two,), ())})
    assert check.cli(["oracles", *choices]) == int(choices == ["only=A1"])
    assert not results.exists()


@pytest.mark.parametrize(
    "choice, told",
    [
        ("only=A9", "the subjects are A1, A2"),
        ("only=", "says nothing here"),
        ("quick=true", "allowed are file=PATH"),
        ("trained=maybe", "neither true nor false"),
        ("file=nowhere.py", "there is no file nowhere.py"),
    ],
)
def test_a_choice_that_means_nothing_is_refused_in_a_sentence(choice, told, capsys, results):
    assert check.cli(["oracles", choice]) == 2
    assert told in capsys.readouterr().out
    assert not results.exists()


MINE = '''
"""Is the weight of a hard prompt under the group's spread capped by the group size?"""
import math

def predictions(ask):
    yield ask.exact("cap", "G=5, p -> 0: sqrt(G-1)", math.sqrt(4), ask.weight(1e-9, 5, "scale.eps=0"), tolerance=1e-6)
'''


def test_a_prediction_of_ones_own_is_measured_by_the_training_code(tmp_path, capsys, results):
    file = tmp_path / "my.py"
    file.write_text(MINE)
    assert check.cli(["oracles", f"file={file}"]) == 0
    assert re.search(r"cap .* 2 .* pass", capsys.readouterr().out)
    file.write_text(MINE.replace("math.sqrt(4)", "2.1"))
    assert check.cli(["oracles", f"file={file}"]) == 1
    assert not results.exists()


def test_the_documented_example_holds(tmp_path, capsys):
    _, example = own.__doc__.split("\n\n", 1)
    file = tmp_path / "my.py"
    file.write_text(example)
    assert check.cli(["oracles", f"file={file}"]) == 0
    assert "2 of 2 predictions hold" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, code, told",
    [
        ("def other(ask): pass", 2, "no function predictions(ask); its functions are: other"),
        ("def predictions(ask)\n  pass", 2, "line 1: expected ':'"),
        ("import nosuchmodule", 2, "No module named 'nosuchmodule'"),
        ("def predictions(ask): pass", 1, "yielded nothing"),
        ("def predictions(ask):\n    yield 3", 1, "yielded 3"),
        ("def predictions(ask):\n    ask.weight(.5, 4)\n    return [1 / 0]", 1, "line 3: ZeroDivisionError"),
        ("def predictions(ask):\n    ask.weight(.5, 4, 'scale=nonesuch')", 1, "Available options in 'scale'"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_where(text, code, told, tmp_path, capsys):
    file = tmp_path / "my.py"
    file.write_text(text)
    assert check.cli(["oracles", f"file={file}"]) == code
    assert told in capsys.readouterr().out


# --- what is committed -----------------------------------------------------------------------------------------------


def committed() -> list[dict[str, str]]:
    with (COMMITTED / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_committed_table_holds_and_names_every_prediction_once():
    rows = committed()
    ids = [row["id"] for row in rows]
    assert len(ids) == len(set(ids))
    assert all(row["pass"] == "yes" for row in rows)
    parts = ["A1.1", "A1.2", "A1.3", "A1.4", "A1.5", "A1.6", "A1.7", "A1.9", "A2.1", "A2.2", "A2.3", "A3.1", "A3.2"]
    parts += ["A4.1", "A4.2", "A4.3", "A4.5", "A4.6", "A4.7", "A5.1", "A5.2", "A5.3", "A5.4", "A6.1", "A6.2", "A6.3"]
    parts += ["A6.4", "A6.5", "A7.1", "A7.2", "A7.3", "A7.5"]
    assert [part for part in parts if not any(id.startswith(part) for id in ids)] == []


def test_the_committed_table_is_of_the_predictions_that_are_made_now():
    now = {row.id: row for oracle in EXACT for row in rows_of(oracle)}
    then = {row["id"]: row for row in committed()}
    assert set(now) <= set(then)
    for id, row in now.items():
        assert then[id]["what"] == row.what
        assert float(then[id]["tolerance"]) == row.tolerance


def test_exact_predictions_are_held_to_rounding():
    loose = {row["id"] for row in committed() if float(row["tolerance"]) > 1e-10}
    exact = {row.id for oracle in EXACT for row in rows_of(oracle)}
    # limits and expansions, whose next term is in the row
    assert loose & exact == {"A1.2f.8", "A1.2f.64", "A6.4c", "A7.2"}
