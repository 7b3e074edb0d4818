"""Reading a store: nothing is lost, cut, duplicated or put in a misleading order."""

import math
import sqlite3

import numpy as np
import pandas as pd
import pytest
from synthetic import Cell, crossing, write, write_through_mlflow

from analysis.load import export, in_order, load, value

FLAT = {"reward/mean": {0: 0.25, 1: 0.5}}


def cell(seed=0, state="complete", points=None, **knobs):
    return Cell(knobs or {"scale": "none"}, seed, FLAT if points is None else points, state=state)


def test_a_store_written_by_mlflow_reads_as_the_same_runs_written_by_hand(tmp_path):
    cells = crossing(seeds=1, steps=3) + [
        Cell(
            {"aggregate": "constant", "scale": "none"},
            7,
            {"loss/total": [(0, math.nan), (1, math.inf), (2, -math.inf), (0, 2.5), (3, math.nan)]},
            state="diverged",
            reason="loss is NaN at step 3",
        )
    ]
    by_client = load(write_through_mlflow(tmp_path / "client", "x", cells), "x")
    by_hand = load(write(tmp_path / "hand", "x", cells), "x")
    pd.testing.assert_frame_equal(by_client.rows, by_hand.rows)
    started = [pd.to_datetime(data.runs.started) for data in (by_client, by_hand)]
    assert all(started[0] > pd.Timestamp("2026-01-01")) and all(started[1] < pd.Timestamp("1970-01-02"))
    pd.testing.assert_frame_equal(by_client.runs.drop(columns="started"), by_hand.runs.drop(columns="started"))
    assert list(by_client.rows.columns) == [
        "run",
        "ablation",
        "arm",
        "aggregate",
        "scale",
        "seed",
        "base",
        "step",
        "metric",
        "value",
    ]
    odd = by_client.rows[by_client.rows.metric == "loss/total"].set_index("step").value
    assert odd[0] == 2.5 and odd[1] == math.inf and odd[2] == -math.inf and math.isnan(odd[3])


def test_the_values_are_those_that_were_logged(tmp_path):
    cells = crossing(seeds=2, steps=5)
    rows = load(write(tmp_path, "x", cells), "x").rows
    stored = {(c.arm, c.seed, metric, step): number for c in cells for metric, step, number in c.series()}
    read = {(r.arm, r.seed, r.metric, r.step): r.value for r in rows.itertuples()}
    assert read == stored


def test_a_step_logged_twice_is_one_point_and_the_later_one_wins(tmp_path):
    points = {"reward/mean": [(0, 0.1), (1, 0.2), (2, 0.3), (1, 0.9), (2, 0.8)]}
    rows = load(write(tmp_path, "x", [cell(points=points)]), "x").rows
    assert rows.step.tolist() == [0, 1, 2] and rows.value.tolist() == [0.1, 0.9, 0.8]


def test_runs_that_failed_diverged_or_still_run_are_kept_with_their_state_and_reason(tmp_path):
    cells = [cell(seed, state) for seed, state in enumerate(["complete", "failed", "diverged", "running"])]
    stored = load(write(tmp_path, "x", [cells[0], cells[1]._replace(reason="no space left"), *cells[2:]]), "x")
    assert stored.runs.state.tolist() == ["complete", "failed", "diverged", "running"]
    assert stored.runs.reason.tolist() == ["", "no space left", "", ""]
    assert stored.rows.run.nunique() == 4


def test_a_run_without_any_point_is_still_in_the_run_table(tmp_path):
    stored = load(write(tmp_path, "x", [cell(0), cell(1, "failed", points={})]), "x")
    assert len(stored.runs) == 2 and stored.rows.run.nunique() == 1
    nothing = load(write(tmp_path / "empty", "x", [cell(0, "failed", points={})]), "x")
    assert len(nothing.rows) == 0 and len(nothing.runs) == 1


def test_sixteen_comes_after_two_and_a_None_arm_stays_in_the_groupby(tmp_path):
    cells = [cell(0, beta=beta) for beta in ("16", "2", "None", "0.04")]
    stored = load(write(tmp_path, "x", cells), "x")
    assert stored.runs.beta.tolist() == ["None", 0.04, 2, 16]
    assert stored.rows.groupby("beta", observed=True).value.mean().index.tolist() == ["None", 0.04, 2, 16]
    assert stored.rows.groupby("arm", observed=True).value.count().index.tolist() == [
        "beta=None",
        "beta=0.04",
        "beta=2",
        "beta=16",
    ]


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("16", 16),
        ("1e-3", 0.001),
        ("0.04", 0.04),
        (None, "None"),
        ("none", "none"),
        ("null", "None"),
        (True, "True"),
        ("true", "True"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("[1, 2]", "[1, 2]"),
        ("-2", -2),
        ("inf", math.inf),
        ("3.", 3.0),
    ],
)
def test_a_knob_value_is_a_number_only_where_it_is_written_as_one(text, typed):
    assert value(text) == typed and type(value(text)) is type(typed)


