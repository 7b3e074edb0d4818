"""One run, or a whole crossing: compose, build, train, write. The command is `ablate`."""

import contextlib
import functools
import json
import os
import platform
import shlex
import shutil
import sys
import threading
import traceback
import warnings
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

from ablations import (
    build,
    checkpoint,
    client,
    crossing,
    evaluate,
    forecast,
    gpus,
    grpo,
    identity,
    isolation,
    rollout,
    tracking,
)
from ablations.contradictions import Refused, refuse, refuse_store, refuse_unwritable
from ablations.journal import merged_rows, read_rows
from ablations.passes import Passes
from ablations.policy.load import started
from ablations.search import tuned
from ablations.search.stop import Stopped
from ablations.state import State, frozen, seed_of
from ablations.status import CHECKPOINTS, LOCK, last_step, status, table, write_status

PACKAGES = ("torch", "transformers", "hydra-core", "omegaconf", "mlflow", "numpy", "pandas", "ablations")
EXAMPLES_PER_STEP = 32
Watch = Callable[[Mapping[str, Any]], None] | None

# Hydra checks conf/hydra/launcher/ray.yaml by the plugin's own schema of that name, which is wanted, and warns of it.
warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema")
build.register_resolvers()
tqdm.set_lock(threading.RLock())  # a bar belongs to one process; a lock between processes would outlive those that fork


def cli() -> None:
    """Entry point of `ablate`: a single run, or a crossing with its table and report at the end."""
    try:
        _launch_while_it_helps()
        code = 0
    except SystemExit as error:  # Hydra ends so after any error, and has said which
        code = error.code
    except KeyboardInterrupt:
        _interrupted()
    if not crossing.STARTED:
        sys.exit(code or int(any(state != "complete" for state in OUTCOMES)))
    if isinstance(code, str):
        print(code, file=sys.stderr, flush=True)
    try:
        sys.exit(crossing.finish(crossing.STARTED[-1]))  # also when the launcher gave up: the table says what is there
    except KeyboardInterrupt:
        _interrupted()


def _interrupted() -> None:
    if crossing.STARTED:
        crossing.finish(crossing.STARTED[-1], wait=False)
    sys.exit("ablate: interrupted; the same command goes on from the last checkpoints")


def _launch_while_it_helps() -> None:
    """Hydra, and Hydra again for what is left if the launcher gave up: joblib, for one, ends a batch when it loses a
    worker."""
    left = None
    while True:
        try:
            return _hydra_main()
        except SystemExit as error:
            before, left = left, crossing.open_cells(crossing.STARTED[-1]) if crossing.STARTED else set()
            if not error.code or not left or (before is not None and len(left) >= len(before)):
                raise
            print(f"the launcher gave up; it is started again for the {len(left)} runs that are left", flush=True)


OUTCOMES: list[str] = []  # of the runs of this process; Hydra does not hand back what its main returns


@hydra.main(version_base=None, config_path=str(build.CONF), config_name="config")
def _hydra_main(cfg: DictConfig) -> None:
    try:
        OUTCOMES.append(run(cfg, crossing.given(HydraConfig.get().overrides.task)))
    except (Refused, tracking.ParameterChanged) as error:
        sys.exit(f"ablate: {error}")


def run(cfg: DictConfig, overrides: list[str], watch: Watch = None) -> str:
    """Train what `cfg` says, or the rest of it, unless it is done already -> state: complete, failed, diverged, pruned,
    or running (in another process). watch(row), if given, sees every row once it is on disk, and may raise Stopped:
    pruned.

    The outcome is written to the run's folder before this returns; only Refused, a config that cannot run,
    ParameterChanged, outside a crossing, and KeyboardInterrupt leave.
    """
    torch.set_num_threads(cfg.machine.threads)
    cfg = tuned.applied(cfg, overrides)
    results = Path(identity.results_folder())
    config = build.plain(cfg)
    refuse(config)
    knobs = build.knobs(cfg)
    refuse_unwritable(str(results))
    refuse_store(results, config["machine"]["tracking"])
    cell = crossing.cell_of(config, overrides, results)
    if cfg.dry_run:
        left = [] if status(cell.folder)["state"] == "complete" else [(config, cell.folder)]
        print(f"{table([cell])}\n{forecast.sentence(results, left, 1)}\nNothing was started.", flush=True)
        return "complete"
    cell.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(cell.folder / LOCK, timeout=1):  # a look at the state holds it for a moment
            if status(cell.folder)["state"] == "complete":
                print(f"complete already: {cell.folder}", flush=True)
                return "complete"
            work = functools.partial(_recorded, cfg, config, knobs, cell, overrides, results, watch)
            if watch is not None or not (crossing.in_crossing() and isolation.POSSIBLE):
                return work()
            client.warm(config["machine"]["tracking"])
            return _apart(work, cell.folder, share=cfg.device in ("auto", "cuda"))
    except Timeout:
        print(f"running in another process: {cell.folder}", flush=True)
        return "running"


def _apart(work: Callable[[], str], folder: Path, share: bool) -> str:
    """The same in a process of its own: its death is this run's failure, and no other's. share: on one of this
    machine's GPUs, whichever it is."""

    def on_one_gpu() -> str:
        with gpus.one() if share else contextlib.nullcontext():
            return work()

    try:
        return isolation.apart(on_one_gpu)
    except isolation.Killed as error:
        reason = f"{error} after step {last_step(folder)}; the same command goes on from its last checkpoint"
    except tracking.ParameterChanged as error:  # said by the store before this run touched its rows
        reason = str(error)
    write_status(folder, "failed", reason)
    print(f"failed: {folder} ({reason})", flush=True)
    return "failed"


