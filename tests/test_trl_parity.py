"""End to end against TRL: its GRPOTrainer trains, and the loop here, given the same rollouts, ends at the same weights.

TRL samples, grades and trains; what it sampled and its rewards are recorded, and `grpo.train` does everything after
that (advantages, old and reference log-probabilities, loss, gradient, clipping, AdamW) from the same first weights.
Both sides' settings are written out below, so that no default of either decides.
"""

import functools

import pytest
import torch
from composing import composed
from hydra.utils import instantiate

from ablations import build, grpo
from ablations.policy.language import LanguagePolicy
from ablations.policy.load import scratch
from ablations.rollout import Rollout
from ablations.state import State, frozen
from ablations.tasks.chain_sum import ALPHABET, END, PAD, UNKNOWN

pytestmark = [
    pytest.mark.extra,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),  # TRL's use of an older name
]

STEPS, GROUP, LIMIT = 5, 4, 8  # optimiser steps, answers per prompt, tokens of the longest answer
PROMPTS = ["7a5=", "1a2b3=", "9a9=", "4a4b4c4=", "8a1=", "6a2b2="]  # three per rollout, of unequal lengths
SIZES = dict(hidden=16, layers=2, heads=2, key_value_heads=1, feed_forward=24, rope_theta=1000.0, norm_eps=1e-6)
SIZES |= dict(initial_std=0.3, max_positions=64)  # wide weights: distributions far from uniform

# TRL's settings, and the same in this project's words. Three prompts of four answers: TRL sees them in four
# micro-batches of three rows, which cut through the groups, here five, five and two rows pass at a time.
TRL = dict(num_generations=GROUP, max_completion_length=LIMIT, per_device_train_batch_size=3)
TRL |= dict(gradient_accumulation_steps=4, max_steps=STEPS, temperature=1.0, top_p=1.0, top_k=0)
TRL |= dict(optim="adamw_torch", learning_rate=1e-3, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8)
TRL |= dict(weight_decay=0.0, max_grad_norm=2.5, lr_scheduler_type="constant", epsilon=0.2, seed=1)
HERE = [f"rollout.max_new_tokens={LIMIT}", "rollout.temperature=1.0", "update.tokens_per_micro_batch=60"]
HERE += ["optimizer=adamw", "optimizer.lr=1e-3", "optimizer.betas=[0.9,0.95]", "optimizer.eps=1e-8"]
HERE += ["optimizer.weight_decay=0.0", "clipping=norm", "clipping.max_norm=2.5", "schedule=constant"]

ALGORITHMS = {
    "grpo": (
        dict(loss_type="grpo", scale_rewards="group", epsilon_high=0.2),
        ["algorithm=grpo", "scale=group_std", "scale.ddof=1", "scale.eps=1e-4"],
    ),
    "dr_grpo": (
        dict(loss_type="dr_grpo", scale_rewards="none", epsilon_high=0.2),
        ["algorithm=dr_grpo"],
    ),
    "dapo": (  # its loss and clip; TRL has no dynamic sampling, and the reward is the same for all three
        dict(loss_type="dapo", scale_rewards="group", epsilon_high=0.28),
        ["algorithm=dapo", "keep=all", "reward=correctness", "scale=group_std", "scale.ddof=1", "scale.eps=1e-4"],
    ),
}
IN_LOSS = ["beta=0.5", "placement=loss", "kl.log_ratio_clamp=null"]
KLS = {
    "no KL": (dict(beta=0.0), ["beta=0.0"]),
    "k3": (dict(beta=0.5, use_bias_correction_kl=False), ["kl=k3", *IN_LOSS]),
    "ratio k3": (dict(beta=0.5, use_bias_correction_kl=True), ["kl=ratio_k3", "kl.attached=true", *IN_LOSS]),
}
# Five rollouts with one optimiser step each, and one rollout with five, on which the ratio leaves 1 and the clip binds.
UPDATES = {"on policy": 1, "off policy": STEPS}
CASES = [(algorithm, kl, updates) for algorithm in ALGORITHMS for kl in KLS for updates in UPDATES]
TOLERANCE = 1e-6  # of a parameter; measured: 1e-8 to 5e-8, the rounding of TRL's log-probabilities to float32


@pytest.fixture(scope="module")
def peer():
    pytest.importorskip("trl", reason="TRL is not installed; pip install -c constraints.txt -e '.[trl]'")
    import trl_peer

    return trl_peer


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder with the weights that both sides start from."""
    folder = tmp_path_factory.mktemp("base")
    generator = torch.Generator().manual_seed(0)
    scratch(ALPHABET, end=END, pad=PAD, unknown=UNKNOWN, generator=generator, **SIZES).save(folder)
    return folder


@pytest.fixture(scope="module")
def recorded(peer, base, tmp_path_factory):
    """recorded(algorithm, kl, updates): what TRL did, once per case."""

    @functools.cache
    def record(algorithm, kl, updates):
        settings = TRL | ALGORITHMS[algorithm][0] | KLS[kl][0] | {"num_iterations": UPDATES[updates]}
        return peer.trained(base, PROMPTS, tmp_path_factory.mktemp("trl"), **settings)

    return record


def words(algorithm, kl, changed=()):
    """A case in this project's settings; where a group is changed, what was set inside its old option goes with it."""
    groups = {change.split("=")[0] for change in changed}
    every = [*HERE, *ALGORITHMS[algorithm][1], *KLS[kl][1]]
    return [word for word in every if word.split("=")[0].split(".")[0] not in groups] + list(changed)


