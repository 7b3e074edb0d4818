"""A space is read as it is written, and what cannot be meant is refused."""

import json

import optuna
import pytest
from composing import composed
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ablations.contradictions import Refused
from ablations.search import objective, sampling, space

LR = {"key": "optimizer.lr", "low": 1e-4, "high": 1e-2, "log": True, "points": 3}
LETTERS = {"key": "scale", "choices": ["none", "group_std"]}


def read(**parameters):
    return space.space(parameters)


def test_ranges_become_distributions_with_their_scales():
    made = read(lr=LR, epochs={"key": "update.epochs", "low": 1, "high": 4, "whole": True}, scale=LETTERS).distributions
    assert made == {
        "optimizer.lr": FloatDistribution(1e-4, 1e-2, log=True),
        "update.epochs": IntDistribution(1, 4),
        "scale": CategoricalDistribution(("none", "group_std")),
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"key": "optimizer.lr", "low": 1, "high": 0}, ["1 to 0", "low <= high"]),
        ({"key": "optimizer.lr", "low": 0, "high": 1, "log": True}, ["logarithmic", "above 0"]),
        ({"key": "optimizer.lr", "low": 0.1, "high": 1, "log": True, "step": 0.1}, ["step", "Leave one"]),
        ({"key": "optimizer.lr", "low": 1e-4}, ["None", "choices"]),
        ({"key": "optimizer.lr", "low": 1, "high": float("inf")}, ["inf", "finite"]),
        ({"key": "optimizer.lr", "lo": 1, "high": 2}, ["lo", "low", "points"]),
        ({"key": "scale", "choices": []}, ["empty"]),
        ({"key": "seed", "choices": [0, 1]}, ["seed", "noise"]),
        ({"key": "machine.threads", "choices": [1, 2]}, ["machine.threads", "trained"]),
    ],
)
def test_a_range_that_cannot_be_meant_is_refused(given, told):
    with pytest.raises(Refused) as caught:
        read(x=given)
    assert all(word in str(caught.value) for word in ["search.space.x", *told])


def test_a_key_that_is_there_twice_is_refused():
    with pytest.raises(Refused, match="twice"):
        read(one=LR, two=LR)


@pytest.mark.parametrize(
    "value", [3e-4, 1e-05, 7, "none", "group_std", True, None, "a b", "it's", "-1", "1e3", "[1,2]"]
)
def test_what_is_written_as_an_override_is_read_back_as_the_same_value(value):
    (text,) = space.overrides({"key": value})
    assert OverridesParser.create().parse_override(text).value() == value


def test_a_point_is_composed_into_the_run():
    cfg = composed(*space.overrides({"optimizer.lr": 0.0007123, "scale": "none", "update.epochs": 2}))
    assert cfg.optimizer.lr == 0.0007123 and cfg.scale._target_.endswith(".none") and cfg["update"].epochs == 2


def test_a_sampled_number_can_be_typed_again_and_stays_in_its_range():
    lr = FloatDistribution(1.00004e-4, 1e-2, log=True)
    assert space.rounded(lr, 0.000712345678) == 0.0007123
    assert space.rounded(lr, 1.00004e-4) == 1.00004e-4
    assert space.rounded(FloatDistribution(0, 1, step=0.25), 0.25) == 0.25


def test_a_grid_has_the_ends_and_needs_to_know_how_many_points():
    assert space.grid(read(lr=LR, scale=LETTERS)) == {
        "optimizer.lr": [1e-4, 1e-3, 1e-2],
        "scale": ["none", "group_std"],
    }
    with pytest.raises(Refused, match="optimizer.lr takes; add points"):
        space.grid(read(lr={key: LR[key] for key in LR if key != "points"}))


def test_a_space_of_choices_and_steps_has_a_size_and_a_continuous_one_has_none():
    steps = {"key": "rollout.temperature", "low": 0.1, "high": 0.5, "step": 0.1}
    whole = {"key": "update.epochs", "low": 1, "high": 4, "whole": True}
    assert space.size(read(scale=LETTERS, t=steps, epochs=whole)) == 2 * 5 * 4
    assert space.size(read(lr=LR, scale=LETTERS)) is None