def _recorded(cfg, config, knobs, cell, overrides, results, watch) -> str:
    mirror: tracking.Mirror | tracking.Silent = tracking.Silent()
    try:
        saved, faults = checkpoint.latest(cell.folder / CHECKPOINTS, functools.partial(_misfit, cell))
        for fault in faults:
            print(fault, file=sys.stderr, flush=True)
        start = saved["step"] + 1 if saved else 0
        if saved or faults:
            print(f"goes on after step {start - 1}" if saved else "starts from the beginning", cell.folder, flush=True)
        describe(cell.folder, config, tuned.written(cfg, overrides), resumed_after=saved["step"] if saved else None)
        mirror = tracking.mirror(results, config["machine"]["tracking"], config["name"], cell, config["base"]["name"])
        write_status(cell.folder, "running")
        journal = tracking.Journal(cell.folder, start=start)
        for row in merged_rows(cell.folder):  # what the store has already, it does not take twice
            mirror.write(row)
        for row in trained(cfg, knobs, cell, results, saved):
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
    except (Refused, tracking.ParameterChanged):
        raise
    except KeyboardInterrupt:
        reason = "interrupted; the same command goes on from its last checkpoint"
        write_status(cell.folder, "failed", reason)
        mirror.close("failed", reason)  # nothing comes later that would tell the store
        raise
    except Exception as error:  # whatever it is, it must not stop the other runs; traceback and state are kept
        (cell.folder / "traceback.txt").write_text(traceback.format_exc())
        state, reason = "failed", " ".join(f"{type(error).__name__}: {error}".split())
    write_status(cell.folder, state, reason)
    if state == "complete":
        for left in ("traceback.txt", "diverged_batch.pt"):  # of an earlier attempt
            (cell.folder / left).unlink(missing_ok=True)
        if not cfg.machine.keep_checkpoints:
            shutil.rmtree(cell.folder / CHECKPOINTS, ignore_errors=True)
    mirror.close(state, reason)
    print(f"{state}: {cell.folder}" + (f" ({reason})" if reason else ""), flush=True)
    return state


def _misfit(cell: crossing.Cell, saved: Mapping[str, Any]) -> str:
    """Why a run cannot go on from a checkpoint, or nothing. The journal is written first, but a disk that lost power
    may have kept only what came later."""
    if saved["hash"] != cell.hash:
        return "it is of a run with another config"
    steps = [row["step"] for row in read_rows(cell.folder / "journal.jsonl")][: saved["step"] + 1]
    return "" if steps == list(range(saved["step"] + 1)) else f"the journal lacks rows up to its step {saved['step']}"


def trained(cfg: DictConfig, knobs: grpo.Knobs, cell: crossing.Cell, results: Path, saved: Mapping[str, Any] | None):
    """Build the parts, train, and yield every row of metrics, from the beginning or from what a checkpoint saved; the
    trained policy is saved at the end."""
    folder = cell.folder
    alone = cfg.machine.progress and not crossing.in_crossing()  # a crossing shows one bar over all of its cells
    task = instantiate(cfg.task)
    base = instantiate(cfg.base)(model=instantiate(cfg.model), task=task, results=results, progress=alone)
    policy = started(base, adapter=instantiate(cfg.adapter), recompute=cfg["update"].recompute_activations)
    policy.placed(cfg.device, cfg.precision)  # before the reference is copied and the optimiser made
    trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = instantiate(cfg.optimizer, _convert_="all")(trainable)
    state = State(policy, frozen(policy), optimizer, instantiate(cfg.schedule)(optimizer), knobs, cfg.seed)
    shelf: list[dict[str, Any]] = []
    if saved:
        state.load_state_dict(saved["state"])
        shelf += saved["examples"]
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
    done, every = state.step, cfg.machine.checkpoint_every
    with tqdm(total=cfg.steps, initial=done, desc=folder.name, disable=None if alone else True, leave=False) as bar:
        for row in rows:
            row |= passes(row["step"], policy)
            yield row  # it is in the journal when this goes on
            if every and row["step"] and (row["step"] % every == 0) and row["step"] < cfg.steps:
                values = {"hash": cell.hash, "step": row["step"], "state": state.state_dict(), "examples": shelf}
                checkpoint.save(folder / CHECKPOINTS, row["step"], values)
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


def describe(folder: Path, config: Mapping[str, Any], overrides: list[str], resumed_after: int | None = None) -> None:
    """Everything that says what this run is: config.yaml, overrides.txt, command.txt, environment.json. The latter
    lists every resume with the commit that went on, because another commit may go on differently."""
    file = folder / "environment.json"
    try:
        earlier = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):  # a kill may have left it half-written: no reason to fail ever after
        earlier = {}
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
        "host": platform.node(),
        "process": os.getpid(),
        "seed_drives": ["data", "sampling", "reward (placebos)", "shuffle (minibatches)", "evaluation"],
    }
    if resumed_after is not None:
        before = {"step": resumed_after, "commit": environment["commit"], "torch": environment["packages"]["torch"]}
        environment["resumed_after"] = [*earlier.get("resumed_after", []), before]
    aside = folder / f"environment.json.{os.getpid()}"
    aside.write_text(json.dumps(environment, indent=1) + "\n")
    aside.replace(file)


if __name__ == "__main__":
    cli()
