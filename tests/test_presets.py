"""Published algorithms as presets: each computes the published loss and gradient, and none computes another's."""

import functools
import itertools

import pytest
import torch
from composing import composed, options_of
from omegaconf import OmegaConf
from published import FORMULAS, LENGTH, Answer

from ablations import build, grpo
from ablations.build import CONF
from ablations.contradictions import refuse
from ablations.knobs.call import call
from ablations.rollout import reward_parts
from ablations.tasks.problem import Grade
from ablations.vectors import check, vocabulary

PRESETS = options_of("algorithm")
THE_SAME = {frozenset({"grpo", "deepseek_math"}): "two names of one objective"}

# One prompt per line: what the answers are worth, and their lengths (0 stands for an answer cut off at 36 tokens).
PROMPTS = [
    ([1, 0, 0, 1], [3, 0, 7, 12]),
    ([1, 1, 1, 1], [5, 31, 2, 9]),
    ([0, 0, 0, 0], [6, 4, 0, 33]),
    ([0, 0, 0, 1], [10, 33, 4, 8]),
    ([1, 1, 0, 1], [2, 6, 11, 35]),
    ([0, 0, 0, 0], [3, 5, 8, 1]),
]
REAL = [[0.7, -0.3, 0.2, 1.4], [1.0] * 4, [0.0] * 4, [0.1, -0.9, -0.6, 0.5], [0.9, 0.8, 0.0, 1.1], [0.0] * 4]
SPLITS = [[0, 1, 2, 3, 4, 5, 6], [7], [23, 8, 9], [*range(10, 23)]]


@functools.cache
def cfg_of(preset: str):
    return composed(f"algorithm={preset}")


@functools.cache
def rollout(real: bool) -> dict:
    """Six prompts with four answers each, off policy: single tokens far outside every band, answers inside those of
    GSPO and LUSPO, prompts whose answers agree, answers that were cut off although their text is right."""
    generator = torch.Generator().manual_seed(5)
    noise = lambda scale: scale * torch.randn(24, LENGTH, generator=generator, dtype=torch.float64)  # noqa: E731
    worth, lengths = (torch.tensor([x for prompt in PROMPTS for x in prompt[k]]) for k in (0, 1))
    truncated, lengths = lengths == 0, torch.where(lengths == 0, LENGTH, lengths)
    old = -1 - noise(0.5).abs()
    new = old + noise(0.25)
    for row, token, gap in [(0, 1, 2.7), (2, 3, -1.9), (3, 4, 1.8), (12, 2, -2.2), (13, 1, 2.5), (16, 0, -0.9)]:
        old[row, token], new[row, token] = -3.5, -3.5 + gap
    for row, gap in [(3, 1e-4), (15, -1e-4), (14, 1e-3), (18, -1.5e-3), (19, 2.2e-3)]:
        new[row] = old[row] + gap
    right = torch.where(truncated, 0, worth).double()
    if real:
        right = torch.where(truncated, 0.0, torch.tensor(REAL, dtype=torch.float64).flatten())
    return {
        "mask": torch.arange(LENGTH) < lengths[:, None],
        "lengths": lengths,
        "truncated": truncated,
        "group": torch.arange(6).repeat_interleave(4),
        "new": new,
        "logp_old": old,
        "logp_sampler": old,
        "logp_ref": old + noise(0.3),
        "entropies": noise(0.4).abs(),
        "right": right,
        "formed": torch.tensor([1, 1, 0, 0, 1] * 5)[:24].double(),
        # a text may be right and cut off; correctness then earns nothing
        "correct": (worth == 1) | truncated,
    }


@functools.cache
def measured(preset: str, real: bool = False, split: bool = False) -> tuple[float, torch.Tensor]:
    """Loss and gradient (24, 36) through the code that trains, in a second rollout with the same answers, so that
    what remembers the first one has something to remember."""
    cfg, batch = cfg_of(preset), dict(rollout(real))
    knobs, beta = build.knobs(cfg), cfg["beta"]
    grades = [
        Grade(correct=bool(c), format=bool(f), answer=None, chain=False, any_answer=False, fillers=0)
        for c, f in zip(batch["correct"], batch["formed"], strict=True)
    ]
    parts, weights = reward_parts(knobs.reward, {**batch, "grades": grades, "generator": None})
    assert list(knobs.reward)[0] == "correctness"
    if real:
        parts[:, 0] = batch["right"]
    batch |= {"parts": parts, "part_weights": weights}
    total = grpo.total_rewards(parts, weights, knobs.transform, batch["truncated"])
    batch["kept"] = call(knobs.keep.rule, {"rewards": total, "group": batch["group"]})
    rows = batch["kept"].nonzero()[:, 0] if knobs.keep.refill_rounds else torch.arange(24)
    batch = grpo.select(batch, rows)
    batch["counted"] = torch.ones_like(batch["kept"]) if knobs.keep.dropped_rows_count else batch["kept"]
    for _ in range(2):
        made = batch | grpo.advantages(batch, knobs, beta)
        knobs.entropy.update(0.1)
    whole = rollout(real)["new"].clone().requires_grad_()
    new = whole[rows]
    made = grpo.select_across(made, knobs, {"logp": lambda: new.detach()})
    weight = grpo.weights(made["masks"], made["counted"], made["group"], knobs)
    loss = 0.0
    for piece in SPLITS if split else [range(24)]:
        here = torch.isin(rows, torch.tensor(list(piece))).nonzero()[:, 0]
        micro, cut = grpo.select(made, here), grpo.Weights(*(w[here] for w in weight))
        loss = loss + grpo.loss(new[here], made["entropies"][here], micro, knobs, cut, beta)[0]
    (gradient,) = torch.autograd.grad(loss, whole)
    return loss.item(), gradient


