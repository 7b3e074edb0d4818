"""A trial's runs: the same runs as those of a crossing, each in its own folder, found again by the hash of its config.

Every run of a search is one that `ablate` with the same overrides would train, and a search that was interrupted in
the middle of a trial finds the seeds that are complete.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from ablations import build, crossing, journal
from ablations.search import space
from ablations.search.loop import Run, Watch
from ablations.search.plan import Plan

ELSEWHERE = 0.5  # seconds between looks at a run that another process holds


class Cells:
    """Evaluates points of a plan by training. Needs an initialised Hydra."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def __call__(self, number: int | None, point: Mapping[str, Any], seed: int, watch: Watch | None) -> Run:
        """Train a point with one seed, or find that it was trained."""
        overrides, cfg = self.overrides(point, seed), self.config(point, seed)
        folder = crossing.cell_of(build.plain(cfg), overrides, self.plan.results).folder
        while (state := self.plan.runner(cfg, overrides, watch=watch)) == "running":
            time.sleep(ELSEWHERE)
        reason = journal.status(folder)["reason"]
        return Run(state, reason, journal.read_rows(folder / "journal.jsonl"), folder.name)

    def overrides(self, point: Mapping[str, Any], seed: int) -> list[str]:
        """The command line of one run."""
        return [*self.plan.settings, *space.overrides(point), f"name={self.plan.name}", f"seed={seed}"]

    def config(self, point: Mapping[str, Any], seed: int) -> DictConfig:
        """Its config. Composing costs a quarter of a second, so it is done once per choice of options; numbers are set
        in a copy."""
        chosen = {key: value for key, value in point.items() if (build.CONF / key).is_dir()}
        files = (*self.plan.settings, *space.overrides(chosen), f"name={self.plan.name}")
        if files not in self._composed:
            self._composed[files] = compose("config", list(files))
        cfg = self._composed[files].copy()
        for key, value in point.items():
            if key not in chosen:
                OmegaConf.update(cfg, key, value)
        cfg.seed = seed
        cfg.machine.progress = False  # the search has a line of its own
        return cfg

    def folder(self, point: Mapping[str, Any], seed: int) -> Path:
        """Where a run of a point lies."""
        resolved = build.plain(self.config(point, seed))
        return crossing.cell_of(resolved, self.overrides(point, seed), self.plan.results).folder
