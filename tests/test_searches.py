"""The report of a search says what fresh seeds say, and shows every trial that there was."""

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from analysis import search_figures, searches

FRESH = {"best": [0.80, 0.82, 0.90], "default": [0.70, 0.75, 0.79]}


@pytest.fixture
def folder(tmp_path):
    """Twelve trials of a learning rate and an option, one failed, one pruned; three fresh seeds."""
    rng = np.random.default_rng(0)
    lr = np.round(10 ** rng.uniform(-4, -2, 12), 6)
    score = 0.9 - 0.1 * (np.log10(lr) + 3) ** 2
    trials = pd.DataFrame({"trial": range(12), "state": "complete", "score": score, "optimizer.lr": lr})
    trials["scale"] = ["none", "group_std"] * 6
    trials["seed 0"], trials["seed 1"] = score - 0.01, score + 0.01
    trials["reason"], trials["runs"], trials["seconds"] = "", "a b", 60.0
    for number, state in ((3, "failed"), (8, "pruned")):
        trials.loc[number, ["state", "reason"]] = state, "seed 0: the score is nan"
        trials.loc[number, ["score", "seed 0", "seed 1"]] = None
    best = trials.loc[trials.score.idxmax()]
    made = tmp_path / "search_x"
    made.mkdir()
    trials.to_csv(made / "trials.csv", index=False)
    rows = [(label, seed, "complete", value, "", "r") for label, v in FRESH.items() for seed, value in enumerate(v, 2)]
    columns = ["label", "seed", "state", "score", "reason", "folder"]
    pd.DataFrame(rows, columns=columns).to_csv(made / "confirm.csv", index=False)
    space = [{"key": "optimizer.lr", "low": 1e-4, "high": 1e-2, "log": True}]
    about = {
        "name": "search_x",
        "question": "Which?",
        "command": "ablate-search search=x",
        "space": [*space, {"key": "scale", "choices": ["none", "group_std"]}],
        "objective": {"metric": "accuracy/heldout", "direction": "maximize", "window": "last"},
        **{"seeds": [0, 1], "fresh_seeds": [2, 3, 4], "settings": [], "trials": 12, "workers": 2},
        **{"sampler": "TPESampler", "sampler_seed": 0, "pruner": "NopPruner"},
    }
    OmegaConf.save(OmegaConf.create(about), made / "search.yaml")
    point = {"optimizer.lr": float(best["optimizer.lr"]), "scale": best["scale"]}
    told = {"trial": int(best.trial), "point": point, "search_score": float(best.score), "command": "ablate -m x"}
    OmegaConf.save(OmegaConf.create(told), made / "best.yaml")
    return made


def test_the_score_is_that_of_the_fresh_seeds_with_its_interval_and_the_search_score_beside_it(folder):
    said = searches.report(folder.parent, folder.name)
    # mean .84, s .0529, t(2) 4.303: half width .1314
    assert "on 3 fresh seeds: 0.84, 95 % interval [0.7086, 0.9714]" in said
    score = OmegaConf.load(folder / "best.yaml").search_score
    assert f"The search had seen {score:.4g} over the 2 seeds that chose it" in said
    # paired differences .10, .07, .11: mean .0933, s .0208
    assert "on the same seeds: +0.09333, 95 % interval [+0.04162, +0.145]" in said
    page = (folder / "report.md").read_text()
    assert said.splitlines()[1] in page and "ablate -m x" in page


def test_a_failed_and_a_pruned_trial_are_counted_and_are_in_no_mean(folder):
    searches.report(folder.parent, folder.name)
    page = (folder / "report.md").read_text()
    assert "12 trials: 10 complete, 1 failed, 1 pruned" in page and "- trial 3: seed 0: the score is nan" in page
    weights = search_figures.importances(searches.load(folder))
    assert weights["optimizer.lr"] > 0.9 and sum(weights.values()) == pytest.approx(1)


def test_every_figure_is_there_and_says_how_many_trials_it_shows(folder):
    search = searches.load(folder)
    assert set(search.trials["scale"]) == {"none", "group_std"}  # `none` is an option and no missing value
    searches.report(folder.parent, folder.name)
    names = {path.stem for path in (folder / "figures").glob("*.png")}
    assert names == {"history", "importance", "slice", "parallel"}  # a surface needs two numbers
    legend = [text.get_text() for text in search_figures.history(search).axes[0].get_legend().get_texts()]
    assert {"mean of seeds, n = 10", "failed, n = 1", "pruned, n = 1", "best point on 3 fresh seeds"} <= set(legend)
    assert "n = 10 complete trials" in search_figures.slices(search, search.keys).axes[0].get_title("left")
    assert "n = 10 complete trials" in search_figures.parallel(search, search.keys).axes[0].get_title("left")


def test_a_fresh_seed_that_failed_is_no_part_of_the_mean_and_of_no_pair(folder):
    fresh = pd.read_csv(folder / "confirm.csv")
    fresh.loc[0, ["state", "score"]] = "diverged", None
    fresh.to_csv(folder / "confirm.csv", index=False)
    search = searches.load(folder)
    assert searches.fresh(search, "best").n == 2 and searches.gain(search).n == 2
    assert searches.fresh(search, "default").n == 3


@pytest.mark.parametrize("collapsed", [False, True])
def test_without_fresh_seeds_no_score_is_claimed(collapsed, folder):
    """Also where some trials are so bad that the history has a second panel for the others."""
    if collapsed:
        trials = pd.read_csv(folder / "trials.csv")
        trials.loc[[0, 1, 2], "score"] = -9.0
        trials.to_csv(folder / "trials.csv", index=False)
        assert len(search_figures.history(searches.load(folder)).axes) == 2
    fresh = pd.read_csv(folder / "confirm.csv")
    fresh[:0].to_csv(folder / "confirm.csv", index=False)
    said = searches.report(folder.parent, folder.name)
    assert "It was not trained on fresh seeds here" in said and "no estimate" in said


def test_the_same_files_give_the_same_report_byte_for_byte(folder):
    def files() -> dict:
        searches.report(folder.parent, folder.name)
        written = [folder / "report.md", *sorted((folder / "figures").iterdir())]
        return {path.name: path.read_bytes() for path in written}

    assert files() == files()
