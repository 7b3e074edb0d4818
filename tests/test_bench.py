"""The benchmark compares equal work and counts it right; how fast anything is, is no matter of a test."""

import math

import pytest
import torch

from analysis.bench import report, work
from analysis.bench.measure import CEILING, GENERATE, HERE, SKIPPING, TRL, ratios

SMALL = work.Work("S", natural=False, prompts=4, group=4, tokens=6)


def test_everyone_gets_the_same_weights_and_prompts_and_fixed_answers_have_the_full_length():
    one, other = work.policy_for(SMALL), work.policy_for(SMALL)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert sum(p.numel() for p in one.parameters() if p.dim() == 2) == 230_400 and len(one.tokenizer) == 48
    lengths = [len(prompt) for prompt in work.prompts_for(SMALL)]
    assert len(lengths) == 4 and all(16 <= length <= 24 for length in lengths)
    assert work.generate(one, SMALL)["tokens"] == work.Ours(SMALL).step()["tokens"] == 4 * 4 * 6


def test_natural_answers_end_with_a_chance_of_about_1_in_48():
    step = work.Ours(work.Work("S", natural=True, prompts=16)).step()
    mean = 48 * (1 - (47 / 48) ** 64)
    assert step["tokens"] / 128 == pytest.approx(mean, abs=4 * 24 / math.sqrt(128))


def test_a_dead_share_is_left_out_of_the_update_and_else_nothing_is():
    assert work.Ours(SMALL).step()["skipped"] == 0
    assert work.Ours(SMALL._replace(dead=0.5)).step()["skipped"] == 0.5


def test_packed_tokens_count_a_prompt_once_per_group():
    ours = work.Ours(SMALL)
    step = ours.step()
    assert step["packed"] - step["tokens"] == sum(map(len, work.prompts_for(SMALL)))


def test_the_ceiling_multiplies_by_every_matrix_of_the_model_but_the_table_of_embeddings():
    policy = work.policy_for(SMALL)
    sizes = sum(w.numel() for w in work.Ceiling(SMALL, policy).weights)
    embeddings = policy.model.get_input_embeddings().weight.numel()
    assert sizes == sum(p.numel() for p in policy.parameters() if p.dim() == 2) - embeddings


def test_ratios_are_of_tokens_per_second_and_shares_of_the_products_time():
    rows = [
        {"who": HERE, "tokens": 100, "packed": 120, "seconds": 4.0, "sampling": 1.0, "update": 3.0},
        {"who": SKIPPING, "tokens": 100, "packed": 120, "seconds": 2.0, "sampling": 1.0, "update": 1.0, "skipped": 0.5},
        {"who": TRL, "tokens": 80, "seconds": 8.0},
        {"who": GENERATE, "tokens": 50, "seconds": 1.0},
        {"who": CEILING, "seconds": 0.03, "decode": 0.005, "train": 0.01},
    ]
    for row in rows[:4]:
        row |= {"tokens_per_second": row["tokens"] / row["seconds"], "peak_mb": 1.0}
    found = ratios(rows)
    assert found["times TRL"] == 2.5 and found["times TRL, skipping"] == 5.0 and found["times generate"] == 2.0
    assert found["share in sampling"] == pytest.approx(0.6) and found["share in the update"] == pytest.approx(0.4)
    assert found["share of the ceiling"] == pytest.approx(0.45)
    assert "| S | natural | 100 | 4.00 | 2.50 | 5.00 (50% of the answers) | 2.00 |" in report.main_table(
        {("S", "natural"): rows}
    )
