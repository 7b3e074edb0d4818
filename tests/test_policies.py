"""Claims with every base policy counted once: what is computed, and why it is shown beside the pairs."""

import numpy as np
import pandas as pd
import pytest
from synthetic import Cell, write, write_folders, write_question

from analysis import claims, facts, look, policies, stats
from analysis.load import load
from analysis.report import report

CLAIM = {"says": "a is longer", "metric": "m", "window": [10, 20], "compare": {"k": ["a", "b"]}, "expect": "greater"}
CLAIM |= {"margin": 0.5}
DIFFERENCES = [1.0, 2.0, 6.0, 3.0, 4.0, 8.0, 2.0, 3.0]  # seeds 0 to 7 on base policies 0, 1, 2 by their remainder


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(look, "save", lambda figure, folder, name, vector=True: [])


def cells(differences=DIFFERENCES, first=0):
    return [
        Cell({"k": arm}, first + seed, {"m": {10: seed + own, 20: seed + own}})
        for seed, difference in enumerate(differences)
        for arm, own in (("a", difference), ("b", 0.0))
    ]


def stored(results, made, first_base=0, name="x", count=3):
    """A reported ablation whose runs start from `count` base policies, by their seed's remainder."""
    write(results, name, made)
    write_question(results, name, [CLAIM], made)
    write_folders(results, name, made)
    for cell in made:
        config = results / name / "runs" / f"{cell.slug}-{cell.id}" / "config.yaml"
        seed = f"  seed: {first_base + cell.seed % count}\n"
        config.write_text(config.read_text().replace("base:\n", f"base:\n{seed}"))
    report(results, name)
    return (results / name / "report.md").read_text()


def test_the_mean_of_a_base_policy_is_over_its_own_pairs(tmp_path):
    stored(tmp_path, cells())
    table = pd.read_csv(tmp_path / "x" / policies.FILE)
    assert table.policy.tolist() == ["seed 0", "seed 1", "seed 2"] and table.n.tolist() == [3, 3, 2]
    assert table.difference.tolist() == [2.0, 3.0, 7.0]  # of 1 3 2, of 2 4 3, of 6 8
    assert table.sd.tolist() == pytest.approx([1.0, 1.0, 2**0.5], rel=1e-5)


def test_the_interval_over_base_policies_is_the_t_interval_of_their_means(tmp_path):
    text = stored(tmp_path, cells())
    assert "## With every base policy counted once" in text and "No more than 3 base policies" in text
    line = text.split("## With every base policy counted once")[1].split("| 1 |")[1].split("\n")[0]
    # 4 -+ t(2) sqrt(7 / 3): the pairs are significant and the base policies are not
    assert "+4.00 [−2.57, +10.6]" in line and line.rstrip(" |").endswith("underpowered")
    assert "| reproduced |" in line and "seed 0: +2.00 (3), seed 1: +3.00 (3), seed 2: +7.00 (2)" in line


def test_the_share_between_base_policies_is_that_of_the_analysis_of_variance():
    """MSB 15.9375, MSW 6 / 5, n0 (8 - 22 / 8) / 2: worked by hand for the differences above."""
    own = pd.DataFrame({"n": [3, 3, 2], "difference": [2.0, 3.0, 7.0], "sd": [1.0, 1.0, 2**0.5]})
    squares_between = (3 * (2 - 3.625) ** 2 + 3 * (3 - 3.625) ** 2 + 2 * (7 - 3.625) ** 2) / 2
    typical = (8 - 22 / 8) / 2
    expected = (squares_between - 1.2) / (squares_between + (typical - 1) * 1.2)
    assert squares_between == 15.9375
    assert policies.share_between(own) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(policies.share_between(own.assign(n=1)))  # one pair each: nothing within
    assert np.isnan(policies.share_between(own.head(1)))


def test_the_share_between_is_unbiased_enough_to_be_read():
    rng = np.random.default_rng(3)
    for true in (0.0, 0.5, 0.8):
        found = [policies.share_between(_units(rng, true, 6, 4)) for _ in range(2000)]
        assert np.median(found) == pytest.approx(true, abs=0.08)


def _units(rng, share, count, pairs):
    drawn = share**0.5 * rng.normal(size=(count, 1)) + (1 - share) ** 0.5 * rng.normal(size=(count, pairs))
    return pd.DataFrame({"n": pairs, "difference": drawn.mean(axis=1), "sd": drawn.std(axis=1, ddof=1)})