def replayed(recording, base, overrides):
    """Train from `base` on the recorded rollouts -> parameters by name, and one row of metrics per rollout."""
    cfg = composed(*overrides)
    policy = LanguagePolicy.load(base).double()
    optimizer = instantiate(cfg.optimizer, _convert_="all")(policy.parameters())
    state = State(policy, frozen(policy), optimizer, instantiate(cfg.schedule)(optimizer), build.knobs(cfg), cfg.seed)
    rows = grpo.train(
        state,
        lambda state: Rollout(tensors(recording.rollouts[state.step - 1]), {}, []),
        lambda policy: {},
        steps=len(recording.rollouts),
        beta=cfg.beta,
        temperature=cfg.rollout.temperature,
        epochs=STEPS // len(recording.rollouts),
        minibatches=1,
        tokens_per_micro_batch=cfg["update"]["tokens_per_micro_batch"],
        clip=instantiate(cfg.clipping),
        recompute_logp=True,
        evaluate_every=0,
        measure_kl_every=0,
        sync_every=0,
        sync_mix=1.0,
    )
    rows = [row for row in rows if row["step"]]
    return dict(policy.model.named_parameters()), rows


def tensors(seen):
    """A recorded rollout as `ablations.rollout.collect` returns one. The old log-probabilities are recomputed, so the
    sampler's own, and the entropies, which the loss does not use, may be anything."""
    mask, rewards = seen["completion_mask"].bool(), seen["rewards"].double()
    rows, unused = len(rewards), torch.zeros(mask.shape, dtype=torch.float64)
    return {
        "prompt_ids": seen["prompt_ids"],
        "prompt_mask": seen["prompt_mask"].bool(),
        "ids": seen["completion_ids"],
        "mask": mask,
        "logp_sampler": unused,
        "entropies": unused,
        "lengths": mask.sum(1),
        "truncated": torch.zeros(rows, dtype=torch.bool),  # no setting here asks for it
        "group": torch.arange(rows) // GROUP,
        "parts": rewards[:, None],
        "part_weights": torch.ones(1, dtype=torch.float64),
        "part_names": ["reward"],
        "kept": torch.ones(rows, dtype=torch.bool),
    }


def gap(here, there) -> float:
    """The largest difference of any parameter."""
    assert here.keys() == there.keys()
    return max(float((here[name].detach() - there[name]).abs().max()) for name in there)


@pytest.mark.parametrize(("algorithm", "kl", "updates"), CASES)
def test_five_steps_end_at_the_weights_of_trl(recorded, base, algorithm, kl, updates):
    there = recorded(algorithm, kl, updates)
    here, rows = replayed(there, base, words(algorithm, kl))
    norms = torch.tensor(there.norms, dtype=torch.float64).view(len(rows), -1).mean(1)
    for row, norm in zip(rows, norms.tolist(), strict=True):  # before clipping: Adam would hide a rescaled loss
        assert row["gradient/norm"] == pytest.approx(norm, rel=1e-5), row["step"]
    assert gap(here, there.parameters) < TOLERANCE


# One setting wrong, in a case that depends on it: where every step has the same factor, Adam hides it.
WRONG = [
    ("grpo", "no KL", "off policy", ["scale.ddof=0"]),
    ("grpo", "no KL", "off policy", ["surrogate=unclipped_ratio"]),
    ("grpo", "no KL", "on policy", ["clipping=none"]),
    ("grpo", "k3", "on policy", ["aggregate=token_mean"]),
    ("grpo", "k3", "on policy", ["kl=ratio_k3"]),
    ("grpo", "ratio k3", "on policy", ["kl=ratio_k3_detached"]),
    ("grpo", "ratio k3", "off policy", ["kl=k3"]),
    ("dr_grpo", "no KL", "on policy", ["aggregate=sequence_mean"]),
    ("dr_grpo", "no KL", "off policy", ["scale=group_std"]),
    ("dapo", "no KL", "on policy", ["aggregate=sequence_mean"]),
    ("dapo", "no KL", "off policy", ["surrogate.eps_high=0.2"]),
]


@pytest.mark.parametrize(("algorithm", "kl", "updates", "wrong"), WRONG, ids=lambda value: str(value))
def test_one_wrong_setting_ends_far_from_the_weights_of_trl(recorded, base, algorithm, kl, updates, wrong):
    there = recorded(algorithm, kl, updates)
    here, _ = replayed(there, base, words(algorithm, kl, wrong))
    assert gap(here, there.parameters) > 100 * TOLERANCE


def test_the_recordings_reach_what_could_differ(recorded, base):
    """Uneven lengths, ended and cut answers, padded prompts, a norm clip that binds in some steps, ratios outside the
    band on both sides, and weights that move much further than the tolerance."""
    there = recorded("dapo", "no KL", "on policy")
    lengths = [rollout["completion_mask"].sum(1) for rollout in there.rollouts]
    assert len(lengths) == STEPS and all(len(each) == 3 * GROUP for each in lengths)
    assert all(each.min() < each.max() for each in lengths)
    end = ALPHABET.index(END)
    ended = torch.cat([(rollout["completion_ids"] == end).any(1) for rollout in there.rollouts])
    assert ended.any() and not ended.all()
    assert any(not rollout["prompt_mask"].all() for rollout in there.rollouts)
    assert min(there.norms) < TRL["max_grad_norm"] < max(there.norms)
    start = dict(LanguagePolicy.load(base).double().model.named_parameters())
    assert gap(start, there.parameters) > 1000 * TOLERANCE
    _, (row,) = replayed(recorded("dapo", "no KL", "off policy"), base, words("dapo", "no KL"))
    assert row["clip/binding_low"] > 0.05 and row["clip/binding_high"] > 0.05
