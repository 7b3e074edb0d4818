"""The cells of the shipped ablations: products of arms and what stands beside them, budgets, replications."""

import copy
import functools
from collections import Counter

import pytest
from composing import composed
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from ablations import build, crossing
from ablations.contradictions import Refused

ABLATIONS = sorted(path.stem for path in (build.CONF / "ablation").glob("*.yaml"))


@functools.cache  # composing takes a second
def whole(*overrides: str):
    """The config of a crossing as its start sees it."""
    with initialize_config_dir(str(build.CONF), version_base=None):
        return compose("config", list(overrides), return_hydra_config=True)


def cells(*overrides: str) -> list[dict[str, str]]:
    """The swept choices of every cell."""
    task = {"ablation", "budget"}
    found = [dict(override.split("=", 1) for override in cell) for cell in crossing.cell_overrides(whole(*overrides))]
    return [{key: text for key, text in cell.items() if key not in task} for cell in found]


def test_a_penalty_has_one_arm_without_it_and_one_placebo_and_not_one_for_every_estimator():
    arms = Counter(
        (cell["reward"], cell["placement"], cell["kl"], cell["beta"]) for cell in cells("ablation=kl_placement")
    )
    assert len(arms) == 2 * 3 * 2 + 2 and set(arms.values()) == {8}
    assert [arm for arm in arms if float(arm[3]) == 0] == [
        ("correctness", "none", "k3", "0"), ("random", "none", "k3", "0"),
    ]


def test_a_rollout_has_equally_many_answers_in_every_arm_of_group_size():
    for cell in (cell for cell in cells("ablation=group_size") if cell["seed"] == "10"):
        of_the_cell = [f"{key}={text}" for key, text in cell.items()]
        rollout = composed("ablation=group_size", *of_the_cell).rollout
        assert rollout.prompts * rollout.group_size == 128


def test_answers_that_cannot_be_dealt_out_evenly_are_refused():
    with pytest.raises(Exception, match="divisor of 128"):
        build.plain(composed("ablation=group_size", "rollout.group_size=6"))


def test_an_entry_beside_the_product_that_lacks_a_key_is_refused():
    config = copy.deepcopy(whole("ablation=group_size"))
    OmegaConf.set_struct(config, False)
    config.also = [{"seed": "range(0,2)", "baseline": "leave_one_out"}]
    with pytest.raises(Refused, match=r"also has an entry with seed, baseline; the crossing sweeps baseline, reward"):
        crossing.cell_overrides(config)


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name not in ("aggregate_tuned", "reward_hacking")])
def test_a_replication_has_the_claims_and_their_arms_eight_seeds_and_neither_the_seeds_nor_the_bases_of_the_first(name):
    first, again = whole(f"ablation={name}"), whole(f"ablation={name}", "budget=replication")
    assert (first.name, again.name) == (name, f"{name}_replication")
    assert OmegaConf.to_container(first.claims) == OmegaConf.to_container(again.claims)

    def arms(found):
        return Counter(tuple(sorted((k, v) for k, v in cell.items() if k != "seed")) for cell in found)

    once, twice = cells(f"ablation={name}"), cells(f"ablation={name}", "budget=replication")
    assert set(arms(twice)) <= set(arms(once)) and set(arms(twice).values()) == {8}
    assert all(finds_its_arms(claim, twice) for claim in OmegaConf.to_container(again.claims, resolve=True))
    assert not any(crossing.claimed([f"{k}={v}" for k, v in arm], first) for arm in set(arms(once)) - set(arms(twice)))
    assert not {cell["seed"] for cell in once} & {cell["seed"] for cell in twice}
    bases = [
        {composed(f"ablation={name}", budget, f"seed={cell['seed']}").base.seed for cell in found[:3]}
        for budget, found in (("budget=paper", once), ("budget=replication", twice))
    ]
    assert not bases[0] & bases[1] and len(bases[0]) == len(bases[1]) == 3


def test_a_budget_that_an_ablation_does_not_have_is_refused_with_those_that_it_has():
    with pytest.raises(Refused, match="no crossing for budget=replication; it has paper, demo, smoke"):
        crossing._refuse_budget(whole("ablation=reward_hacking", "budget=replication"))
    with pytest.raises(Refused, match="would write over the results of ablation=length_bias"):
        crossing._refuse_budget(whole("ablation=length_bias", "budget=replication", "name=length_bias"))
    crossing._refuse_budget(whole("ablation=length_bias", "budget=replication"))


@pytest.mark.parametrize("name", ["length_bias", "difficulty_bias", "kl_placement", "group_size"])
def test_a_smaller_budget_does_not_write_over_the_full_results(name):
    assert [composed(f"ablation={name}", f"budget={b}").name for b in ("paper", "demo", "smoke")] == [
        name, f"{name}_demo", f"{name}_smoke",
    ]


@pytest.mark.parametrize("name", ABLATIONS)
@pytest.mark.parametrize("budget", ["demo", "smoke"])
def test_every_smaller_budget_has_arms_of_the_full_one_and_two_at_least(name, budget):
    full, small = cells(f"ablation={name}"), cells(f"ablation={name}", f"budget={budget}")
    for key in full[0]:
        if key != "seed":
            assert {cell[key] for cell in small} <= {cell[key] for cell in full}
    assert len({tuple(sorted((k, v) for k, v in cell.items() if k != "seed")) for cell in small}) >= 2


def test_a_claim_finds_its_arms_in_the_full_crossing():
    for name in ABLATIONS:
        config, runs = whole(f"ablation={name}"), cells(f"ablation={name}")
        for claim in OmegaConf.to_container(config.claims, resolve=True):
            assert finds_its_arms(claim, runs), (name, claim)


def finds_its_arms(claim: dict, runs: list[dict[str, str]]) -> bool:
    arms = [claim.get("where", {}) | {key: pair[side] for key, pair in claim["compare"].items()} for side in (0, 1)]
    return all(
        any(all(_same(cell.get(key), wanted) for key, wanted in arm.items()) for cell in runs) for arm in arms
    )


def _same(text: str | None, wanted) -> bool:
    parsed = None if text is None else OverridesParser.create().parse_override(f"x={text}").value()
    return parsed == wanted or str(parsed) == str(wanted)
