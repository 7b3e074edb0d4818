"""Settings that cannot mean what they say: refused in one sentence before any model loads; and arms that cannot
differ: warned about."""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ablations.knobs import baseline, scale
from ablations.store import store_uri

GROUP_STATISTICS = {rule.__name__ for rule in (*baseline.NEEDS_TWO_ANSWERS, *scale.NEEDS_TWO_ANSWERS)} | {"max_rl"}
NEEDS_POSITIVE = (
    "rollout.prompts",
    "rollout.group_size",
    "rollout.max_new_tokens",
    "update.epochs",
    "update.minibatches",
)
NOT_NEGATIVE = (
    "beta",
    "steps",
    "surrogate.eps_low",
    "surrogate.eps_high",
    "scale.eps",
    "evaluate.problems",
    "evaluate.every",
    "machine.checkpoint_every",
    "optimizer.lr",
)
WHOLE = ("steps", "evaluate.problems", "evaluate.every", "machine.checkpoint_every")
SEEDS = ("seed", "base.seed")  # 1.0 would have the hash of 1, and draw other numbers


class Refused(ValueError):
    """A configuration that is refused; the message says what was given, what is allowed and what to do."""


def option(config: Mapping[str, Any], room: str) -> str:
    """Name of the function that a room's option is, for example "group_mean"."""
    return str((config.get(room) or {}).get("_target_", "")).rsplit(".", 1)[-1]


