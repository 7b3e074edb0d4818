"""The mirror of a run's journal in MLflow.

The journal (ablations/journal.py) is the truth: a step is on disk before anything else hears of it. MLflow gets a copy.
If the store cannot be used, the training goes on and says so once, and the copy catches up: at the next flush, at the
end of the run, or later from the run's folder alone (`sync`, `catch_up`).

Where the copy differs from the journal, because MLflow's store is narrower:
- Names: MLflow takes letters, digits and `_ - . space : /`, so `pass@1` becomes `pass_at_1` (`spelling.name`).
- Infinity: the store would turn it into 1.797e308, which looks measured. It is left out, and the tag `infinite` says
  which metric was infinite at which step. NaN is kept; MLflow has a flag for it.
- Long parameters: MLflow would cut them at 6,000 characters. Their beginning and a checksum are stored instead; the
  run's artifact config.yaml has the whole text.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ablations.client import client_of, ensure_store, parent_run, unusable
from ablations.journal import TIMING, Journal, below, git_commit, git_commit_date, merged_rows, status, write_examples
from ablations.spelling import canonical, name
from ablations.store import Point, append, sqlite_file, store_uri

__all__ = ["Journal", "git_commit", "git_commit_date", "write_examples"]    # the rest of what a run writes, at hand

POINTS = 1000                           # metrics per request, MLflow's limit
EVERY = 10.0                            # seconds between requests of a run
PATIENCE = (30.0, 600.0)                # seconds until a store that was away is asked again: at first, at most
TAG = 8000                              # characters, MLflow's limit
RECORD = "mlflow.json"                  # in a run's folder: its Identity


class ParameterChanged(ValueError):
    """A run would go on under its own hash with another value of one of its parameters."""


def prepare(results: Path | str, tracking: str, experiment: str) -> None:
    """Make store, experiment and parent run before many processes start; say so and go on if the store is away."""
    if (uri := store_uri(results, tracking)) is None:
        return
    try:
        ensure_store(uri, experiment, results)
        parent_run(uri, experiment)
    except unusable() as error:
        _say(f"MLflow at {uri} cannot be used: {_first_line(error)}. The runs start, and their journals keep what it "
             "misses.")


class Identity(NamedTuple):
    """What the store says of a run before its first step. Kept in its folder, so that the folder is enough to sync."""

    experiment: str
    hash: str
    params: dict[str, str]      # the swept keys
    tags: dict[str, str]        # arm, seed, base, commit, commit_date


class Silent:
    """The mirror of a run that no store is told of (machine.tracking=none)."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Nothing to do."""

    def close(self, state: str, reason: str = "") -> bool:
        """Nothing was to be stored, so nothing is missing."""
        return True


def mirror(results: Path | str, tracking: str, experiment: str, cell: Any, base: str = "") -> "Mirror | Silent":
    """The mirror of a cell's run: cell has hash, arm, seed, folder and choices (the swept keys, key -> text).

    Raises ParameterChanged if the store has this run with another value of a parameter.
    """
    folder = Path(cell.folder)
    tags = {"arm": cell.arm, "seed": str(cell.seed), "base": base}
    if (environment := folder / "environment.json").is_file():
        known = json.loads(environment.read_text())
        tags |= {key: known.get(key, "") for key in ("commit", "commit_date")}
    identity = Identity(experiment, cell.hash, dict(cell.choices), {key: text for key, text in tags.items() if text})
    _keep(identity, folder)
    uri = store_uri(results, tracking)
    return Silent() if uri is None else Mirror(uri, identity, folder, results)


def _keep(identity: Identity, folder: Path) -> None:
    (folder / RECORD).write_text(json.dumps(identity._asdict(), indent=1, sort_keys=True) + "\n")