def test_knob_values_stand_as_None_then_numbers_by_size_then_words_then_unset():
    assert in_order(["b", 16, "unset", "a", 2, "None", 0.5, 2]) == ["None", 0.5, 2, 16, "a", "b", "unset"]


@pytest.mark.parametrize("wide", [False, True])
def test_an_export_keeps_the_order_of_mixed_knob_values_and_None(tmp_path, wide):
    words = ["None", "0", "1e-06", "0.5", "2", "16", "all"]
    stored = load(write(tmp_path, "x", [cell(seed, k=knob) for seed in (0, 1) for knob in words]), "x")
    points, _, runs, _ = export(stored, tmp_path / "out", wide=wide)
    for file in (points, runs):
        knob = pd.read_parquet(file).k
        assert knob.cat.ordered and knob.cat.categories.tolist() == words
        told = pd.read_csv(file.with_suffix(".csv"), keep_default_na=False, na_values=[""])
        assert told.k.tolist() == knob.tolist()


def test_a_knob_that_only_some_runs_set_is_shown_as_unset_in_the_others(tmp_path):
    stored = load(write(tmp_path, "x", [cell(0, scale="none"), cell(0, scale="group_std", eps="1e-6")]), "x")
    assert stored.runs.set_index("scale").eps.to_dict() == {"none": "unset", "group_std": 1e-6}


def test_1001_runs_and_a_metric_of_30000_points_come_back_whole(tmp_path):
    long = Cell({"scale": "none"}, 5000, {"reward/mean": dict.fromkeys(range(30_000), 1.0)})
    stored = load(write(tmp_path, "x", [cell(seed) for seed in range(1000)] + [long]), "x")
    assert len(stored.runs) == 1001 and stored.rows.run.nunique() == 1001
    assert (stored.rows.seed == 5000).sum() == 30_000 and len(stored.rows) == 32_000
    assert stored.runs.seed.tolist() == [*range(1000), 5000]


def test_a_second_attempt_at_the_same_cell_replaces_the_first_and_the_first_is_named(tmp_path):
    first = cell(0, "failed", {"reward/mean": {0: 9.0}})._replace(hash="aa", reason="killed")
    second = cell(0)._replace(hash="aa")
    for order in ([first, second], [second, first]):
        stored = load(write(tmp_path / order[0].state, "x", order), "x")
        assert stored.runs.state.tolist() == ["complete"] and stored.rows.value.tolist() == [0.25, 0.5]
        assert stored.superseded.reason.tolist() == ["killed"]


def test_runs_of_other_ablations_and_deleted_runs_stay_out(tmp_path):
    write(tmp_path, "other", [cell(0)])
    write(tmp_path, "x", [cell(0), cell(1)])
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        store.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE name LIKE 'none-ramble-s1%'")
    stored = load(tmp_path, "x")
    assert stored.runs.seed.tolist() == [0] and set(stored.rows.ablation) == {"x"}


def test_reading_leaves_the_store_as_it_was(tmp_path):
    write(tmp_path, "x", [cell(0)])
    before = (tmp_path / "mlflow.db").read_bytes()
    load(tmp_path, "x")
    assert (tmp_path / "mlflow.db").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["mlflow.db"]


def test_a_folder_name_with_signs_of_a_url_is_found(tmp_path):
    assert len(load(write(tmp_path / "a b?c#d%20e", "x", [cell(0)]), "x").runs) == 1


def test_a_missing_store_and_an_unknown_ablation_say_what_there_is_and_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="ablate ablation=x"):
        load(tmp_path, "x")
    write(tmp_path, "x", [cell(0)])
    with pytest.raises(LookupError, match="no ablation 'y'; it has x"):
        load(tmp_path, "y")


def test_a_swept_key_named_like_a_column_is_refused(tmp_path):
    with pytest.raises(ValueError, match="step"):
        load(write(tmp_path, "x", [cell(0, step="1")]), "x")


@pytest.mark.slow
def test_two_hundred_runs_of_ten_thousand_points_are_all_read(tmp_path):
    points = {f"m/{k}": dict(zip(range(500), np.arange(500.0), strict=True)) for k in range(20)}
    stored = load(write(tmp_path, "x", [cell(seed, points=points) for seed in range(200)]), "x")
    assert len(stored.rows) == 2_000_000 and stored.rows.value.sum() == 200 * 20 * 499 * 500 / 2
