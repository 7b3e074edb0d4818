"""Random crossings of everything that can be chosen: each trains, finitely, or is refused with a sentence."""

import json
import math
import random

import pytest
from composing import composed, options_of
from hydra.utils import instantiate

from ablations import build, run
from ablations.contradictions import Refused, refuse
from ablations.status import status

QUICK = ["steps=3", "rollout.prompts=4", "rollout.group_size=4", "evaluate.problems=20", "machine.tracking=none"]
ROOMS = ("transform", "keep", "combine", "baseline", "scale", "credit", "whiten", "ratio", "surrogate", "correction")
ROOMS += ("kl", "placement", "aggregate", "entropy", "reference", "optimizer", "schedule", "clipping")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> str:
    """A base policy that has learnt to end its answers and little else."""
    cfg = composed("base.clean_steps=60", "base.noisy_steps=20", "base.solved=null", "base.record_problems=20")
    where = tmp_path_factory.mktemp("base")
    task, model = instantiate(cfg.task), instantiate(cfg.model)
    return str(instantiate(cfg.base)(model=model, task=task, results=where, progress=False))


def crossing(generator: random.Random) -> list[str]:
    """One option per room, one or two parts of reward, up to two token rules, one to four updates per rollout."""
    chosen = [f"{room}={generator.choice(options_of(room))}" for room in ROOMS]
    rules = [option for option in options_of("tokens") if option != "all"]
    chosen += [f"reward=[{','.join(generator.sample(options_of('reward'), generator.choice([1, 1, 2])))}]"]
    chosen += [f"tokens=[{','.join(generator.sample(rules, k))}]" for k in [generator.choice([0, 0, 1, 2])] if k]
    for term in ("aggregate_kl", "aggregate_entropy"):
        chosen += [f"aggregate@{term}={generator.choice(options_of('aggregate'))}"] * generator.choice([0, 1])
    chosen += [f"beta={generator.choice([0, 0.1])}", f"rollout.recompute_logp={generator.choice(['true', 'false'])}"]
    chosen += [f"update.{each}={generator.choice([1, 2])}" for each in ("epochs", "minibatches")]
    return [*chosen, f"rollout.temperature={generator.choice([1.0, 0.6])}", "update.tokens_per_micro_batch=40"]


def accepted(generator: random.Random, base: str) -> tuple[list[str], list[str]]:
    """(overrides of the first crossing that is not refused, the sentences that refused the others)."""
    sentences: list[str] = []
    while True:
        overrides = [*QUICK, f"base.folder={base}", *crossing(generator)]
        cfg = composed(*overrides)
        try:
            refuse(build.plain(cfg))
            build.knobs(cfg)
            return overrides, sentences
        except Refused as error:
            sentences.append(str(error))


@pytest.mark.parametrize("seed", range(30))
def test_a_random_crossing_trains_to_the_end_with_finite_numbers(seed, base, results):
    overrides, sentences = accepted(random.Random(f"crossing {seed}"), base)
    for sentence in sentences:
        assert "\n" not in sentence and sentence.endswith(".") and len(sentence.split()) >= 8, sentence
    state = run.run(composed(*overrides), overrides)
    (folder,) = results.glob("single/runs/*")
    assert state == "complete", f"{' '.join(overrides)}: {status(folder)['reason']}"
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(math.isfinite(number) for row in rows for number in row.values()), overrides
    assert all("gradient/norm" in row and row["tokens/generated"] > 0 for row in rows[1:])