def expected(preset: str, real: bool) -> tuple[float, torch.Tensor]:
    """The same by the formula in published.py."""
    batch = rollout(real)
    new = batch["new"].clone().requires_grad_()
    answers = [
        Answer(
            group=int(batch["group"][i]),
            right=float(batch["right"][i]),
            formed=float(batch["formed"][i]),
            truncated=bool(batch["truncated"][i]),
            new=list(new[i, :n]),
            old=batch["logp_old"][i, :n].tolist(),
            ref=batch["logp_ref"][i, :n].tolist(),
            entropy=batch["entropies"][i, :n].tolist(),
        )
        for i, n in enumerate(batch["lengths"].tolist())
    ]
    loss = FORMULAS[preset](answers)
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.item(), gradient


@pytest.mark.parametrize("real", [False, True], ids=["graded", "real rewards"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_its_published_formula_in_loss_and_gradient(preset, real):
    loss, gradient = measured(preset, real)
    right_loss, right_gradient = expected(preset, real)
    assert loss == pytest.approx(right_loss, rel=1e-11, abs=1e-12)
    torch.testing.assert_close(gradient, right_gradient, rtol=1e-10, atol=1e-13)
    assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_does_not_depend_on_micro_batches(preset):
    (loss, gradient), (cut_loss, cut_gradient) = measured(preset), measured(preset, split=True)
    assert cut_loss == pytest.approx(loss, rel=1e-11, abs=1e-12)
    torch.testing.assert_close(cut_gradient, gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.slow
def test_no_two_presets_have_the_same_gradient_but_where_they_are_the_same():
    """Otherwise one could stand under the other's name and pass its test."""
    for one, other in itertools.combinations(PRESETS, 2):
        gaps = [(measured(one, real)[1] - measured(other, real)[1]).abs().max().item() for real in (False, True)]
        if frozenset({one, other}) in THE_SAME:
            assert max(gaps) == 0
        else:
            assert min(gaps) > 1e-6, f"{one} and {other} have the same gradient"


# --- what no loss of one rollout shows --------------------------------------------------------------------------------

UPDATES = {"deepseek_r1": (1, 16), "dapo": (1, 16), "cispo": (1, 16), "scale_rl": (1, 8), "lite_ppo": (1, 8)}
UPDATES |= {"rloo": (1, 2), "rlvr_tulu3": (4, 1)}
UPDATES |= dict.fromkeys(("gspo", "cispo_verl", "gmpo", "sapo", "vespo", "luspo", "kimi_k15", "topr"), (1, 4))
UPDATES |= dict.fromkeys(("psr", "nsr", "w_reinforce"), (1, 4))
REFILLED = {"dapo", "cispo"}
RETIRED = {"scale_rl": 0.9}
SYNCHRONISED = {"deepseek_r1": (25, 1.0)}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_composes_is_not_refused_and_sets_the_loop(preset):
    cfg = cfg_of(preset)
    refuse(build.plain(cfg))
    keep = build.knobs(cfg).keep
    assert (cfg["update"]["epochs"], cfg["update"]["minibatches"]) == UPDATES.get(preset, (1, 1))
    assert (keep.refill_rounds > 0) == (preset in REFILLED) and keep.retire_at == RETIRED.get(preset)
    assert (cfg["reference"]["sync_every"], cfg["reference"]["mix"]) == SYNCHRONISED.get(preset, (0, 1.0))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_names_every_room_and_every_number_has_its_place(preset):
    """So that nothing changes in it when a default does; and so that any room can still be replaced: settings of a
    room stand in its option, since settings in the preset would be added to whatever replaces the option."""
    node = OmegaConf.load(CONF / "algorithm" / f"{preset}.yaml")
    named = [key.removeprefix("override /").split("@")[-1] for entry in node.defaults for key in entry]
    assert sorted(named) == sorted([*grpo.Knobs._fields, "reference"])
    assert set(node) == {"defaults", "beta", "update"} and set(node["update"]) == {"epochs", "minibatches"}


def test_every_preset_has_a_formula_and_every_formula_a_preset():
    assert set(PRESETS) == set(FORMULAS)


def test_a_room_of_a_preset_can_be_replaced():
    cfg = composed("algorithm=gspo", "surrogate=cispo", "scale=batch_std", "beta=0.1", "placement=loss")
    refuse(build.plain(cfg))
    build.knobs(cfg)
    assert cfg["surrogate"]["upper"] == 1.2 and cfg["beta"] == 0.1 and cfg["update"]["minibatches"] == 4


# --- against the peers' own numbers -----------------------------------------------------------------------------------

TRL_STD = ["scale.ddof=1", "scale.eps=1e-4"]
REFERENCE = [
    ("grpo", "course_grpo_default", []),
    ("grpo", "course_grpo_empty", ["beta=0.2"]),
    ("grpo", "trl_loss_grpo_kl_k3", [*TRL_STD, "beta=0.1"]),
    ("deepseek_math", "course_grpo_default", []),
    ("dr_grpo", "oat_loss_drgrpo", ["aggregate.length=16"]),
    ("dapo", "trl_loss_dapo_clip_higher", TRL_STD),
    ("bnpo", "trl_loss_bnpo", []),
    ("rloo", "trl_rloo_adv_beta0.1_norm0", ["beta=0.1"]),
    ("rloo", "trl_rloo_loss", ["ratio=sequence_sum", "surrogate=ppo_clip", "aggregate=sequence_mean", "beta=0"]),
    ("reinforce_pp", "verl_adv_reinforce_pp", ["beta=0"]),
    ("reinforce_pp", "verl_loss_vanilla_token-mean", ["beta=0", "surrogate.dual_clip=3"]),
    ("reinforce_pp_baseline", "verl_adv_rfpp_baseline", []),
    ("lite_ppo", "trl_adv_scale_batch", []),
    ("gspo", "trl_loss_seqlevel_grpo", [*TRL_STD, "surrogate.eps_low=0.2", "surrogate.eps_high=0.2"]),
    ("cispo", "trl_loss_cispo_epshigh5.0", TRL_STD),
    ("cispo_trl", "trl_loss_cispo_epshigh0.2", []),
    ("cispo_verl", "verl_loss_cispo_lo0.2_hi0.2", []),
    ("cispo_open_instruct", "openinstruct_cispo", ["beta=0"]),
    ("cispo_roll", "roll_pg_cispo", ["aggregate.rows=non_empty"]),
    ("gmpo", "trl_gmpo", [*TRL_STD, "beta=0.1", "placement=loss"]),
    ("sapo", "trl_loss_sapo", TRL_STD),
    ("vespo", "trl_loss_vespo", ["ratio.clamp=[-18.420680743952367,20]"]),
    ("luspo", "trl_loss_seqlevel_luspo", [*TRL_STD, "surrogate.eps_low=0.2", "surrogate.eps_high=0.2"]),
    ("opo", "verl_adv_opo", []),
    ("opo", "verl_loss_gpg", []),
    ("gpg", "verl_adv_gpg", []),
    ("gpg", "verl_loss_gpg", []),
    ("kimi_k15", "roll_pg_kimi15", ["aggregate=sequence_mean", "aggregate.rows=non_empty"]),
    ("topr", "roll_pg_topr", ["ratio=token", "aggregate=sequence_mean", "aggregate.rows=non_empty"]),
]


@pytest.mark.parametrize(("preset", "case", "changes"), REFERENCE, ids=[f"{p}-{c}" for p, c, _ in REFERENCE])
def test_a_preset_gives_the_numbers_of_a_published_trainer(preset, case, changes, monkeypatch):
    """The case's inputs, with the preset's config in place of the case's options; `changes` are what that trainer does
    otherwise than the preset, or the constants that the case was computed with."""
    options = [change for change in changes if "." not in change and not change.startswith("beta")]
    settings = OmegaConf.from_dotlist([change for change in changes if change not in options])
    cfg = OmegaConf.merge(composed(f"algorithm={preset}", *options) if options else cfg_of(preset), settings)
    for name in ("for_loss", "for_advantages"):
        read = getattr(vocabulary, name)
        monkeypatch.setattr(
            vocabulary,
            name,
            lambda options, read=read: read(options)._replace(knobs=build.knobs(cfg), beta=cfg["beta"]),
        )
    verdict = check(CONF.parent / "tests" / "reference" / f"{case}.json")
    assert verdict.passed, str(verdict)
