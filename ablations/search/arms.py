"""Tune, then compare: a search for every arm of a crossing that asks for it, before the crossing starts.

Every arm gets the same space, the same number of trials and the same training seeds, none of which the comparison
uses: the comparison is then each arm's confirmation on fresh seeds.
"""

import shlex
from collections.abc import Sequence
from functools import partial

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from ablations import identity
from ablations.contradictions import Refused
from ablations.search import command, confirm, plan, tuned, workers
from ablations.search import study as studies
from ablations.search.plan import Plan


def tune(config: DictConfig, cells: Sequence[Sequence[str]]) -> bool:
    """Find what the cells ask for, and write results/NAME/tuned.yaml -> whether all of it is there.

    With dry_run nothing is trained: the searches that are left are told.
    """
    wanted = {tuned.arm_of(overrides): list(overrides) for overrides in cells if tuned.keys_of(overrides)}
    if not wanted:
        return True
    if config.get("tune") is None:
        raise Refused(
            f"A cell has a key that is {tuned.WORD}, but the ablation names no space to tune in; add `tune: search/lr` "
            "to its yaml, or give numbers."
        )
    plans = {arm: _plan(config, arm, overrides) for arm, overrides in wanted.items()}
    _refuse_shared_seeds(plans, cells)
    found = {}
    for arm, searched in plans.items():
        if (best := _best(config, searched)) is not None:
            found[arm] = {"point": dict(best.params), "trial": best.number, "search_score": best.value}
    if not config.dry_run and found:
        folder = next(iter(plans.values())).results / config.name
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(OmegaConf.create(found), folder / tuned.FILE)
    if not config.dry_run and (lost := sorted(set(wanted) - set(found))):
        raise Refused(f"No trial of {lost[0]} is complete, so the arms cannot be compared at their best; see above.")
    return len(found) == len(wanted)


def _plan(config: DictConfig, arm: str, overrides: Sequence[str]) -> Plan:
    keys = tuned.keys_of(overrides)
    given = [f"search={config.tune.removeprefix('search/')}", *(config.get("tuning") or [])]
    search, strange, _ = plan.parted(given)
    if strange:
        raise Refused(f"tuning has {strange[0]}, which is no setting of a search; put it into the ablation.")
    runs = [text for text in overrides if not text.startswith("seed=") and text.partition("=")[0] not in keys]
    choices = {key: text for key, text in identity.swept(runs).items()}
    name = f"{config.name}/tune/{identity.slug(choices, '')[:-1]}"
    node = compose("config", [*search, *runs]).search
    again = shlex.join(["ablate", *HydraConfig.get().overrides.task]) if HydraConfig.initialized() else "ablate"
    made = plan.made(node, [text for text in runs if not text.startswith("dry_run=")], name, again)
    if missing := set(keys) - set(made.space.distributions):
        raise Refused(
            f"{', '.join(sorted(missing))} is {tuned.WORD}, but {config.tune} searches "
            f"{', '.join(made.space.distributions)}; choose a space with that key."
        )
    return made


def _refuse_shared_seeds(plans: dict[str, Plan], cells: Sequence[Sequence[str]]) -> None:
    """An arm that was chosen on the seeds it is judged on looks better than it is."""
    compared = {identity.swept(overrides).get("seed") for overrides in cells}
    for searched in plans.values():
        if shared := sorted(set(map(str, searched.seeds)) & compared):
            raise Refused(
                f"Seed {shared[0]} would be used to tune the arms and to compare them; set first_seed in the "
                "ablation's tuning so that the seeds differ."
            )


def _best(config: DictConfig, searched: Plan):
    """The best trial of an arm's search, which goes on where it was."""
    study = studies.begin(searched) if not config.dry_run else _there(searched)
    done = len(studies.settled(study)) if study is not None else 0
    if config.dry_run:
        if done < searched.budget:
            print(command.told(searched, done, [], confirms=False), flush=True)
        return confirm.best(study) if done >= searched.budget else None
    studies.requeue(study, searched)
    if done < searched.budget:
        print(command.told(searched, done, studies.waiting(study), confirms=False), flush=True)
        workers.apart(command.mirror.prepare, searched)
        if not command.searched(searched, study, _starter(searched, config)):
            return None
        workers.apart(command.mirror.catch_up, searched)
        print(command.reported(searched) + "\n", flush=True)
    return confirm.best(study)


def _there(searched: Plan):
    """The study if it was begun; a look leaves nothing behind."""
    begun = searched.storage != "journal" or (searched.folder / studies.JOURNAL).is_file()
    return studies.begin(searched) if begun else None


def _starter(searched: Plan, config: DictConfig):
    """Processes of this machine, unless the ablation has a launcher of its own."""
    if not HydraConfig.initialized() or HydraConfig.get().runtime.choices["hydra/launcher"] == "local":
        return partial(workers.here, plan=searched)
    raise Refused(
        "The arms are tuned by processes of the machine that starts the crossing; with another launcher, tune first "
        f"with hydra/launcher=local: `ablate ablation={config.name}` goes on from there with any launcher."
    )