# --- what a search looks at ------------------------------------------------------------------------------------------


def rows(*values):
    return [{"step": step, "accuracy/heldout": value} for step, value in enumerate(values)]


@pytest.mark.parametrize(
    ("window", "score"), [(objective.last, 0.2), (objective.best, 0.9), (lambda v, **_: sum(v[-2:]) / 2, 0.55)]
)
def test_the_window_decides_what_a_curve_is_worth(window, score):
    """rl-baselines3-zoo#469: values by step .1, .9, .2; step 0 is the base policy."""
    wanted = objective.objective("accuracy/heldout", "maximize", window)
    assert objective.score(rows(0.99, 0.1, 0.9, 0.2), wanted) == pytest.approx(score)


def test_the_mean_of_the_last_k_and_the_direction_of_the_best():
    assert objective.mean_of_last([0.1, 0.9, 0.2], direction="maximize", k=2) == pytest.approx(0.55)
    assert objective.mean_of_last([0.1], direction="maximize", k=3) == 0.1
    assert objective.best([0.1, 0.9, 0.2], direction="minimize") == 0.1


@pytest.mark.parametrize(
    ("metric", "direction"),
    [("accuracy/heldout", "minimize"), ("reward/mean", "minimize"), ("length/truncated_share", "maximize"),
     ("seconds/update", "maximize"), ("accuracy/heldout", "up")],
)  # fmt: skip
def test_a_direction_that_contradicts_the_metric_is_refused(metric, direction):
    with pytest.raises(Refused, match="search.objective"):
        objective.objective(metric, direction, objective.last)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_metric_that_is_good_or_bad_by_the_question_has_either_direction(direction):
    assert objective.objective("length/incorrect", direction, objective.last).direction == direction


def test_a_metric_that_was_never_logged_is_named_with_those_that_were():
    wanted = objective.objective("accuracy/greedy", "maximize", objective.last)
    with pytest.raises(LookupError, match="no accuracy/greedy after step 0; the run has accuracy/heldout"):
        objective.score(rows(0.1, 0.2), wanted)


# --- samplers --------------------------------------------------------------------------------------------------------

SAMPLERS = {
    "random": (lambda seed: optuna.samplers.RandomSampler(seed=seed), False),
    "tpe": (lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=3), False),
    "gp": (lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=3), False),
    "qmc": (lambda seed: optuna.samplers.QMCSampler(seed=seed, scramble=True, warn_asynchronous_seeding=False), True),
    "grid": (sampling.grid, True),
}


def drawn(name: str, searched, count: int, seed: int = 1, broken_at: int | None = None) -> list[dict]:
    """Points of a study, each told a made-up score; the sampler begins anew at `broken_at`, as after a restart."""
    make, sequence = SAMPLERS[name]
    study = optuna.create_study(sampler=sampling.Distinct(make, searched, seed, sequence))
    for number in range(count):
        if number == broken_at:
            study.sampler = sampling.Distinct(make, searched, seed, sequence)
        trial = study.ask(searched.distributions)
        study.tell(trial, sum(len(str(value)) for value in trial.params.values()))
    return [trial.params for trial in study.trials]


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_interrupted_search_draws_the_points_that_it_would_have_drawn(name):
    """optuna#1547: a process that starts again with its seed draws the first points again."""
    searched = read(lr={**LR, "points": 4}, scale=LETTERS)
    whole = drawn(name, searched, 8)
    assert whole == drawn(name, searched, 8, broken_at=5)
    assert len({json.dumps(point) for point in whole}) == 8
    assert name == "grid" or whole != drawn(name, searched, 8, seed=2)


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_point_is_drawn_twice_until_all_are_drawn(name):
    """A sampler that has found the best of six points asks for it again and again."""
    searched = read(scale=LETTERS, epochs={"key": "update.epochs", "low": 1, "high": 3, "whole": True})
    points = drawn(name, searched, 6)
    assert len({json.dumps(point) for point in points}) == 6 == space.size(searched)


def test_a_parameter_with_one_value_has_it():
    for name in SAMPLERS:
        assert drawn(name, read(lr=LR, one={"key": "beta", "low": 0.5, "high": 0.5, "points": 1}), 4)[3]["beta"] == 0.5