def value(config: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, or None."""
    node: Any = config
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def refuse(config: Mapping[str, Any], here: bool = True) -> None:
    """Raise Refused for the first contradiction in a resolved config. here: it is this machine that will run it."""
    for path in NEEDS_POSITIVE:
        given = value(config, path)
        if not isinstance(given, int) or given < 1:
            raise Refused(f"{path} is {given}; it must be a whole number of at least 1.")
    for path in NOT_NEGATIVE:
        given = value(config, path)
        if given is not None and not (isinstance(given, int | float) and given >= 0):
            raise Refused(f"{path} is {given}; it must be 0 or more. Give a number that is not negative.")
    for path in WHOLE:
        given = value(config, path)
        if given is not None and not (isinstance(given, int | float) and given % 1 == 0):  # 1.0 is 1
            raise Refused(f"{path} is {given}; it must be a whole number.")
    for path in SEEDS:
        given = value(config, path)
        if (given is None and path == "seed") or not isinstance(given, int | None) or isinstance(given, bool):
            raise Refused(f"{path} is {given}; it must be a whole number, such as 0. Every generator is made from it.")
    _refuse_small_groups(config)
    _refuse_kl(config)
    _refuse_sampling(config)
    _refuse_parts_apart(config)
    _refuse_machine(config, here)
    rows = config["rollout"]["prompts"] * config["rollout"]["group_size"]
    if config["update"]["minibatches"] > rows:
        raise Refused(
            f"update.minibatches is {config['update']['minibatches']}, but a rollout has {rows} answers; set it "
            f"to {rows} or less."
        )
    _refuse_starts(config)
    folder = value(config, "base.folder")
    if folder and not Path(folder).is_dir():
        raise Refused(
            f"base.folder is {folder}, and there is no such folder; give the folder of a saved policy, or choose "
            "base=rambling."
        )


PRETRAINED = {"hub", "gguf", "smollm2"}  # functions of conf/model that load what is trained already


def _refuse_starts(config: Mapping[str, Any]) -> None:
    """A model and a base that do not go together, and an adapter whose reference could not move."""
    model, base = option(config, "model"), option(config, "base")
    if model == "scratch" and base == "untouched":
        raise Refused(
            "base=none starts from the model as it is, but this model is untrained and would answer noise; choose "
            "base=rambling or another that trains it, or a model that is trained already (model=smollm2_135m, hub)."
        )
    if model in PRETRAINED and base == "base_policy" and not value(config, "base.folder"):
        raise Refused(
            f"base={value(config, 'base.name')} trains a model from nothing, but the model is trained already; "
            "choose base=none."
        )
    if option(config, "adapter") == "lora" and config["reference"]["sync_every"]:
        raise Refused(
            "reference.sync_every is set with adapter=lora, whose reference is the model with the adapter off and "
            "cannot move; choose reference=fixed, or adapter=none."
        )


def _refuse_machine(config: Mapping[str, Any], here: bool) -> None:
    device, precision = config.get("device", "auto"), config.get("precision", "float32")
    if device not in ("auto", "cpu") and not re.fullmatch(r"cuda(:\d+)?", str(device)):
        raise Refused(f"device is {device}; allowed are auto, cpu, cuda and cuda:NUMBER. Set device=auto.")
    # Asked in a way that does not start CUDA: a process that has started it cannot be forked, and runs are forks.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if here and str(device).startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f"device is {device}, but torch sees no CUDA device here; set device=auto or device=cpu.")
    if precision not in ("float32", "bfloat16"):
        raise Refused(f"precision is {precision}; allowed are float32 and bfloat16. Set precision=float32.")


def _refuse_small_groups(config: Mapping[str, Any]) -> None:
    size = config["rollout"]["group_size"]
    for room in ("baseline", "scale"):
        name = option(config, room)
        if size < 2 and name in GROUP_STATISTICS:
            raise Refused(
                f"rollout.group_size is {size}; {room}={name} needs at least 2 answers per prompt, because it is "
                "a statistic of the group. "
                f"Set rollout.group_size=2 or more, or choose {room}={'batch_mean' if room == 'baseline' else 'none'}."
            )


def _refuse_kl(config: Mapping[str, Any]) -> None:
    beta, place = config["beta"], config["placement"]
    somewhere = place["in_loss"] or place["before_baseline"] or place["to_go"]
    if beta > 0 and not somewhere:
        raise Refused(
            f"beta is {beta} but placement is none, so no KL would be used; set placement=loss (or another), or beta=0."
        )
    if config["reference"]["sync_every"] and (beta == 0 or not somewhere or place["to_old"]):
        used = f"no KL is used (beta {beta})" if beta == 0 else "the KL is to the policy before the update"
        raise Refused(
            f"reference.sync_every is {config['reference']['sync_every']} but {used}, so the reference would have no "
            "effect; set beta above 0 with another placement, or reference=fixed."
        )
    if beta > 0 and place["before_baseline"] and option(config, "credit") == "process":
        raise Refused(
            f"beta is {beta} with placement=reward_before_baseline, but credit=process takes the steps' rewards and "
            "not the answer's, so no KL would be used; set placement=loss or reward_to_go, or credit=outcome."
        )


def _refuse_parts_apart(config: Mapping[str, Any]) -> None:
    """combine=normalise_each_then_sum never forms one total reward, so nothing can act on that."""
    if option(config, "combine") != "normalise_each_then_sum":
        return
    acting = {
        "placement=reward_before_baseline": config["beta"] > 0 and config["placement"]["before_baseline"],
        f"transform={option(config, 'transform')}": option(config, "transform") not in ("none", "psr"),
        "baseline=running_mean": option(config, "baseline") == "RunningMean",
    }
    for choice in (choice for choice, chosen in acting.items() if chosen):
        raise Refused(
            f"{choice} acts on one total reward, but combine=normalise_each_then_sum normalises every part of the "
            f"reward apart; choose another {choice.split('=')[0]}, or combine=sum_then_normalise."
        )


def _refuse_sampling(config: Mapping[str, Any]) -> None:
    rollout = config["rollout"]
    if rollout["top_p"] != 1 or rollout["top_k"] != 0:
        raise Refused(
            f"rollout.top_p is {rollout['top_p']} and rollout.top_k is {rollout['top_k']}; training samples from "
            "the full distribution, since "
            "truncated sampling renormalises the old log-probabilities and not the new ones. Leave them at 1 and 0."
        )
    if not (isinstance(rollout["temperature"], int | float) and rollout["temperature"] > 0):
        raise Refused(
            f"rollout.temperature is {rollout['temperature']}; training needs a temperature above 0, for example 1."
        )


def refuse_unwritable(folder: str) -> None:
    """Raise Refused unless a file can be made in `folder`, which is created if needed."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Refused(
            f"The results folder {folder} cannot be written ({error.strerror}); make it writable, or name another "
            "in ABLATIONS_RESULTS."
        ) from None


def refuse_store(results: str | os.PathLike, tracking: str) -> None:
    """Raise Refused for a place that MLflow cannot write to."""
    try:
        store_uri(results, tracking)
    except ValueError as error:
        raise Refused(str(error)) from None
