"""The mirror: what MLflow holds after runs that start together, resume, change, fail, or find no store."""

import ast
import contextlib
import json
import math
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablations import spelling, tracking
from ablations.client import client_of
from ablations.journal import Journal
from ablations.store import Point, append

PACKAGE = Path(tracking.__file__).parent


def cell(results, number=0, **choices):
    """A cell as a crossing makes them: hash, arm, seed, folder, choices."""
    folder = results / "q" / "runs" / f"cell-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    choices = {"aggregate": "constant", "seed": number, **choices}
    return SimpleNamespace(hash=f"{number:016x}", arm="aggregate=constant", seed=number, folder=folder, choices=choices)


def attempt(results, what, rows, state="complete", reason="", tracking_=None):
    """One run from its first step to its end, journal first -> its mirror and whether the store has all."""
    (what.folder / "status.json").write_text(json.dumps({"state": state, "reason": reason}))
    journal = Journal(what.folder)
    mirror = tracking.mirror(results, tracking_ or "sqlite", "q", what)
    for row in rows:
        journal.write(row)
        mirror.write(row)
    return mirror, mirror.close(state, reason)


def ask(results, question, *given):
    with contextlib.closing(sqlite3.connect(results / "mlflow.db")) as connection:
        return connection.execute(question, given).fetchall()


def active(results):
    """run name -> (status, tags, params) of the runs that are not in MLflow's bin."""
    found = {}
    for uuid, name, status in ask(results, "SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active'"):
        tags, params = (dict(ask(results, f"SELECT key, value FROM {table} WHERE run_uuid = ?", uuid))
                        for table in ("tags", "params"))
        assert name not in found
        found[name] = (status, tags, params)
    return found


def points(results):
    """(run name, metric, step, value or None for NaN) of the active runs, every point, duplicates included."""
    value = "CASE WHEN m.is_nan THEN NULL ELSE m.value END"
    joined = "metrics m JOIN runs r USING (run_uuid) WHERE r.lifecycle_stage = 'active'"
    return sorted(ask(results, f"SELECT r.name, m.key, m.step, {value} FROM {joined}"), key=str)


ROWS = [{"step": step, "reward/mean": step / 7, "seconds/sample": 0.5} for step in range(4)]
ALL = sorted([("cell-0", key, row["step"], row[key]) for row in ROWS for key in row if key != "step"], key=str)


def test_a_long_parameter_is_marked_as_shortened_and_the_whole_config_is_an_artifact(store, results):
    """B09: MLflow cuts at 6,000 characters and says nothing that a caller can see."""
    what = cell(results, template="x" * 7000)
    config = "".join(f"key_{i}: {i}\n" for i in range(250)) + f"template: {'x' * 7000}\n"
    (what.folder / "config.yaml").write_text(config)
    assert attempt(results, what, ROWS)[1]
    _, _, params = active(results)["cell-0"]
    assert sorted(params) == ["aggregate", "hash", "seed", "template"]          # the swept keys, not 250 leaves
    assert len(params["template"]) < 300 and "7000 characters" in params["template"]
    other = spelling.canonical("x" * 6999 + "y")
    assert other != params["template"]          # the checksum tells apart what begins alike
    (artifact,) = (results / "mlartifacts").rglob("config.yaml")
    assert artifact.read_text() == config


def test_names_that_mlflow_refuses_are_mapped_to_names_that_it_takes(store, results):
    """B09: @ % [ ] = are refused, so pass@1 would fail the whole batch."""
    mapped = {"pass@1": "pass_at_1", "top[5]": "top.5", "a=1": "a-1", "95%": "95_percent", "a//b/": "a/b",
              "reward/part/é": "reward/part/_ue9", "accuracy/heldout/level_1": "accuracy/heldout/level_1"}
    assert {given: spelling.name(given) for given in mapped} == mapped
    long = {spelling.name("m" * 300 + end) for end in "ab"}
    assert len(long) == 2 and all(len(name) <= 250 for name in long)
    row = {"step": 0, **dict.fromkeys([*mapped, "m" * 300], 1.0)}
    assert attempt(results, cell(results, **{"top[5]": 1}), [row])[1]
    assert {key for _, key, _, _ in points(results)} == {*mapped.values(), spelling.name("m" * 300)}


def test_a_resumed_run_may_spell_a_parameter_differently(store, results):
    """B11: 1 then 1.0 raises in MLflow, and so does "1e-3" then 0.001."""
    assert attempt(results, cell(results, lr="1e-3", n=1, flag=True), ROWS[:2], "failed")[1]
    assert attempt(results, cell(results, lr=0.001, n="1.0", flag="true"), ROWS)[1]
    _, _, params = active(results)["cell-0"]
    assert (params["lr"], params["n"], params["flag"]) == ("0.001", "1", "true")
    assert points(results) == ALL


