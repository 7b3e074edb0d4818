"""Every yaml composes into the default run and is accepted; what does not exist is refused with what does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from composing import composed
from hydra.errors import HydraException
from objective import ROOMS, config, options_of
from omegaconf import OmegaConf

from ablations import build
from ablations.contradictions import refuse

FILES = sorted(path.relative_to(build.CONF) for path in build.CONF.glob("*/**/*.yaml"))
CHOICES = [f"{path.parent.as_posix()}={path.stem}" for path in FILES]
ENTRIES = [e for file in ("config", "engine") for e in OmegaConf.load(build.CONF / f"{file}.yaml").defaults]
LISTED = [str(key).replace(" /", " ") for entry in ENTRIES if OmegaConf.is_dict(entry) for key in entry]
# What a choice needs beside it in order not to contradict the other defaults.
WITH = {"placement=none": ["beta=0"], "reference=synchronised": ["beta=0.1"], "reference=deepseek_r1": ["beta=0.1"]}
WITH |= {"task=jsonl": ["task.train=questions.jsonl"], "task=own": ["task._target_=my_task.Reverse"]}
WITH |= {"model=hub": ["model.name=here"], "model=gguf": ["model.file=here.gguf"], "base=none": ["model=smollm2_135m"]}
# Groups that another option lists: what they are called on the command line, and that option.
NESTED = {"model/architecture": ["model/architecture"], "task/prompt": ["task/prompt", "task=arithmetic"]}
NESTED |= {"task/same": ["task/same", "task=arithmetic"]}
NESTED |= {"task/extract": ["task/extract@task.prompt.extract", "task=arithmetic"]}


MOST = max(len(options_of(room)) for room in ROOMS)


@pytest.mark.parametrize("place", range(MOST))
def test_an_option_binds_settings_that_its_function_has_and_asks_for_what_the_room_offers(place):
    """The first option of every room at once, then the second of every room ...; an error names the room."""
    choice = {room: options_of(room)[place % len(options_of(room))] for room in ROOMS}
    assert set(build.knobs(OmegaConf.create(config(**choice)))._fields) == set(ROOMS)


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_every_yaml_composes_into_a_run_that_is_accepted(choice):
    group = choice.partition("=")[0]
    nested = NESTED.get(group)
    listed = nested or any(group == name.removeprefix("override ") for name in LISTED)
    if nested:
        choice = f"{nested[0]}={choice.partition('=')[2]}"
    cfg = composed(choice if listed else f"+{choice}", *WITH.get(choice, []), *(nested or ())[1:])
    refuse(build.plain(cfg))
    build.knobs(cfg)


def test_one_choice_of_every_room_at_once_composes():
    last = {path.parent.as_posix(): path.stem for path in FILES if path.parent.name not in ("launcher", "ablation")}
    choices = [f"{group}={option}" for group, option in last.items() if group in LISTED and group != "algorithm"]
    cfg = composed(*choices, "beta=0.1", "combine=sum_then_normalise")
    build.knobs(cfg)
    assert all(group in cfg for group in last if group in OmegaConf.to_container(cfg))


def test_the_default_of_every_room_exists():
    for entry in OmegaConf.load(build.CONF / "config.yaml").defaults:
        for name, option in entry.items() if OmegaConf.is_dict(entry) else []:
            group = str(name).removeprefix("override ").partition("@")[0]
            if not group.endswith("_logging"):  # Hydra's own
                assert (build.CONF / group).is_dir(), f"{name}: there is no conf/{group}"
                assert option is None or (build.CONF / group / f"{option}.yaml").is_file(), f"{name}: no {option}"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("scale=nonsense", ["nonsense", "group_std", "batch_std", "max_rl"]),
        ("algorithm=grop", ["grop", "grpo", "dr_grpo"]),
        ("scaling=none", ["scaling"]),
        ("scale.epsilon=1", ["scale.epsilon"]),
        ("update.epoch=2", ["update.epoch"]),
        ("+scale.epsilon=1", ["scale", "epsilon", "eps", "ddof"]),
        ("+aggregates=token_mean", ["aggregates", "aggregate", "baseline", "rollout"]),
        ("+update.epoch=2", ["update.epoch", "epochs", "minibatches"]),
        ("+update={epoch:2}", ["update.epoch", "epochs", "minibatches"]),
        ("+tokens.high={_target_:ablations.knobs.tokens.high,_partial_:true}", ["tokens", "cannot be imported"]),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(override, told):
    """By Hydra, which lists a room's options, or by the run's own check of what an override with + adds."""
    with pytest.raises((HydraException, build.Refused)) as caught:
        build.knobs(composed(override))
    assert all(word in str(caught.value) for word in told), caught.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "told"),
    [("scale=nonsense", ["nonsense", "group_std", "max_rl"]), ("scale.epsilon=1", ["epsilon"]), ("lr=1", ["lr"])],
)
def test_the_command_trains_nothing_that_it_does_not_know(override, told, results):
    command = [sys.executable, "-m", "ablations.run", override, "steps=1"]
    done = subprocess.run(
        command, cwd=Path(build.PACKAGE).parent, env=os.environ, capture_output=True, text=True, timeout=800
    )
    assert done.returncode != 0
    assert all(word in done.stdout + done.stderr for word in told), done.stderr
    assert not any(results.rglob("*.jsonl")) and not any(results.rglob("policy"))
