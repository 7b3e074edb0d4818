"""Faults reported in public threads about other trainers, with the input of each report and the right value.

Here are those whose home is no single room; most others stand with their room, and the docstrings name the thread.
"""

import math

import pytest
import torch
from composing import composed
from objective import build, config
from test_grpo import evaluate, from_table

from ablations import grpo, identity, measure, rollout
from ablations.build import plain
from ablations.knobs.tokens import Masks
from ablations.oracles import runs
from ablations.policy.tabular import GeometricStop, TwoClass
from ablations.run import HEADLINE
from ablations.state import State, frozen
from ablations.tasks.tabular import Table

TWO_GROUPS = torch.arange(2).repeat_interleave(4)
DEAD = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0], dtype=torch.float64)


def knobs(**choice):
    return build(config(entropy="none", **choice))


def trained(policy, choice, right=("c", "d"), *, prompts=2, group_size=4, steps=2, lr=0.5, **settings) -> list[dict]:
    """Rows of a run of the training loop on a table; right answers begin with one of the letters."""
    collect = runs.sampling(Table(len(policy.start), right), prompts=prompts, group_size=group_size, max_new_tokens=8)
    return list(runs.trained(policy, choice, collect, steps=steps, lr=lr, **settings))


def geometric() -> GeometricStop:
    """Two prompts, answers of one to eight tokens."""
    return GeometricStop([0.4, 0.7], [0.2, 0.4])


def untimed(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if not name.startswith("seconds/")} for row in rows]


# --- loss and advantages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["token_mean", "sequence_mean", "group_token_mean", "constant"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_accumulation_never_divides_again_and_every_update_has_its_own_denominator(option, minibatches):
    """ms-swift#10117, trl#6024: half the gradient with two pieces per update, and with four pieces for two updates."""
    whole, *others = (
        untimed(trained(geometric(), knobs(aggregate=option), minibatches=minibatches, tokens_per_micro_batch=tokens))
        for tokens in (10_000, 40, 17, 9, 1)
    )
    assert whole[1]["gradient/norm"] > 0
    for other in others:
        for mine, theirs in zip(whole, other, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-9, abs=1e-12)


def test_the_constant_length_is_the_configured_one_and_stays_with_the_run():
    """verl#990, trl#3256: dividing by a width of the batch; and a record that does not say by what was divided."""
    whole = plain(composed("aggregate=constant"))
    assert whole["aggregate"]["length"] == whole["rollout"]["max_new_tokens"] == 36
    other = plain(composed("aggregate=constant", "aggregate.length=30"))
    assert identity.config_hash(whole) != identity.config_hash(other)


def test_two_groups_with_the_same_prompt_are_two_groups():
    """flow_grpo#46, slime#2062: groups told by the text of their prompt."""
    policy = TwoClass([0.5])
    state = State(policy, frozen(policy), None, None, knobs(scale="none"), 0)
    drawn = rollout.collect(state, Table(1, "b"), prompts=2, group_size=2, max_new_tokens=1, temperature=1.0)
    assert drawn.tensors["group"].tolist() == [0, 0, 1, 1]
    assert len({problem.prompt for problem in drawn.tensors["problems"]}) == 1
    batch = from_table([1.0, 0.0, 10.0, 9.0], [1, 1, 1, 1], group=drawn.tensors["group"].tolist())
    made = grpo.advantages(batch, knobs(scale="none"), 0.0)["advantage"]
    assert made.tolist() == [0.5, -0.5, 0.5, -0.5]


def test_a_batch_std_leaves_dead_groups_dead_and_counted():
    """trl#3991: one tensor for scaling and for the share of dead groups. [1,1,1,1] and [0,0,0,0]."""
    batch = from_table(DEAD.tolist(), [1] * 8, group=TWO_GROUPS.tolist())
    assert not grpo.advantages(batch, knobs(scale="batch_std"), 0.0)["advantage"].any()
    row = metrics(rewards=DEAD)
    assert row["groups/zero_advantage"] == 1.0 and row["groups/all_right"] == row["groups/all_wrong"] == 0.5


def test_scaling_by_batch_and_by_group_differ():
    """trl#6365, trl#7068: [1,0] and [3,1]."""
    batch = from_table([1.0, 0.0, 3.0, 1.0], [1] * 4, group=[0, 0, 1, 1])
    by = {o: grpo.advantages(batch, knobs(scale=o), 0.0)["advantage"] for o in ("group_std", "batch_std")}
    torch.testing.assert_close(by["group_std"].abs(), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-5)
    assert by["batch_std"].abs().unique().numel() == 2


def test_without_a_kl_the_reference_is_never_asked():
    """TinyZero#67, verl#211: a reference that costs memory and time for nothing."""

    class Absent:
        def parameters(self):
            return []

        def token_logp(self, *_, **__):
            raise AssertionError("the reference was asked")

    rows = trained(geometric(), knobs(placement="none"), reference=Absent(), beta=0.0)
    assert "kl/k3" not in rows[-1]
    with pytest.raises(AssertionError, match="was asked"):
        trained(geometric(), knobs(), reference=Absent(), beta=0.1)


