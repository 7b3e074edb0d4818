"""How often the whole claims engine is wrong on runs that are simulated, and whether it finds what it says it would.

From frames to verdicts, as a report makes them: pairing, windows, t tests, Holm, margins. The store is left out, which
does nothing to the numbers.
"""

import numpy as np
import pandas as pd
import pytest

from analysis import claims, stats
from analysis.load import Stored
from analysis.question import Question

pytestmark = pytest.mark.slow
STEPS = (10, 15, 20)


def question(metrics, **changes):
    given = {"window": [10, 20], "compare": {"k": ["a", "b"]}, "expect": "greater", **changes}
    return Question(
        "x", "", "", [claims.claim({"says": m, "metric": m} | given) for m in metrics], [], "", None, {}, [], "x", {}
    )


def simulated(rng, seeds, effects, spread=1.0):
    """Two arms with shared seeds; `effects`: metric -> true difference. The difference of a pair has sd `spread`."""
    runs = pd.DataFrame(
        [(f"{arm}{seed}", arm, seed, "r", "complete") for seed in range(seeds) for arm in "ab"],
        columns=["run", "k", "seed", "base", "state"],
    )
    for column in ("run", "k"):
        runs[column] = pd.Categorical(runs[column])
    runs["arm"], runs["hash"] = runs.k, runs.run
    pieces = []
    for metric, effect in effects.items():
        level = np.repeat(rng.normal(0, 5, seeds), 2)  # the seed's own level, shared by its pair
        own = level + effect * (runs.k == "a") + rng.normal(0, spread / 2**0.5, 2 * seeds)
        for step in STEPS:
            pieces.append(runs.assign(step=step, metric=metric, value=own + (step - 15)))
    rows = pd.concat(pieces, ignore_index=True)
    rows["metric"] = pd.Categorical(rows.metric)
    return Stored(rows, runs, ["k"], runs.head(0))


def judged(rng, seeds, effects, asked, seed):
    """The verdicts of one ablation from differences drawn straight away: pairing takes most of the engine's time and
    draws nothing."""
    rows = []
    for claim in asked.claims:
        x = effects[claim.metric] + rng.normal(0, 1, seeds)
        found = pd.DataFrame({"seed": range(seeds), "x": x, "y": 0.0, "difference": x})
        numbers = claims.measured(found, claim, np.random.default_rng(seed))
        rows.append({"expect": claim.expect, "target": claim.target, "margin": claim.margin, "apart": ""} | numbers)
    return claims.judged(pd.DataFrame(rows)).verdict


def share(sims, wanted, effects, seeds, rng, **changes):
    """Share of simulated ablations in which any claim gets one of the verdicts `wanted`."""
    asked = question(effects, **changes)
    return sum(judged(rng, seeds, effects, asked, n).isin(wanted).any() for n in range(sims)) / sims


def test_from_runs_to_verdicts_nothing_is_added_to_the_differences_that_were_drawn():
    """The whole engine on 12 ablations of runs; the differences of its pairs, judged alone, get the same verdicts."""
    rng, effects = np.random.default_rng(9), {"m1": 0.0, "m2": 1.0, "m3": 2.0}
    asked = question(effects, margin=0.6)
    for number in range(12):
        whole = claims.verdicts(simulated(rng, 6, effects), asked, seed=number)
        rows = []
        for place, claim in enumerate(asked.claims, start=1):
            found = whole.pairs[whole.pairs.claim.eq(place)]
            numbers = claims.measured(found, claim, np.random.default_rng(0))
            rows.append({"expect": claim.expect, "target": 0.0, "margin": claim.margin, "apart": ""} | numbers)
        assert claims.judged(pd.DataFrame(rows)).verdict.tolist() == whole.table.verdict.tolist()


def test_without_any_effect_one_ablation_in_twenty_has_a_false_verdict():
    """Three claims, six seeds. The family-wise level is .05; 800 ablations place it within .0155 (two errors)."""
    effects = dict.fromkeys(("m1", "m2", "m3"), 0.0)
    rate = share(800, ["reproduced", "reversed"], effects, 6, np.random.default_rng(0))
    assert 0.03 < rate <= 0.05 + 0.0155


def test_a_difference_as_large_as_the_margin_is_called_equal_in_one_ablation_of_twenty():
    rate = share(800, [claims.EQUAL], {"m": 1.5}, 10, np.random.default_rng(1), margin=1.5, expect="equal")
    assert 0.03 < rate <= 0.05 + 0.0155


@pytest.mark.parametrize(("effect", "seeds"), [(1.0, 8), (0.8, 12)])
def test_a_planted_effect_is_found_as_often_as_the_power_says(effect, seeds):
    rate = share(800, ["reproduced"], {"m": effect}, seeds, np.random.default_rng(2))
    assert rate == pytest.approx(stats.power(effect, seeds), abs=0.035)


def test_with_the_seeds_that_were_said_to_be_needed_four_of_five_studies_find_it():
    needed = int(stats.seeds_needed(0.9, 1.0))
    assert share(800, ["reproduced"], {"m": 0.9}, needed, np.random.default_rng(3)) >= 0.8 - 0.028


def test_a_planted_effect_is_hardly_ever_reversed():
    assert share(500, ["reversed"], {"m": 0.8}, 8, np.random.default_rng(4)) <= 0.01
