"""Configs for tests, composed as the command line composes them."""

import functools
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from ablations import build
from ablations.build import CONF
from ablations.grpo import Knobs

build.register_resolvers()


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base=None):
        return compose("config", list(overrides))


@functools.cache  # composing takes a quarter of a second; nothing here changes a stateless knob
def knobs(*overrides: str) -> Knobs:
    return build.knobs(composed(*overrides))


def options_of(room: str) -> list[str]:
    return sorted(path.stem for path in Path(CONF, room).glob("*.yaml"))