def test_a_kl_that_is_the_same_for_a_whole_group_cancels_in_its_mean():
    """OpenRLHF#768: beta .1, k1 of .2 on each of 5 tokens of both answers."""
    batch = from_table([1.0, 0.0], [5, 5])
    batch["logp_ref"] = torch.full((2, 5), -0.2, dtype=torch.float64)
    made = grpo.advantages(batch, knobs(kl="k1", placement="reward_before_baseline", scale="none"), 0.1)
    torch.testing.assert_close(made["rewards"], torch.tensor([0.9, -0.1], dtype=torch.float64))
    torch.testing.assert_close(made["advantage"], torch.tensor([0.5, -0.5], dtype=torch.float64))


def test_with_advantages_of_0_the_kl_alone_trains_and_falls():
    """Flow-Factory#122: a KL that is logged without a gradient grows whatever beta is. Every answer is right here."""
    policy, reference = TwoClass([0.3]), TwoClass([0.7])
    rows = trained(policy, knobs(), ("a", "b"), group_size=16, reference=reference, beta=1e3, lr=1e-4, steps=20)
    assert rows[1]["gradient/norm"] > 0 and rows[-1]["kl/k3"] < rows[1]["kl/k3"] / 2
    policy = TwoClass([0.3])
    assert trained(policy, knobs(), ("a", "b"), reference=TwoClass([0.7]), beta=0.0)[1]["gradient/norm"] == 0


def test_the_kl_is_0_at_the_start_and_again_after_each_synchronisation():
    """trl#3108, trl#4912: a reference that is asked to follow and never does; or that is the base model instead of the
    policy that training started from."""
    policy = TwoClass([0.3, 0.6])
    rows = trained(policy, knobs(), ("b",), beta=0.04, lr=5.0, steps=5, sync_every=2, sync_mix=1.0)
    kl = [row["kl/k3"] for row in rows[1:]]
    assert kl[0] == kl[2] == kl[4] == 0 and kl[1] > 0 and kl[3] > 0


def test_where_all_groups_are_dead_the_line_of_a_run_says_why_nothing_moves():
    """open-r1#239, trl#3452: "the loss is 0, is it broken?" Reward, dead groups and gradient norm come first."""
    assert list(HEADLINE.values())[:3] == ["reward/mean", "groups/zero_advantage", "gradient/norm"]
    row = trained(TwoClass([0.5]), knobs(), ("a", "b"))[1]
    assert row["reward/mean"] == 1 and row["groups/zero_advantage"] == 1 and row["gradient/norm"] == 0


# --- metrics ---------------------------------------------------------------------------------------------------------


def metrics(*, rewards=None, lengths=None, ended=None, correct=None, group=None) -> dict[str, float]:
    rewards = torch.zeros(len(lengths)) if rewards is None else rewards
    n = len(rewards)
    return measure.rollout_metrics(
        lengths=torch.ones(n) if lengths is None else lengths,
        ended=torch.ones(n, dtype=torch.bool) if ended is None else ended,
        correct=rewards if correct is None else correct,
        fillers=torch.zeros(n),
        rewards=rewards,
        group=torch.arange(n) // 4 if group is None else group,
    )


def seen(**changes) -> dict[str, float]:
    """Metrics of an update batch of one part."""
    batch = {"part_names": ["correctness"]} | changes
    batch["parts"] = batch["rewards"][:, None]
    return measure.batch_metrics({"logp_sampler": -batch["entropies"], **batch})


def test_an_unscored_answer_is_counted_and_in_no_mean():
    """trl#5902, ms-swift#8123: [1, None, 0, 1]."""
    rewards, ones = torch.tensor([1.0, math.nan, 0.0, 1.0]), torch.ones(4, 1)
    row = seen(rewards=rewards, entropies=ones, mask=ones.bool())
    assert row["reward/mean"] == row["reward/part/correctness"] == pytest.approx(2 / 3)
    row = metrics(rewards=rewards)
    assert row["reward/unscored"] == 1 and row["accuracy/train"] == pytest.approx(2 / 3)
    assert not any(math.isnan(value) for value in row.values())


def test_the_entropy_is_one_sum_over_one_count():
    """verl#4711, trl#7012: 3 tokens of 1.0 and one of 5.0 in two micro-batches are 2.0 on average, and not 3.0."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    entropies = torch.tensor([[1.0, 1.0, 1.0], [5.0, 7.0, math.nan]])
    row = seen(rewards=torch.zeros(2), entropies=entropies, mask=mask)
    assert row["entropy/mean"] == row["surprisal/mean"] == 2.0


def test_no_metric_of_an_update_depends_on_the_micro_batches():
    """verl#4294, trl#7047: a loss that falls fourfold when the micro-batch goes from 8 to 2."""
    runs_ = [
        untimed(trained(geometric(), knobs(), beta=0.2, epochs=2, lr=5.0, tokens_per_micro_batch=n))
        for n in (10_000, 17, 9, 1)
    ]
    names = {"loss/total", "loss/policy", "loss/kl", "clip/outside", "clip/binding_high", "ratio/max", "kl/k3"}
    assert names <= set(runs_[0][2]) and runs_[0][2]["clip/outside"] > 0
    for other in runs_[1:]:
        for mine, theirs in zip(runs_[0], other, strict=True):
            assert theirs == pytest.approx(mine, rel=1e-9, abs=1e-12)