def sync(folder: Path | str, uri: str, results: Path | str | None = None) -> bool:
    """Copy what the store lacks of a run from its folder -> whether the store has all of it now.

    For a store that was away, was lost, or is another one. Raises FileNotFoundError if the folder is no run's.
    """
    folder = Path(folder)
    try:
        identity, rows = Identity(**json.loads((folder / RECORD).read_text())), merged_rows(folder)
    except (ValueError, TypeError) as error:  # one damaged file must not keep the other runs from the store
        _say(f"{folder} cannot be copied to MLflow: {_first_line(error)}")
        return False
    try:
        copy = Mirror(uri, identity, folder, results or folder.absolute().parents[2], every=math.inf)
    except ParameterChanged as error:
        _say(str(error))
        return False
    for row in rows:
        copy.write(row)
    return copy.close(**status(folder))


def catch_up(results: Path | str, tracking: str, experiment: str) -> list[Path]:
    """Sync every ended run of an ablation whose end the store does not know -> their folders. Fast if there is none."""
    uri = store_uri(results, tracking)
    ended = {}
    for record in sorted(Path(results).glob(f"{experiment}/runs/*/{RECORD}")):
        if (state := status(record.parent)["state"]) != "running":
            try:
                hashed = json.loads(record.read_text())["hash"]
            except (ValueError, TypeError, KeyError):
                hashed = ""  # no store has it, and `sync` says why
            ended[hashed, state] = record.parent
    if uri is None or not ended:
        return []
    try:
        inside, page, known = ensure_store(uri, experiment, results), None, set()
        while page != "":
            found = client_of(uri).search_runs([inside], "tags.kind = 'run'", max_results=1000, page_token=page)
            known |= {(run.data.tags.get("hash"), run.data.tags.get("state")) for run in found}
            page = found.token or ""
    except unusable() as error:
        _say(f"MLflow at {uri} cannot be used: {_first_line(error)}. The journals under {results} keep what it misses.")
        return []
    missing = [folder for key, folder in ended.items() if key not in known]
    return [folder for folder in missing if sync(folder, uri, results)]


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _first_line(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return text if len(text) <= 200 or isinstance(error, ParameterChanged) else f"{text[:200]}..."


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Mirror:
    """One run's copy in MLflow. `write` buffers; only ParameterChanged leaves this class, and only before the training.

    The run is found again by its hash, so a second attempt continues it: points that are there already are not logged
    twice. If the store's points contradict the journal (the code has changed since), the old run goes to MLflow's bin
    and a new one is written whole. Every request names its run, so neither MLFLOW_RUN_ID nor an active run matters.
    """

    def __init__(
        self, uri: str, identity: Identity, folder: Path | str, results: Path | str, every: float = EVERY
    ) -> None:
        self.uri, self.identity, self.every = uri, identity, every
        self.folder, self.results = Path(folder), Path(results)
        self.away = ""                                    # why the store could not be used the last time
        self._pending: list[Point] = []
        self._steps: set[int] = set()
        self._infinite: list[str] = []
        self._run: str | None = None
        self._stored: dict[tuple[str, int], float] | None = None
        self._next, self._wait = time.monotonic() + every, PATIENCE[0]
        _keep(identity, self.folder)
        self._try(self._attach)

    def write(self, row: Mapping[str, Any]) -> None:
        """Take over one step; after `every` seconds all that waits goes to the store."""
        self._take(row)
        if time.monotonic() >= self._next:
            self._try(self._flush, ParameterChanged)

    def close(self, state: str, reason: str = "") -> bool:
        """Send what is left and how the run ended ("running": it has not) -> whether the store has all of it."""
        def end() -> None:
            self._flush()
            if {step for _, step in self._stored} - self._steps:      # an earlier attempt went further than this one
                self._replace()
            infinite = {"infinite": "; ".join(self._infinite)} if self._infinite else {}
            self._describe({}, {"state": state, "reason": reason, **infinite})
            if state != "running":
                client_of(self.uri).set_terminated(self._run, "FINISHED" if state == "complete" else "FAILED")
        return self._try(end, ParameterChanged)

    def _take(self, row: Mapping[str, Any]) -> None:
        now, step = int(time.time() * 1000), int(row["step"])
        self._steps.add(step)
        for key, value in row.items():
            if math.isinf(value):
                self._infinite.append(f"{key} is {value} at step {step}")
            elif key != "step":
                self._pending.append(Point(name(key), step, float(value), now))

    def _try(self, action: Callable[[], None], *also: type[Exception]) -> bool:
        try:
            action()
        except (*unusable(), *also) as error:
            if not self.away:
                _say(f"MLflow at {self.uri} cannot be used: {_first_line(error)}. Training goes on, and the journal "
                     f"in {self.folder} keeps what the store misses.")
            self.away = _first_line(error)      # what was stored all the same and is sent again, MLflow keeps once
            self._next, self._wait = time.monotonic() + self._wait, min(2 * self._wait, PATIENCE[1])
            return False
        if self.away:
            _say(f"MLflow at {self.uri} can be used again and has caught up.")
        self.away, self._next, self._wait = "", time.monotonic() + self.every, PATIENCE[0]
        return True

    def _attach(self) -> None:
        """Find the run by its hash, or make it, and give it parameters, tags and config.yaml."""
        client, who = client_of(self.uri), self.identity
        inside = ensure_store(self.uri, who.experiment, self.results)
        parent = parent_run(self.uri, who.experiment)
        same = f"tags.kind = 'run' and tags.hash = '{who.hash}'"
        found = client.search_runs([inside], same, max_results=1, order_by=["attributes.start_time DESC"])
        stored = found[0].data.params if found else {}
        given = {name(key): canonical(value) for key, value in who.params.items()} | {"hash": who.hash}
        for key in stored.keys() & given.keys():
            if stored[key] != given[key]:
                raise ParameterChanged(
                    f"{key} is {given[key]}, but {self.folder.name} was started with {stored[key]} (in {self.uri}). A "
                    f"run keeps its parameters: set {key}={stored[key]}, or give the new value a run of its own."
                )
        if found:
            run = found[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            run = client.create_run(inside, run_name=self.folder.name).info.run_id
        self._run, self._stored = run, None if found else {}
        place = {"mlflow.parentRunId": parent, "ablation": who.experiment, "folder": below(self.folder, self.results)}
        tags = {**who.tags, **place, "kind": "run", "hash": who.hash, "state": "running", "reason": ""}
        self._describe({key: given[key] for key in given.keys() - stored.keys()}, tags)
        if (config := self.folder / "config.yaml").is_file():
            client.log_artifact(run, str(config))

    def _describe(self, params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param, RunTag

        texts = {key: str(value) for key, value in tags.items()}
        cut = [RunTag(key, text if len(text) <= TAG else f"{text[:TAG - 3]}...") for key, text in texts.items()]
        client_of(self.uri).log_batch(self._run, params=[Param(*param) for param in params.items()], tags=cut)

    def _flush(self) -> None:
        if self._run is None:
            self._attach()
        if self._stored is None:
            self._stored = self._history()
        missing = [p for p in self._pending if (p.name, p.step) not in self._stored]
        again = [p for p in self._pending if (p.name, p.step) in self._stored and not p.name.startswith(TIMING)]
        if all(_same(self._stored[p.name, p.step], p.value) for p in again):
            self._send(missing)
        else:
            self._replace()

    def _replace(self) -> None:
        """Begin the store's run again from the journal; what was there goes to MLflow's bin."""
        self._pending, self._infinite = [], []
        for row in merged_rows(self.folder):
            self._take(row)
        client_of(self.uri).delete_run(self._run)
        self._run = None
        self._attach()
        self._send(self._pending)

    def _send(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        if (file := sqlite_file(self.uri)) is None or not append(file, self._run, points):
            for start in range(0, len(points), POINTS):
                batch = [Metric(p.name, p.value, p.time, p.step) for p in points[start:start + POINTS]]
                client_of(self.uri).log_batch(self._run, metrics=batch)
        self._pending = []

    def _history(self) -> dict[tuple[str, int], float]:
        """(name, step) -> the value that was logged last."""
        client = client_of(self.uri)
        names = client.get_run(self._run).data.metrics
        points = [point for key in names for point in client.get_metric_history(self._run, key)]
        return {(point.key, point.step): point.value for point in sorted(points, key=lambda point: point.timestamp)}