def test_a_parameter_that_really_changed_is_refused_with_both_values_before_the_first_step(store, results):
    """B11: 0.001 -> 0.002."""
    attempt(results, cell(results, lr=0.001), ROWS)
    with pytest.raises(tracking.ParameterChanged, match=r"lr is 0\.002, but cell-0 was started with 0\.001"):
        tracking.mirror(results, "sqlite", "q", cell(results, lr=0.002))
    assert active(results)["cell-0"][0] == "FINISHED"


@pytest.mark.parametrize(("spellings", "text"), [
    ([1, 1.0, "1", "1.0", "+1", " 1 "], "1"), ([1e-3, "1e-3", "0.001", "1E-03", ".001"], "0.001"),
    ([True, "True", "true"], "true"), ([None, "null"], "null"), (["none"], "none"), ([-0.5, "-0.5"], "-0.5"),
    ([10**20, "100000000000000000000"], "100000000000000000000"), ([1e-6, "1e-6"], "1e-06"), (["1e999"], "1e999"),
    (["[1,2]", "[1, 2]"], "[1,2]"), (["1_0"], "1_0"),
])
def test_every_spelling_of_a_value_is_one_text(spellings, text):
    assert {spelling.canonical(value) for value in spellings} == {text}


def test_a_hash_of_digits_stays_the_text_that_it_is(store, results):
    what = cell(results)
    what.hash = "0000000012345e67"
    attempt(results, what, ROWS)
    assert active(results)["cell-0"][2]["hash"] == "0000000012345e67"


def test_cells_hang_under_one_parent_whatever_the_environment_names_and_one_of_them_fails(store, results, monkeypatch):
    """B12: 3 jobs, the second raises, the environment and this process name other runs."""
    import mlflow

    mlflow.set_tracking_uri(store)
    other = mlflow.MlflowClient(store).create_run("0", run_name="other").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", other)
    with mlflow.start_run():
        attempt(results, cell(results, 0), ROWS)
        attempt(results, cell(results, 1), ROWS[:2], "failed", "RuntimeError: boom")
        attempt(results, cell(results, 2), ROWS, "diverged", "loss is nan at step 3")
    mlflow.set_tracking_uri(None)
    runs = active(results)
    assert sorted(runs) == ["cell-0", "cell-1", "cell-2", "other", "q"]
    (parent,) = (uuid for (uuid,) in ask(results, "SELECT run_uuid FROM runs WHERE name = 'q'"))
    assert {runs[f"cell-{n}"][1]["mlflow.parentRunId"] for n in range(3)} == {parent}
    assert [runs[f"cell-{n}"][0] for n in range(3)] == ["FINISHED", "FAILED", "FAILED"]
    assert [runs[f"cell-{n}"][1]["state"] for n in range(3)] == ["complete", "failed", "diverged"]
    assert runs["cell-1"][1]["reason"] == "RuntimeError: boom"
    assert [sum(name == run for name, *_ in points(results)) for run in sorted(runs)] == [8, 4, 8, 0, 0]
    assert runs["q"][:2] == ("FINISHED", runs["q"][1] | {"kind": "ablation", "ablation": "q"})


def test_the_tags_say_what_a_run_is_and_where_it_lies_below_the_results(store, results):
    what = cell(results)
    (what.folder / "environment.json").write_text(json.dumps({"commit": "c0ffee", "commit_date": "2026-01-01"}))
    attempt(results, what, ROWS)
    _, tags, params = active(results)["cell-0"]
    expected = {"kind": "run", "ablation": "q", "hash": "0" * 16, "arm": "aggregate=constant", "seed": "0",
                "state": "complete", "reason": "", "folder": "q/runs/cell-0", "commit": "c0ffee",
                "commit_date": "2026-01-01"}
    assert {key: tags.get(key) for key in expected} == expected and "base" not in tags
    assert params == {"aggregate": "constant", "seed": "0", "hash": "0" * 16}


def test_one_store_at_an_absolute_path_from_whichever_folder_a_run_starts(results, tmp_path, monkeypatch):
    """B14: two folders, and a job that changes folder after it has started."""
    uris = set()
    for start in ("a", "b"):
        (tmp_path / start).mkdir()
        monkeypatch.chdir(tmp_path / start)
        uris.add(tracking.store_uri(results))
    assert uris == {f"sqlite:///{results}/mlflow.db"} and results.is_absolute()
    monkeypatch.chdir(tmp_path)
    relative = tracking.store_uri("results")
    monkeypatch.chdir(tmp_path / "a")
    assert {relative} == uris


