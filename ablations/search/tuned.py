"""Arms at their best: `tuned` as the value of a swept key stands for what a search found for that arm.

    tune: search/lr                                  # in conf/ablation/NAME.yaml: the space
    optimizer.lr: 5e-4,tuned                         # in its crossing: the shared value, and each arm's own

A factor that only rescales the gradient changes which learning rate is right, and at a shared one it wins or loses by
that. With both columns in one crossing, the difference at the shared value, the difference at each arm's best, and
what the tuning gave each arm are paired differences over the same seeds.

What was found lies in results/NAME/tuned.yaml; `arms.py` makes it, before the crossing starts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from ablations import identity
from ablations.contradictions import Refused

WORD = "tuned"
FILE = "tuned.yaml"


def keys_of(overrides: Sequence[str]) -> list[str]:
    """The keys whose value a search has to find."""
    return [key for key, text in identity.swept(overrides).items() if text == WORD]


def arm_of(overrides: Sequence[str]) -> str:
    """What a search is about: every choice of a cell, its base too, but for the seed and for what is searched."""
    choices = identity.swept(overrides)
    fixed = sorted((key, text) for key, text in choices.items() if key != "seed" and text != WORD)
    return " ".join(f"{key}={text}" for key, text in fixed) or "default"


def applied(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The config with this arm's values in place of the word, and a list of their keys under `tuned`, which makes it
    another run than one that was given the same number. Without the word, the config as it is.

    Raises Refused if nothing was found for this arm yet.
    """
    if not (keys := keys_of(overrides)):
        return cfg
    file = Path(identity.results_folder()) / cfg.name / FILE
    found: Mapping[str, Any] = OmegaConf.to_container(OmegaConf.load(file)) if file.is_file() else {}
    point = found.get(arm_of(overrides), {}).get("point", {})
    if missing := [key for key in keys if key not in point]:
        raise Refused(
            f"{', '.join(missing)} is {WORD}, and {file} has no value for the arm {arm_of(overrides)}; it is found "
            f"before the crossing starts, by `ablate ablation={cfg.name}` with a line `tune: search/lr` in its yaml. "
            "For one run, give a number."
        )
    cfg = cfg.copy()
    with open_dict(cfg):
        for key in keys:
            OmegaConf.update(cfg, key, point[key])
        cfg[WORD] = sorted(keys)
    return cfg


def written(cfg: DictConfig, overrides: Sequence[str]) -> list[str]:
    """The overrides with the numbers, so that the command in a run's folder trains the same without the search."""
    keys = keys_of(overrides)
    if not keys:
        return list(overrides)
    numbers = {f"{key}={WORD}": f"{key}={OmegaConf.select(cfg, key)!r}" for key in keys}
    return [*(numbers.get(text.lstrip("+"), text) for text in overrides), f"+{WORD}=[{','.join(sorted(keys))}]"]