def test_when_base_policies_matter_the_interval_over_pairs_covers_less_than_it_says_and_theirs_does_not():
    """Three base policies with three pairs each and half of the variance between them: of 4,000 crossings the nominal
    95 % interval over pairs holds the true mean in about 80 %, the one over base policies in 95 %."""
    rng, pairs_hold, policies_hold, sims = np.random.default_rng(11), 0, 0, 4000
    for _ in range(sims):
        drawn = 0.5**0.5 * (rng.normal(size=(3, 1)) + rng.normal(size=(3, 3)))
        _, low, high, *_ = stats.t_interval(drawn.ravel())
        pairs_hold += low <= 0 <= high
        _, low, high, *_ = stats.t_interval(drawn.mean(axis=1))
        policies_hold += low <= 0 <= high
    assert pairs_hold / sims < 0.85
    assert policies_hold / sims == pytest.approx(0.95, abs=0.012)


def test_base_policies_of_the_replication_are_further_observations(tmp_path):
    stored(tmp_path, cells([3.0, 5.0, 4.0, 3.0, 5.0, 4.0], first=12), first_base=13, name="x_replication")
    text = stored(tmp_path, cells())
    line = text.split("## With every base policy counted once")[1].split("| 1 |")[1].split("\n")[0]
    _, low, high, *_ = stats.t_interval([2.0, 3.0, 7.0, 3.0, 5.0, 4.0])
    assert f"+4.00 [+{low:.2f}, +{high:.2f}]" in line and "| 6 | reproduced |" in line


def test_base_policies_that_are_in_both_crossings_are_not_counted_twice(tmp_path):
    stored(tmp_path, cells(first=12), first_base=0, name="x_replication")
    text = stored(tmp_path, cells())
    assert "not added: both have seed 0, seed 1, seed 2" in text


def test_one_base_policy_is_said_and_a_base_policy_for_each_pair_is_not(tmp_path):
    one = stored(tmp_path, cells(), count=1)
    assert "All pairs of a claim start from one base policy (seed 0)" in one and "counted once" not in one
    each = stored(tmp_path / "each", cells(), count=8)
    assert "base policies stand behind" not in each and "one base policy" not in each


def test_without_a_record_of_the_base_policies_nothing_is_said_of_them(tmp_path):
    made = cells()
    write(tmp_path, "x", made)
    write_question(tmp_path, "x", [CLAIM], made)
    report(tmp_path, "x")  # a store without run folders
    text = (tmp_path / "x" / "report.md").read_text()
    assert "one base policy" not in text and "counted once" not in text


def test_a_base_policy_is_named_by_what_tells_it_from_others_of_its_base(tmp_path):
    configs = [
        {"base.name": "rambling", "base.seed": "1", "base.style.filler": "0.6", "model.size": "S"},
        {"base.name": "rambling", "base.seed": "2", "base.style.filler": "0.6", "model.size": "M"},
        {"base.name": "control", "base.seed": "1", "base.style.filler": "0.3", "model.size": "S"},
        {"base.name": "none", "model.size": "S"},
    ]
    assert facts._policies("abcd", configs) == {
        "a": "seed 1, model.size=S",
        "b": "seed 2, model.size=M",
        "c": "seed 1",
        "d": "the model as it is",
    }


def test_the_tables_of_a_clone_without_runs_say_the_same(tmp_path):
    text = stored(tmp_path, cells())
    for folder in (tmp_path / "x" / "runs").iterdir():
        for file in folder.iterdir():
            file.unlink()
    (tmp_path / "mlflow.db").unlink()
    report(tmp_path, "x")
    again = (tmp_path / "x" / "report.md").read_text()
    section = "## With every base policy counted once"
    assert again.split(section)[1].split("\n## ")[0] == text.split(section)[1].split("\n## ")[0]


def test_the_verdict_itself_is_by_pairs_whatever_the_base_policies_say(tmp_path):
    stored(tmp_path, cells())
    verdicts = claims.verdicts(load(tmp_path, "x"), claims.read_question(tmp_path, "x"))
    assert verdicts.table.verdict.tolist() == [claims.REPRODUCED] and verdicts.table.n.tolist() == [8]