def test_a_run_writes_nothing_into_the_folder_it_was_started_from(store, results, tmp_path, monkeypatch):
    """B14."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    attempt(results, cell(results), ROWS)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "mlruns", "/tmp/mlruns", "sqlite:///mlflow.db"])
def test_stores_that_mlflow_refuses_or_that_move_with_the_folder_are_refused(uri, results):
    """B14: what MLflow itself says of file:// comes only when the first run has started."""
    with pytest.raises(ValueError, match=f"machine.tracking is {uri}.*sqlite"):
        tracking.store_uri(results, uri)
    assert tracking.store_uri(results, "http://host:5000") == "http://host:5000"


def test_infinity_is_left_out_and_named_and_nan_stays_nan(store, results):
    rows = [{"step": 0, "a": 1.0}, {"step": 1, "a": math.inf}, {"step": 2, "a": -math.inf}, {"step": 3, "a": math.nan}]
    attempt(results, cell(results), rows, "diverged", "a is infinite")
    assert points(results) == [("cell-0", "a", 0, 1.0), ("cell-0", "a", 3, None)]
    assert active(results)["cell-0"][1]["infinite"] == "a is inf at step 1; a is -inf at step 2"


def test_the_same_run_again_adds_no_point_and_no_run(store, results):
    for _ in range(2):
        assert attempt(results, cell(results), [*ROWS, {"step": 4, "b": math.nan}])[1]
        assert points(results) == sorted([*ALL, ("cell-0", "b", 4, None)], key=str)
    assert sorted(active(results)) == ["cell-0", "q"]


@pytest.mark.parametrize("earlier", [
    [{"step": 0, "reward/mean": 0.5}], [*ROWS, {"step": 4, "reward/mean": 9.0}]], ids=["other numbers", "went further"])
def test_points_that_the_journal_contradicts_go_to_the_bin_with_their_run(earlier, store, results):
    assert attempt(results, cell(results), earlier, "failed")[1]
    assert attempt(results, cell(results), ROWS)[1]
    assert points(results) == ALL
    assert active(results)["cell-0"][0] == "FINISHED"
    assert ask(results, "SELECT count(*) FROM runs WHERE name = 'cell-0'") == [(2,)]


def test_points_are_stored_as_mlflow_itself_stores_them(store, results):
    """The same points by MLflow's log_batch and by this project's shorter way: no row of either table differs."""
    from mlflow.entities import Metric

    path = results / "mlflow.db"
    client = client_of(store)
    theirs, ours = (client.create_run("0", run_name=name).info.run_id for name in ("theirs", "ours"))
    batches = [
        [("a", 0, 0.5, 10), ("a", 1, 0.25, 11), ("b", 0, math.nan, 10), ("c", 3, -1e300, 12), ("c", 2, 7.0, 13)],
        [("a", 1, 0.25, 11), ("a", 0, 9.0, 14), ("b", 0, 2.0, 10), ("b", 1, math.nan, 15), ("c", 3, -2e300, 12)],
    ]
    for batch in batches:
        client.log_batch(theirs, metrics=[Metric(name, value, time, step) for name, step, value, time in batch])
        assert append(path, ours, [Point(*point) for point in batch])
    for table in ("metrics", "latest_metrics"):
        columns = "key, value, timestamp, step, is_nan"
        query = f"SELECT {columns} FROM {table} WHERE run_uuid = ? ORDER BY {columns}"
        assert ask(results, query, ours) == ask(results, query, theirs) != []
    assert sorted(point.value for point in client.get_metric_history(ours, "c")) == [-2e300, -1e300, 7.0]


def test_in_a_store_with_other_tables_mlflow_itself_stores_the_points(store, results):
    with sqlite3.connect(results / "mlflow.db") as database:
        database.execute("ALTER TABLE metrics ADD COLUMN later TEXT")
    assert not append(results / "mlflow.db", "x", [Point("a", 0, 1.0, 0)])
    assert attempt(results, cell(results), ROWS)[1] and points(results) == ALL


class Flaky:
    """A client whose store is away while `away`, or carries requests out and loses the answers while `after`."""

    def __init__(self, client):
        self.client, self.away, self.after = client, False, False

    def __getattr__(self, name):
        from mlflow.exceptions import MlflowException

        def call(*arguments, **named):
            if self.away:
                raise MlflowException("API request failed: connection refused")
            answer = getattr(self.client, name)(*arguments, **named)
            if self.after and name == "log_batch":
                raise MlflowException("API request failed: read timed out")
            return answer
        return call


