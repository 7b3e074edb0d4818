"""One run, or a whole crossing: compose, build, train, write. The command is `ablate`."""

import functools
import json
import os
import platform
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import hydra
import torch
from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from ablations import build, crossing, evaluate, grpo, identity, rollout, tracking
from ablations.contradictions import Refused, refuse, refuse_unwritable
from ablations.passes import Passes
from ablations.policy.language import LanguagePolicy
from ablations.search.stop import Stopped
from ablations.state import State, frozen, seed_of

PACKAGES = ("torch", "transformers", "hydra-core", "omegaconf", "mlflow", "numpy", "pandas", "ablations")
EXAMPLES_PER_STEP = 32
Watch = Callable[[Mapping[str, Any]], None] | None

build.register_resolvers()


def cli() -> None:
    """Entry point of `ablate`: a single run, or a crossing with its table and report at the end."""
    try:
        _hydra_main()
    finally:  # also when the launcher gives up: the table says what is there
        code = crossing.finish(crossing.STARTED[0]) if crossing.STARTED else 0
    sys.exit(code or int(any(state != "complete" for state in OUTCOMES)))


OUTCOMES: list[str] = []  # of the runs of this process; Hydra does not hand back what its main returns


@hydra.main(version_base=None, config_path=str(build.CONF), config_name="config")
def _hydra_main(cfg: DictConfig) -> None:
    try:
        OUTCOMES.append(run(cfg, list(HydraConfig.get().overrides.task)))
    except (Refused, tracking.ParameterChanged) as error:
        sys.exit(f"ablate: {error}")


def run(cfg: DictConfig, overrides: list[str], watch: Watch = None) -> str:
    """Train what `cfg` says, unless it is done already -> state: complete, failed, diverged, pruned, or running (in
    another process). watch(row), if given, sees every row once it is on disk, and may raise Stopped: pruned.

    The outcome is written to the run's folder before this returns; only Refused, a config that cannot run, and
    KeyboardInterrupt leave.
    """
    torch.set_num_threads(cfg.machine.threads)
    results = Path(identity.results_folder())
    config = build.plain(cfg)
    refuse(config)
    knobs = build.knobs(cfg)
    refuse_unwritable(str(results))
    cell = crossing.cell_of(config, overrides, results)
    cell.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(cell.folder / ".lock", timeout=0):
            if crossing.state(cell.folder)["state"] == "complete":
                print(f"complete already: {cell.folder}", flush=True)
                return "complete"
            return _recorded(cfg, config, knobs, cell, overrides, results, watch)
    except Timeout:
        print(f"running in another process: {cell.folder}", flush=True)
        return "running"


def _recorded(cfg, config, knobs, cell, overrides, results, watch) -> str:
    describe(cell.folder, config, overrides)
    _status(cell.folder, "running")
    journal = tracking.Journal(cell.folder)  # an unfinished run starts again
    mirror = tracking.mirror(results, config["machine"]["tracking"], config["name"], cell, config["base"]["name"])
    try:
        for row in trained(cfg, knobs, cell.folder, results):
            journal.write(row)  # first: it survives whatever happens to the mirror
            mirror.write(row)
            if watch is not None:
                watch(row)
        state, reason = "complete", ""
    except Stopped as stop:
        state, reason = "pruned", str(stop)
    except grpo.Diverged as error:
        torch.save(
            {k: v for k, v in error.batch.items() if isinstance(v, torch.Tensor)}, cell.folder / "diverged_batch.pt"
        )
        state, reason = "diverged", f"{error}; its batch is saved in diverged_batch.pt"
    except Refused:
        raise
    except Exception as error:  # whatever it is, it must not stop the other runs; traceback and state are kept
        (cell.folder / "traceback.txt").write_text(traceback.format_exc())
        state, reason = "failed", " ".join(f"{type(error).__name__}: {error}".split())
    _status(cell.folder, state, reason)
    mirror.close(state, reason)
    print(f"{state}: {cell.folder}" + (f" ({reason})" if reason else ""), flush=True)
    return state