def test_pooled_and_within_group_std_have_two_names():
    """trl#3857, ms-swift#3877: "the std is 5 but the loss is 0". [1,1,1,1] and [0,0,0,0]."""
    row = metrics(rewards=DEAD)
    assert row["reward/std_pooled"] == pytest.approx(0.5345, abs=5e-5)
    assert row["reward/std_within_group"] == 0.0 and row["groups/zero_advantage"] == 1.0


def test_lengths_are_of_the_answers_whatever_the_loss_leaves_out():
    """trl#3476, trl#4976: 10 tokens, ended, and 50, cut. Read from the loss mask the minimum was 0 and the mean 5."""
    row = metrics(lengths=torch.tensor([10, 50]), ended=torch.tensor([True, False]))
    assert (row["length/mean"], row["length/min"], row["length/max"]) == (30, 10, 50)
    assert row["length/truncated_share"] == 0.5 and row["length/ended"] == 10
    cut = trained(geometric(), knobs(tokens="not_truncated"), steps=1)[1]
    assert cut["length/max"] == 8 and cut["length/truncated_share"] > 0
    assert cut["length/mean"] == trained(geometric(), knobs(), steps=1)[1]["length/mean"]


def test_a_clip_binds_on_the_side_of_the_advantage_and_is_counted_there():
    """trl#3120, trl#3757: eps .2 and (A, ratio) of (1, 1.5), (1, .5), (-1, 1.5), (-1, .5)."""
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    ratio = torch.tensor([[1.5, 0.5, 1.5, 0.5]], dtype=torch.float64)
    mask = torch.ones(1, 4, dtype=torch.bool)
    choice = knobs()
    tally = measure.UpdateTally(choice.surrogate)
    batch = {"masks": Masks(*[mask] * 4), "advantages": advantages, "logp_old": torch.zeros(1, 4)}
    tally.add(torch.zeros(()), {"ratio": ratio}, batch, ratio.log())
    tally.close(0.0, 0.0)
    row = tally.metrics()
    assert row["clip/binding_low"] + row["clip/binding_high"] == 0.5 and row["clip/outside"] == 1.0
    objective = -choice.surrogate(ratio=ratio, advantages=advantages, mask=mask)
    assert objective.tolist() == [pytest.approx([1.2, 0.5, -1.5, -0.8])]


def test_with_one_update_per_rollout_no_clip_is_ever_counted():
    """trl#3144, minimind#775: a clip fraction of 0 is no fault there, it is by construction."""
    for row in trained(geometric(), knobs(), lr=5.0, steps=3)[1:]:
        assert row["clip/outside"] == row["clip/binding_low"] == row["clip/binding_high"] == 0
        assert row["ratio/min"] == pytest.approx(1, abs=1e-10) == row["ratio/max"]


def test_the_share_of_dead_groups_is_shown_beside_the_share_to_expect():
    """CoursIA#10603: pass rate .18 and groups of 2 leave 30 % of them to learn from."""
    correct = (torch.rand(40_000, generator=torch.Generator().manual_seed(0)) < 0.18).double()
    row = metrics(rewards=correct, group=torch.arange(40_000) // 2)
    assert 1 - row["groups/zero_advantage"] == pytest.approx(0.295, abs=0.01)
    assert row["groups/zero_advantage_predicted"] == pytest.approx(0.705, abs=0.01)


def test_the_share_to_expect_is_that_of_the_reward_and_not_of_the_right_answers():
    """A coin as reward: groups of 8 agree with probability 2 / 2^8, however many answers are right."""
    coin = torch.randint(0, 2, (40_000,), generator=torch.Generator().manual_seed(0)).double()
    row = metrics(rewards=coin, correct=torch.ones(40_000), group=torch.arange(40_000) // 8)
    assert row["groups/zero_advantage_predicted"] == pytest.approx(2 / 2**8, abs=0.003)
    several = metrics(rewards=coin + torch.arange(40_000) % 3, group=torch.arange(40_000) // 8)
    assert "groups/zero_advantage_predicted" not in several


def test_masked_infinities_reach_neither_the_loss_nor_the_gradient():
    """trl#3015, OpenRLHF#1335: 0 * inf at padding."""
    batch = from_table([1.0, 0.0], [1, 3])
    for name in ("logp_old", "logp_sampler", "logp_ref", "new"):
        batch[name] = torch.where(batch["mask"], batch[name], -math.inf)
    value, gradient, _ = evaluate(batch, knobs(), 0.1)
    assert math.isfinite(value) and torch.isfinite(gradient).all() and gradient.abs().sum() > 0
