"""Where and how exactly the policy computes: what 16 bits cost is measured, logged and corrected for."""

import pytest
import torch
from composing import composed, knobs
from test_update import made, trained

from ablations import build, grpo, identity
from ablations.contradictions import Refused, refuse
from ablations.knobs import correction
from ablations.policy import generic, llama


def halved(monkeypatch, engine):
    """made(...) with matrix products in bfloat16, through the fast forward or transformers' own."""
    monkeypatch.setattr(llama, "supports", lambda model: engine == "llama")

    def make(*arguments, **settings):
        monkeypatch.setattr("test_update.scratch", lambda *a, **k: scratch(*a, **k).float().placed("cpu", "bfloat16"))
        monkeypatch.setattr(torch.nn.Module, "double", torch.nn.Module.float)
        return made(*arguments, **settings)

    from ablations.policy.load import scratch

    monkeypatch.setattr("test_update.made", make)
    return make


def test_sampler_and_trainer_agree_in_float32_and_their_difference_is_logged():
    _, row, _, _ = trained(knobs())
    assert 0 <= row["mismatch/mean"] <= row["mismatch/max"] < 1e-6


@pytest.mark.parametrize("engine", ["llama", "generic"])
def test_in_bfloat16_they_differ_and_the_log_says_by_how_much(engine, monkeypatch):
    state, drawn = halved(monkeypatch, engine)(knobs())
    assert state.policy.engine is (llama if engine == "llama" else generic)
    batch = grpo.prepare(drawn, state, 0.0, 1.0, False, False, 40)
    logp, _ = grpo._logp(state.policy, batch, 1.0)
    apart = (logp - batch["logp_sampler"])[batch["mask"]].abs()
    row = grpo.update(batch, state, 0.0, 1.0, 1, 1, 10_000, lambda parameters: 1.0)
    assert 1e-4 < row["mismatch/mean"] < row["mismatch/max"] < 1
    assert row["mismatch/max"] <= 1.05 * apart.max() and logp.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in state.policy.parameters())


def test_truncated_importance_weights_take_the_difference_out_up_to_their_cap(monkeypatch):
    state, drawn = halved(monkeypatch, "llama")(knobs())
    batch = grpo.prepare(drawn, state, 0.0, 1.0, True, False, 10_000)  # log-probabilities recomputed by the trainer
    weight = correction.truncated_token_ratio(batch["logp_old"], batch["logp_sampler"], batch["mask"], cap=1.001)
    unlike = torch.exp(batch["logp_old"] - batch["logp_sampler"])[batch["mask"]]
    assert (unlike > 1.001).any() and (unlike < 1).any()
    torch.testing.assert_close(weight[batch["mask"]], unlike.clamp(max=1.001))


def test_a_run_computes_where_and_how_its_config_says_and_the_place_is_no_part_of_its_identity():
    one, other = (build.plain(composed(f"device={device}")) for device in ("cpu", "auto"))
    assert identity.config_hash(one) == identity.config_hash(other)
    assert identity.config_hash(build.plain(composed("precision=bfloat16"))) != identity.config_hash(one)


@pytest.mark.parametrize("change", ["device=gpu", "device=cuda", "precision=float16"])
def test_a_place_that_is_not_there_is_refused_in_a_sentence(change, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Refused, match=r"Set |set "):
        refuse(build.plain(composed(change)))
