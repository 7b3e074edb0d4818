"""What the folders of the runs say: what was fixed, what differed, how the runs were started and on what."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis import kept
from analysis.files import Unreadable, json_of, yaml_of

# Keys of a run's config that say what is asked about it, not what it is.
ABOUT_THE_ABLATION = (
    *("hydra", "name", "budget", "question", "paper", "crossing", "claims", "figures", "placebo", "plain"),
    *("also", "beside", "predictions", "cost", "claimed_arms"),
)
# What an answer to a held-out problem depends on besides the policy and the problem.
EVALUATION = ("task.", "rollout.temperature", "rollout.max_new_tokens", "evaluate.problems", "evaluate.pass_at.")
START = ("base.", "model.")  # what a run starts from
OUTSIDE_THE_NUMBERS = ("machine", "dry_run")
# What a run's environment says of one process or machine, which is nobody else's business.
PRIVATE = ("host", "process", "user", "seed_drives")


class Facts(NamedTuple):
    """fixed: config key -> text, the same in all runs. differed: config keys that are not. environment: what -> texts
    found.
    command: of one run, as an example. read: number of run folders that were there. evaluation: hash of a run -> its
    settings of the evaluation that are not the same in all runs. policies: hash of a run -> the base policy it starts
    from, told apart from the others of the same base: "seed 10", with whatever else differs in base and model."""

    fixed: dict[str, str]
    differed: list[str]
    environment: dict[str, list[str]]
    command: str
    read: int
    evaluation: dict[str, dict[str, str]] = {}
    policies: dict[str, str] = {}


def of_runs(results: Path, ablation: str, runs: pd.DataFrame) -> Facts:
    """Read config.yaml, command.txt and environment.json of these runs, from results/<ablation>/runs/<folder name>.

    Folders that are not there (a store copied without them) and configs that cannot be read are left out and show in
    `read`; if none is there, what an earlier report kept stands in. Paths of the machine are left out too, because
    reports are shared.
    """
    named = {
        results / ablation / "runs" / Path(folder or run).name: each
        for folder, run, each in zip(runs.folder, runs.run, runs.hash, strict=True)
    }
    read = {folder: config for folder in named if (config := _config(folder / "config.yaml")) is not None}
    folders = list(read)
    if not folders and (found := kept.read_facts(results / ablation)):
        return Facts(**found)
    configs = list(map(_flat, read.values()))
    keys = list(dict.fromkeys(key for config in configs for key in config))
    values = {key: {config.get(key, "not set") for config in configs} for key in keys}
    environments = [_flat(_environment(folder / "environment.json")) for folder in folders]
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for environment in environments for key in environment if key not in PRIVATE):
        found[key] = sorted({environment[key] for environment in environments if key in environment})
    evaluated = [key for key, texts in values.items() if len(texts) > 1 and key.startswith(EVALUATION)]
    command = next((text for folder in folders if (text := _text(folder / "command.txt"))), "")
    return Facts(
        {key: texts.pop() for key, texts in values.items() if len(texts) == 1},
        [key for key, texts in values.items() if len(texts) > 1],
        found,
        _without_folders(command),
        len(folders),
        {
            named[folder]: {key: config.get(key, "not set") for key in evaluated}
            for folder, config in zip(folders, configs, strict=True)
            if evaluated
        },
        _policies([named[folder] for folder in folders], configs),
    )


def _policies(hashes: Iterable[str], configs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Hash -> base policy. A base's name is not part of it, and neither is what all runs with that name share: the name
    stands beside it wherever it is shown."""
    by_name: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for run, config in zip(hashes, configs, strict=True):
        by_name.setdefault(config.get("base.name", ""), []).append((run, config))
    labels = {}
    for runs in by_name.values():
        keys = dict.fromkeys(key for _, config in runs for key in config if key.startswith(START))
        differing = [key for key in keys if len({config.get(key, "not set") for _, config in runs}) > 1]
        for run, config in runs:
            seed = [f"seed {config['base.seed']}"] if "base.seed" in config else []
            rest = [f"{key}={config.get(key, 'not set')}" for key in differing if key != "base.seed"]
            labels[run] = ", ".join([*seed, *rest]) or "the model as it is"
    return labels


def _config(file: Path) -> dict | None:
    try:
        config = yaml_of(file) if file.is_file() else None
    except Unreadable:
        return None
    return config and {key: v for key, v in config.items() if key not in ABOUT_THE_ABLATION + OUTSIDE_THE_NUMBERS}


def _environment(file: Path) -> dict:
    try:
        return json_of(file) if file.is_file() else {}
    except Unreadable:  # the run's numbers do not hang on it
        return {}


def _text(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """{"a": {"b": 1}} -> {"a.b": "1"}, without absolute paths."""
    flat: dict[str, str] = {}
    for key, v in tree.items():
        if isinstance(v, Mapping):
            flat.update(_flat(v, f"{above}{key}."))
        elif not (isinstance(v, str) and Path(v).is_absolute()):
            flat[f"{above}{key}"] = _plain(v)
    return flat


def _plain(v: Any) -> str:
    if isinstance(v, list):
        return "[" + ", ".join(map(_plain, v)) + "]"
    return {None: "null", True: "true", False: "false"}.get(v, str(v)) if v is None or isinstance(v, bool) else str(v)


def _without_folders(command: str) -> str:
    """/some/where/bin/ablate a=b -> ablate a=b"""
    program, _, rest = command.partition(" ")
    return f"{Path(program).name} {rest}".strip()


def counts(runs: pd.DataFrame, by: Iterable[str]) -> pd.DataFrame:
    """Runs by state, one row per arm (and base): columns <by>, complete, running, failed, diverged."""
    table = runs.groupby([*by], observed=True).state.value_counts().unstack(fill_value=0)
    states = [
        *("complete", "running", "failed", "diverged"),
        *(s for s in table.columns if s not in ("complete", "running", "failed", "diverged")),
    ]
    return table.reindex(columns=states, fill_value=0).reset_index()
