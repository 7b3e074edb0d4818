"""Base policies: what training starts from, made once and shared by all arms of an ablation.

Two stages of ordinary next-token training on demonstrations: flawless ones, until the task is understood, then those
of a demonstrator with limited skill, until the policy is as imperfect as he is. The first stage is the same for every
demonstrator, so it is kept apart, and a second base costs only the second stage.
"""

import dataclasses
import functools
import hashlib
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from tqdm import tqdm

from ablations.evaluate import answers
from ablations.policy.language import LanguagePolicy

RECIPE = 1  # part of every identity: raised when the code below would give another policy from the same numbers
OPTIMIZER, RECORD = "optimizer.pt", "record.json"


def base_policy(
    *,
    model: Callable,
    task: Any,
    style: Any,
    name: str,
    folder: str | Path | None,
    seed: int,
    clean_steps: int,
    solved: float | None,
    noisy_steps: int,
    batch: int,
    learning_rate: float,
    betas: Sequence[float],
    weight_decay: float,
    clip: float,
    record_problems: int,
    results: str | Path,
    progress: bool,
) -> Path:
    """The folder of the base policy, for `LanguagePolicy.load`; trained if results/bases does not have it yet.

    model(alphabet, end=, pad=, unknown=, generator=) builds the untrained policy; task.demonstration(problem, rng,
    style) writes what it learns from, flawless for style None. AdamW with a cosine from `learning_rate` to 0 over
    both stages, gradients clipped at `clip`, mean loss per token. With `folder` given, that folder is the base and
    nothing is trained. Raises ValueError if the policy after the first stage, on flawless demonstrations, answers
    less than the share `solved` of held-out problems: such a base learns next to nothing from rewards either, and an
    ablation on it would compare noise.

    The trained folder is base-<hash>, by the hash of the demonstrations and of all numbers above that can change a
    weight: model and tokenizer, clean/ (the policy after the first stage) and record.json (settings, cost, accuracy
    by level and lengths on `record_problems` held-out problems). Of several processes that need it one trains and the
    others wait; it appears complete or not at all.
    """
    if folder is not None:
        if not (Path(folder) / "config.json").is_file():
            found = "holds no config.json" if Path(folder).is_dir() else "is not there"
            raise ValueError(
                f"base.folder {folder} {found}; give a folder that LanguagePolicy.save wrote, or set base.folder=null "
                "to train one."
            )
        return Path(folder)
    if not hasattr(task, "demonstration"):
        raise ValueError(
            f"the task {type(task).__name__} has no demonstrations, so no base policy can be trained for it; choose a "
            "model that is trained already: model=smollm2_135m, or model=hub model.name=... ."
        )
    all_steps = clean_steps + noisy_steps
    shared = {"recipe": RECIPE, "model": model, "task": task, "seed": seed, "batch": batch}
    shared |= {"clean_steps": clean_steps, "all_steps": all_steps, "learning_rate": learning_rate, "betas": betas}
    shared |= {"weight_decay": weight_decay, "clip": clip, "flawless": _fingerprint(task, None)}
    whole = shared | {"style": style, "imperfect": _fingerprint(task, style)}
    bases = Path(results) / "bases"

    def stage(aside: Path, policy: LanguagePolicy, optimizer: AdamW, style: Any, steps: range, settings: dict) -> None:
        started = time.perf_counter(), time.process_time()
        rates = [learning_rate * 0.5 * (1 + math.cos(math.pi * step / all_steps)) for step in steps]
        demonstrations = _demonstrations(task, style, batch, random.Random(f"demonstrations {seed} from {steps.start}"))
        title = f"warm start, {'flawless' if style is None else 'imperfect'} demonstrations"
        lessons = zip(tqdm(rates, title, disable=None if progress else True, leave=False), demonstrations, strict=False)
        _imitate(policy, optimizer, lessons, clip)
        cost = {"wall": time.perf_counter() - started[0], "cpu": time.process_time() - started[1]}
        record = {"name": name, **settings, "seconds": cost, "torch": torch.__version__}
        policy.save(aside)
        torch.save(optimizer.state_dict(), aside / OPTIMIZER)
        (aside / RECORD).write_text(json.dumps(record | _skill(policy, task, record_problems, seed), indent=1) + "\n")

    def adamw(policy: LanguagePolicy) -> AdamW:
        return AdamW(policy.parameters(), lr=learning_rate, betas=tuple(betas), weight_decay=weight_decay)

    def make_clean(aside: Path) -> None:
        generator = torch.Generator().manual_seed(random.Random(f"weights {seed}").getrandbits(63))
        policy = model(task.alphabet, end=task.end, pad=task.pad, unknown=task.unknown, generator=generator)
        stage(aside, policy, adamw(policy), None, range(clean_steps), {"settings": describe(shared)})
        accuracy = json.loads((aside / RECORD).read_text())["accuracy"]
        if solved is not None and accuracy < solved:
            raise ValueError(
                f"The warm start with base.seed={seed} answers {accuracy:.2f} of the held-out problems after "
                f"{clean_steps} updates on flawless demonstrations; base.solved asks for {solved}. Raise clean_steps, "
                "choose another base.seed, or set base.solved=null to go on with it."
            )

    def make_noisy(aside: Path) -> None:
        clean = _once(bases / f"clean-{digest(shared)}", make_clean)
        policy = LanguagePolicy.load(clean)
        optimizer = adamw(policy)
        optimizer.load_state_dict(torch.load(clean / OPTIMIZER, weights_only=True))
        settings = {"settings": describe(whole), "clean": clean.name}
        stage(aside, policy, optimizer, style, range(clean_steps, all_steps), settings)
        (aside / OPTIMIZER).unlink()
        shutil.copytree(clean, aside / "clean", ignore=shutil.ignore_patterns(OPTIMIZER))

    return _once(bases / f"base-{digest(whole)}", make_noisy)


