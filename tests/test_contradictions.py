"""Bad input: one sentence that says what was given, what is allowed and what to do, before any model loads."""

import re

import pytest
from composing import composed

from ablations import build
from ablations.contradictions import Refused, refuse, refuse_unwritable


def refusal(*overrides: str) -> str:
    cfg = composed(*overrides)
    with pytest.raises(Refused) as caught:
        refuse(build.plain(cfg))
        build.knobs(cfg)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["rollout.group_size=1"],
            "rollout.group_size is 1; baseline=group_mean needs at least 2 .* Set rollout.group_size=2",
        ),
        (["rollout.group_size=1", "baseline=leave_one_out"], "baseline=leave_one_out needs at least 2"),
        (["rollout.group_size=1", "baseline=batch_mean"], "scale=group_std needs at least 2"),
        (["beta=0.1", "placement=none"], "beta is 0.1 but placement is none, .* set placement=loss .* or beta=0"),
        (["surrogate.eps_low=-0.1"], "surrogate.eps_low is -0.1; it must be 0 or more"),
        (["scale.eps=-1e-6"], "scale.eps is -1e-06; it must be 0 or more"),
        (["seed=1.0"], "seed is 1.0; it must be a whole number"),
        (["seed=null"], "seed is None; it must be a whole number"),
        (["base.seed=1.0"], "base.seed is 1.0; it must be a whole number"),
        (["base.folder=/nowhere/at/all"], "base.folder is /nowhere/at/all, and there is no such folder"),
        (["rollout.top_p=0.9"], "rollout.top_p is 0.9 .* training samples from the full distribution"),
        (["rollout.top_k=50"], "rollout.top_k is 50; training samples from the full distribution"),
        (["rollout.temperature=0"], "rollout.temperature is 0; training needs a temperature above 0"),
        (["base=none"], "base=none starts from the model as it is, but this model is untrained"),
        (["model=smollm2_135m", "base=slips"], "base=slips trains a model from nothing, .* choose base=none"),
        (
            ["adapter=lora", "reference=synchronised", "beta=0.1"],
            "whose reference is the model with the adapter off and cannot move; choose reference=fixed",
        ),
        (["reference=synchronised"], "reference.sync_every is 20 but no KL is used"),
        (
            ["reference=synchronised", "beta=0.1", "placement=loss_to_old"],
            "sync_every is 20 but the KL is to the policy before the update",
        ),
        (
            ["beta=0.1", "placement=reward_before_baseline", "credit=process"],
            "credit=process takes the steps' rewards .* no KL would be used; set placement=loss",
        ),
        (["update.minibatches=1000"], "update.minibatches is 1000, but a rollout has 128 answers"),
        (["steps=ten"], "steps is ten; it must be 0 or more. Give a number"),
        (["beta=x"], "beta is x; it must be 0 or more. Give a number"),
        (["optimizer.lr=abc"], "optimizer.lr is abc; it must be 0 or more. Give a number"),
        (["optimizer.lr=-1"], "optimizer.lr is -1; it must be 0 or more"),
        (["steps=2.5"], "steps is 2.5; it must be a whole number"),
        (["seed=a"], "seed is a; it must be a whole number"),
        (["rollout.temperature=x"], "rollout.temperature is x; training needs a temperature above 0"),
        (["rollout.prompts=0"], "rollout.prompts is 0; it must be a whole number of at least 1"),
        (
            ["beta=.1", "placement=reward_before_baseline", "combine=normalise_each_then_sum"],
            "acts on one total reward",
        ),
        (["transform=nsr", "combine=normalise_each_then_sum"], "transform=nsr acts on one total reward"),
        (["baseline=running_mean", "combine=normalise_each_then_sum"], "baseline=running_mean acts on one total"),
        (["+surrogate.epsilon=0.2"], "surrogate: .*ppo_clip was given .*epsilon.*; it takes .*eps_low"),
        (["+transform.nonsense=1"], "transform: .*was given nonsense"),
    ],
)
def test_a_contradiction_is_refused_in_one_sentence(overrides, sentence):
    assert re.search(sentence, refusal(*overrides)), refusal(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["rollout.group_size=1", "baseline=batch_mean", "scale=none"],
        ["beta=0.1"],
        ["beta=0.1", "reference=synchronised"],
        ["algorithm=grpo"],
        ["algorithm=dr_grpo"],
    ],
)
def test_what_makes_sense_is_not_refused(overrides):
    refuse(build.plain(composed(*overrides)))


def test_a_results_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="results folder .* cannot be written .* name another in ABLATIONS_RESULTS"):
        refuse_unwritable(str(tmp_path / "file" / "results"))
