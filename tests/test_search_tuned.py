"""Tune, then compare: an arm's learning rate is found before the arms are compared, and never on the same seeds."""

import pytest
from composing import composed
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ablations import build, identity
from ablations.contradictions import Refused
from ablations.search import arms, tuned

ARM = ["aggregate=constant", "scale=none"]
CELL = [*ARM, "optimizer.lr=tuned", "seed=20", "ablation=aggregate_tuned", "budget=smoke"]


@pytest.fixture
def found(results):
    """What a search left: the constant is best at 2e-3."""
    (results / "aggregate_tuned_smoke").mkdir(parents=True)
    point = {"aggregate=constant scale=none": {"point": {"optimizer.lr": 2e-3}}}
    OmegaConf.save(OmegaConf.create(point), results / "aggregate_tuned_smoke" / tuned.FILE)


def hashed(cfg) -> str:
    return identity.config_hash(build.plain(cfg))


def test_an_arm_is_every_choice_but_the_seed_and_what_is_searched():
    assert tuned.arm_of(CELL) == "aggregate=constant scale=none"
    assert tuned.keys_of(CELL) == ["optimizer.lr"] and tuned.keys_of(ARM) == []


def test_the_word_becomes_the_value_that_was_found_for_this_arm(found):
    cfg = tuned.applied(composed(*CELL), CELL)
    build.knobs(cfg)  # knows the key `tuned`
    assert cfg.optimizer.lr == 2e-3 and list(cfg.tuned) == ["optimizer.lr"]


def test_a_run_at_its_tuned_value_is_another_one_than_at_the_same_number_given(found):
    """A shared value and an arm's own may agree; both cells are then in the comparison, each with its runs."""
    plainly = [text.replace("=tuned", "=2e-3") for text in CELL]
    assert hashed(tuned.applied(composed(*CELL), CELL)) != hashed(tuned.applied(composed(*plainly), plainly))
    plain = composed("scale=none")
    assert tuned.applied(plain, ["scale=none"]) is plain


def test_the_command_in_the_folder_of_a_run_trains_the_same_without_the_search(found, results):
    cfg = tuned.applied(composed(*CELL), CELL)
    again = tuned.written(cfg, CELL)
    assert "optimizer.lr=0.002" in again and not any(text.endswith("=tuned") for text in again)
    (results / "aggregate_tuned_smoke" / tuned.FILE).unlink()
    assert hashed(tuned.applied(composed(*again), again)) == hashed(cfg)


@pytest.mark.parametrize("other", ["aggregate=sequence_mean", "scale=group_std"])
def test_an_arm_without_a_value_is_refused_by_name(found, other):
    cell = [other if text.split("=")[0] == other.split("=")[0] else text for text in CELL]
    with pytest.raises(Refused, match=f"optimizer.lr is tuned.*{other}.*ablate ablation=aggregate_tuned"):
        tuned.applied(composed(*cell), cell)


# --- the search before the crossing ----------------------------------------------------------------------------------


def crossing(*tuning: str, seeds=(20, 21)):
    """(config, cells) of a crossing of two aggregations with a made-up trainer."""
    config = compose("config", ["ablation=aggregate_tuned", "budget=smoke", "machine.tracking=none"])
    grid = ["sampler=grid", "trials=7", "search.space.lr.points=7", "seeds=1", "first_seed=100", "workers=2"]
    config.tuning = [*grid, "search.runner._target_=searching.rescaled", *tuning]
    both = [["aggregate=sequence_mean", *ARM[1:]], ARM]
    lrs = ["optimizer.lr=5e-4", "optimizer.lr=tuned"]
    ends = ["machine.tracking=none", "ablation=aggregate_tuned", "budget=smoke"]
    cells = [[*arm, lr, f"seed={seed}", *ends] for arm in both for lr in lrs for seed in seeds]
    return config, cells


@pytest.fixture
def hydra():
    """Initialised while the test runs."""
    with initialize_config_dir(str(build.CONF), version_base=None):
        yield


def accuracy(lr: float, aggregate: str, seed: int) -> float:
    from searching import rescaled_curve

    return rescaled_curve({"optimizer": {"lr": lr}, "aggregate": {"_target_": aggregate}, "seed": seed})[-1]


@pytest.mark.slow
def test_an_arm_that_only_rescales_the_step_wins_at_a_shared_learning_rate_and_not_at_each_arms_best(hydra, results):
    """A made-up trainer in which one aggregation does nothing but divide the step by 10."""
    config, cells = crossing()
    assert arms.tune(config, cells)
    best = OmegaConf.load(results / "aggregate_tuned_smoke" / tuned.FILE)
    lr = {name: best[f"aggregate={name} scale=none"].point["optimizer.lr"] for name in ("sequence_mean", "constant")}
    assert lr["constant"] / lr["sequence_mean"] == pytest.approx(10, rel=0.9)  # a step of the grid is a factor of 1.9
    for seed in (20, 21):
        shared = accuracy(5e-4, "sequence_mean", seed) - accuracy(5e-4, "constant", seed)
        at_best = accuracy(lr["sequence_mean"], "sequence_mean", seed) - accuracy(lr["constant"], "constant", seed)
        assert shared > 0.07 and abs(at_best) < 0.03
    for name in lr:
        folder = results / "aggregate_tuned_smoke" / "tune" / f"{name}-none"
        assert len((folder / "trials.csv").read_text().splitlines()) == 8 and (folder / "figures/history.png").is_file()


def test_seeds_that_tune_and_compare_are_refused(hydra):
    config, cells = crossing("first_seed=20")
    with pytest.raises(Refused, match="Seed 20 would be used to tune the arms and to compare them"):
        arms.tune(config, cells)


def test_a_space_without_the_key_that_is_to_be_tuned_is_refused(hydra):
    config, cells = crossing("search.space.lr.key=beta", "search.space.lr.high=1e-3")
    with pytest.raises(Refused, match="optimizer.lr is tuned, but search/lr searches beta"):
        arms.tune(config, cells)


def test_a_crossing_without_a_space_is_refused(hydra):
    config, cells = crossing()
    config.tune = None
    with pytest.raises(Refused, match="add `tune: search/lr`"):
        arms.tune(config, cells)


def test_a_dry_run_says_what_would_be_tuned_and_leaves_nothing(hydra, results, capsys):
    config, cells = crossing()
    config.dry_run = True
    assert arms.tune(config, cells) is False
    said = capsys.readouterr().out
    assert said.count("7 trials of optimizer.lr") == 2 and said.count("Budget: 7 trials x 1 seeds, of 3 steps") == 2
    assert not (results / "aggregate_tuned_smoke").exists()