def untouched(*, model: Callable, name: str, folder: None, task: Any, results: str | Path, progress: bool) -> Any:
    """The model as it is, without a warm start: model(cache=) loads it. For models that are trained already."""
    return model(cache=Path(results) / "models")


def _demonstrations(task, style, batch: int, rng: random.Random) -> Iterator[tuple[list[str], list[str]]]:
    """Prompts and answers of `batch` training problems, for ever."""
    while True:
        problems = task.draw(batch, rng, "train")
        yield [p.prompt for p in problems], [task.demonstration(p, rng, style) for p in problems]


def _fingerprint(task, style) -> str:
    """A hash of a few demonstrations: a task whose code writes others is another task, whatever its numbers."""
    return digest(next(_demonstrations(task, style, 64, random.Random("fingerprint"))))


def _imitate(policy: LanguagePolicy, optimizer: AdamW, lessons: Iterable, clip: float) -> None:
    """One update per lesson (learning rate, (prompts, answers)): mean negative log-likelihood per answer token."""
    for rate, (prompts, texts) in lessons:
        prompt_ids, prompt_mask = policy.encode_prompts(prompts)
        ids, mask = policy.encode_answers(texts)
        logp, _ = policy.token_logp(prompt_ids, prompt_mask, ids, mask, temperature=1.0)
        optimizer.zero_grad(set_to_none=True)
        (-logp.sum() / mask.sum()).backward()
        clip_grad_norm_(policy.parameters(), clip)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


def _skill(policy: LanguagePolicy, task, problems: int, seed: int) -> dict[str, Any]:
    """What the policy can do so far, from one sampled answer per held-out problem, temperature 1; lengths in tokens."""
    asked = task.draw(problems, random.Random(f"record {seed}"), "heldout")
    settings = dict(samples=1, greedy=False, batch=250, max_new_tokens=task.max_new_tokens, temperature=1.0, seed=seed)
    graded = list(answers(policy, task, asked, **settings))
    levels: dict[int, list[bool]] = {}
    lengths: dict[str, list[int]] = {"mean": [], "correct": [], "incorrect": []}
    for answer in sorted(graded, key=lambda answer: answer.problem.level):
        right = bool(answer.grade.correct)
        levels.setdefault(answer.problem.level, []).append(right)
        for kind in ("mean", "correct" if right else "incorrect"):
            lengths[kind].append(answer.length)
    return {
        "problems": problems,
        "accuracy": len(lengths["correct"]) / problems,
        "accuracy_by_level": {level: sum(right) / len(right) for level, right in levels.items()},
        "length": {kind: sum(values) / len(values) for kind, values in lengths.items() if values},
        "truncated_share": sum(not answer.ended for answer in graded) / problems,
    }


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by make(aside) if it is not there; under a lock, and moved into place when complete."""
    if (folder / RECORD).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if sys.stderr.isatty():
            print(f"waiting for another process to train {folder}", file=sys.stderr, flush=True)
        lock.acquire()
    try:
        if not (folder / RECORD).is_file():
            aside = folder.with_name(folder.name + ".partial")
            for leftover in (aside, folder):
                shutil.rmtree(leftover, ignore_errors=True)
            aside.mkdir()
            make(aside)
            aside.replace(folder)
    finally:
        lock.release()
    return folder


def digest(value: Any) -> str:
    """12 hexadecimal digits of SHA-256 over describe(value)."""
    text = json.dumps(describe(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def describe(value: Any) -> Any:
    """What something was built from, as JSON: numbers, text, lists, mappings, dataclasses, functions and partial
    functions.

    Raises TypeError for anything else: an object whose numbers cannot be seen has no identity that could be trusted.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    if isinstance(value, functools.partial):
        return {"call": describe(value.func), "arguments": describe(value.args), "settings": describe(value.keywords)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": describe(type(value)), "fields": fields}
    if "<" not in getattr(value, "__qualname__", "<none>"):  # a lambda or a local function has no name of its own
        return f"{value.__module__}.{value.__qualname__}"
    raise TypeError(
        f"a base policy is identified by what it is made from, and {value!r} does not show it; pass numbers, text, "
        "lists, mappings, dataclasses, or functions that can be imported by name."
    )