def trained(cfg: DictConfig, knobs: grpo.Knobs, folder: Path, results: Path):
    """Build the parts, train, and yield every row of metrics; the trained policy is saved at the end."""
    alone = cfg.machine.progress and not crossing.in_crossing()  # a crossing shows one bar over all of its cells
    task = instantiate(cfg.task)
    base = instantiate(cfg.base)(model=instantiate(cfg.model), task=task, results=results, progress=alone)
    policy = LanguagePolicy.load(base).eval()
    optimizer = instantiate(cfg.optimizer, _convert_="all")(policy.parameters())
    state = State(policy, frozen(policy), optimizer, instantiate(cfg.schedule)(optimizer), knobs, cfg.seed)
    shelf: list[dict[str, Any]] = []
    sampling = {key: cfg.rollout[key] for key in ("prompts", "group_size", "max_new_tokens", "temperature")}

    def collect(state: State):
        sampled = rollout.collect(state, task, **sampling)
        if state.step == 1 or state.step == cfg.steps or (cfg.evaluate.every and state.step % cfg.evaluate.every == 0):
            shelf.extend({"step": state.step, **example} for example in sampled.examples[:EXAMPLES_PER_STEP])
        return sampled

    seed = seed_of("evaluation", cfg.seed)
    rows = grpo.train(
        state,
        collect,
        functools.partial(
            evaluate.heldout,
            task=task,
            problems=cfg.evaluate.problems,
            batch=cfg.evaluate.batch,
            max_new_tokens=cfg.rollout.max_new_tokens,
            temperature=cfg.rollout.temperature,
            seed=seed,
            asked=evaluate.questions(task, cfg.evaluate.problems, seed),
        ),
        steps=cfg.steps,
        beta=cfg.beta,
        temperature=cfg.rollout.temperature,
        epochs=cfg["update"].epochs,
        minibatches=cfg["update"].minibatches,
        tokens_per_micro_batch=cfg["update"].tokens_per_micro_batch,
        clip=instantiate(cfg.clipping),
        recompute_logp=cfg.rollout.recompute_logp,
        evaluate_every=cfg.evaluate.every,
        measure_kl_every=cfg.evaluate.measure_kl_every,
        sync_every=cfg.reference.sync_every,
        sync_mix=cfg.reference.mix,
    )
    passes = Passes(
        folder,
        task,
        **cfg.evaluate.pass_at,
        last=cfg.steps,
        batch=cfg.evaluate.batch,
        max_new_tokens=cfg.rollout.max_new_tokens,
        temperature=cfg.rollout.temperature,
        seed=seed,
    )
    with tqdm(total=cfg.steps, desc=folder.name, disable=None if alone else True, leave=False) as bar:
        for row in rows:
            row |= passes(row["step"], policy)
            yield row
            bar.update(row["step"] - bar.n)
            bar.set_postfix({name: f"{row[key]:.2f}" for name, key in HEADLINE.items() if key in row})
    tracking.write_examples(folder / "rollouts.parquet", shelf)
    policy.save(folder / "policy")


HEADLINE = {
    "reward": "reward/mean",
    "dead": "groups/zero_advantage",
    "norm": "gradient/norm",
    "acc": "accuracy/heldout",
}


def describe(folder: Path, config: Mapping[str, Any], overrides: list[str]) -> None:
    """Everything that says what this run is: config.yaml, overrides.txt, command.txt, environment.json."""
    OmegaConf.save(OmegaConf.create(dict(config)), folder / "config.yaml")
    (folder / "overrides.txt").write_text("".join(f"{override}\n" for override in overrides))
    (folder / "command.txt").write_text(f"ablate {shlex.join(overrides)}\n")
    environment = {
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "commit": tracking.git_commit(build.PACKAGE),
        "commit_date": tracking.git_commit_date(build.PACKAGE),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "seed_drives": ["data", "sampling", "reward (placebos)", "shuffle (minibatches)", "evaluation"],
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=1) + "\n")


def _status(folder: Path, state: str, reason: str = "") -> None:
    aside = folder / f"status.json.{os.getpid()}"
    aside.write_text(json.dumps({"state": state, "reason": reason}) + "\n")
    aside.replace(folder / "status.json")


if __name__ == "__main__":
    cli()
