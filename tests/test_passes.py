"""pass@k of a run: the same problems for all, counts in the run's folder, nothing where it is not asked for."""

import pandas as pd
import pytest
from test_evaluate import TASK, Scripted, total

from ablations.passes import Passes

SAMPLING = dict(batch=40, max_new_tokens=36, temperature=1.0)


def made(folder, seed=0, ks=(1, 4), samples=8, problems=60):
    return Passes(folder, TASK, ks=list(ks), samples=samples, problems=problems, last=3, seed=seed, **SAMPLING)


def level_one_always_others_half(prompt, draw):
    wrong = sum(c.isdigit() for c in prompt) > 2 and draw > 0.5
    return f"#{(total(prompt) + wrong) % 10}"


def test_counts_and_shares_are_those_of_the_answers(tmp_path):
    passes = made(tmp_path)
    row = passes(0, Scripted(level_one_always_others_half))
    table = pd.read_parquet(tmp_path / "evaluation.parquet")
    assert set(table.step) == {0} and set(table.samples) == {8} and table.problem.is_unique
    assert (table.correct[table.level.eq(1)] == 8).all() and table.correct[table.level.gt(1)].mean() < 6
    assert row["accuracy/heldout/pass_at_1"] == pytest.approx((table.correct / 8).mean())
    assert row["accuracy/heldout/pass_at_4"] > row["accuracy/heldout/pass_at_1"]


def test_it_is_measured_before_and_after_training_only(tmp_path):
    passes, policy = made(tmp_path), Scripted(lambda prompt, draw: f"#{total(prompt)}")
    assert [sorted(passes(step, policy)) for step in (1, 2)] == [[], []] and not policy.calls
    passes(0, policy)
    passes(3, policy)
    assert set(pd.read_parquet(tmp_path / "evaluation.parquet").step) == {0, 3}
    passes(3, policy)  # of a run that goes on after its last step was interrupted
    assert not pd.read_parquet(tmp_path / "evaluation.parquet").duplicated(["step", "problem"]).any()


def test_every_seed_answers_the_same_problems_with_its_own_draws(tmp_path):
    tables = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        made(tmp_path / str(seed), seed)(0, Scripted(level_one_always_others_half))
        tables.append(pd.read_parquet(tmp_path / str(seed) / "evaluation.parquet"))
    assert tables[0].problem.tolist() == tables[1].problem.tolist()
    assert tables[0].correct.tolist() != tables[1].correct.tolist()


def test_without_a_k_nothing_is_asked_and_too_few_answers_are_refused(tmp_path):
    policy = Scripted(lambda prompt, draw: "#0")
    assert made(tmp_path, ks=())(0, policy) == {} and not policy.calls and not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"evaluate.pass_at.samples=16"):
        made(tmp_path, ks=(1, 16))