@pytest.fixture
def flaky(store, monkeypatch):
    client = Flaky(client_of(store))
    for asks in ("ablations.client", "ablations.tracking"):
        monkeypatch.setattr(f"{asks}.client_of", lambda uri: client)
    monkeypatch.setattr(tracking, "append", lambda *_: False)       # as for a server: every point goes by the client
    monkeypatch.setattr(tracking, "PATIENCE", (0.0, 0.0))
    return client


@pytest.mark.parametrize("kind", ["away", "after"])
@pytest.mark.parametrize("first", [0, 2])
def test_training_goes_on_while_the_store_is_away_and_the_copy_catches_up(kind, first, flaky, results, capsys):
    setattr(flaky, kind, first == 0)
    what = cell(results)
    journal, mirror = Journal(what.folder), tracking.mirror(results, "sqlite", "q", what)
    mirror._next = mirror.every = 0.0                   # a request at every step
    for row in ROWS:
        setattr(flaky, kind, first <= row["step"] < 3)
        journal.write(row)
        mirror.write(row)
    assert mirror.close("complete") and mirror.away == ""
    assert points(results) == ALL
    said = capsys.readouterr().err
    assert said.count("cannot be used: API request failed") == 1 and str(what.folder) in said
    assert said.count("has caught up") == 1


def test_a_run_that_never_reached_the_store_is_copied_from_its_folder(flaky, results):
    flaky.away = True
    (results / "q/runs/junk").mkdir(parents=True)
    gone, there = cell(results, 0), cell(results, 1)
    mirror, done = attempt(results, gone, [*ROWS[:3], {**ROWS[3], "b": math.inf}])
    assert not done and "refused" in mirror.away and active(results) == {}
    assert tracking.catch_up(results, "sqlite", "q") == []            # says so and leaves the crossing alone
    flaky.away = False
    assert attempt(results, there, ROWS)[1]
    assert tracking.catch_up(results, "sqlite", "q") == [gone.folder]
    assert tracking.catch_up(results, "sqlite", "q") == []
    status, tags, params = active(results)["cell-0"]
    assert (status, tags["state"], tags["arm"], params["seed"]) == ("FINISHED", "complete", "aggregate=constant", "0")
    assert tags["infinite"] == "b is inf at step 3"
    assert [p for p in points(results) if p[0] == "cell-0"] == ALL


def test_a_change_of_parameter_that_is_found_late_does_not_stop_the_training(flaky, results, capsys):
    attempt(results, cell(results, lr=1), ROWS)
    flaky.away = True
    what = cell(results, lr=2)
    mirror = tracking.mirror(results, "sqlite", "q", what)
    flaky.away = False
    mirror.write(ROWS[0])
    assert not mirror.close("complete") and "lr is 2, but cell-0 was started with 1" in mirror.away


def test_a_changed_parameter_stops_no_copying_of_the_other_runs(store, results, capsys):
    attempt(results, cell(results, 0, lr=1), ROWS)
    gone, there = cell(results, 0, lr=2), cell(results, 1, lr=2)
    for what in (gone, there):
        attempt(results, what, ROWS, tracking_="none")
    with sqlite3.connect(results / "mlflow.db") as database:
        database.execute("UPDATE tags SET value = 'running' WHERE key = 'state'")
    assert tracking.catch_up(results, "sqlite", "q") == [there.folder]
    assert "lr is 2, but cell-0 was started with 1" in capsys.readouterr().err


def test_a_killed_run_is_still_running_in_its_copy(store, results):
    what = cell(results)
    attempt(results, what, ROWS, "running")
    assert tracking.sync(what.folder, store)
    assert active(results)["cell-0"][0] == "RUNNING" and points(results) == ALL


def test_an_experiment_in_mlflows_bin_is_taken_out_by_the_next_run(store, results):
    attempt(results, cell(results), ROWS)
    client = client_of(store)
    client.delete_experiment(client.get_experiment_by_name("q").experiment_id)
    assert attempt(results, cell(results, 1), ROWS)[1]
    assert sorted(active(results)) == ["cell-0", "cell-1", "q"]


def test_without_a_store_the_folder_still_has_what_a_later_sync_needs(store, results):
    what = cell(results)
    assert attempt(results, what, ROWS, tracking_="none")[1] and active(results) == {}
    assert tracking.sync(what.folder, store) and points(results) == ALL


def test_mlflow_is_imported_by_the_mirror_alone_and_only_when_a_store_is_used():
    importers = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            plain = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(module.split(".")[0] == "mlflow" for module in plain + named):
                importers.add(path.name)
                assert node not in tree.body
    assert importers == {"client.py", "tracking.py"}
