"""The optimiser step: what it leaves out changes nothing, and how it is cut into pieces does not either."""

import copy
import functools
import itertools
from types import SimpleNamespace

import pytest
import torch
from composing import knobs, options_of
from torch.nn.functional import rms_norm

from ablations import grpo, rollout
from ablations.knobs.call import call
from ablations.policy import layers, llama
from ablations.policy.load import scratch
from ablations.state import State, frozen
from ablations.tasks.chain_sum import ALPHABET, END, PAD, UNKNOWN, pose
from ablations.tasks.problem import Grade

PROBLEMS = [pose(operands) for operands in ([7, 5], [1, 2, 3, 4, 5], [9, 9, 9], [3, 0])]
CORRECT = [*[True] * 4, True, False, False, True, *[False] * 4, True, True, False, True]  # two groups of four teach
SETTINGS = dict(hidden=32, layers=2, heads=4, key_value_heads=2, feed_forward=48, rope_theta=1000.0, norm_eps=1e-6)


@pytest.fixture(autouse=True)
def norms_in_float64(monkeypatch):
    """transformers' norm rounds to float32 in any model, and a rounding that flips would hide what is looked for."""
    for module in (layers, llama):
        monkeypatch.setattr(module, "norm", lambda n, x: rms_norm(x, x.shape[-1:], n.weight, n.variance_epsilon))


def made(choice, beta=0.0, correct=CORRECT, seed=0):
    """A float64 policy, its state and a rollout of four groups of four answers with the verdicts in `correct`."""
    signs = dict(end=END, pad=PAD, unknown=UNKNOWN, generator=torch.Generator().manual_seed(seed))
    policy = scratch(ALPHABET, **signs, **SETTINGS, initial_std=0.3, max_positions=64).double()
    descent = torch.optim.SGD(policy.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(descent, lambda step: 1.0)
    reference = frozen(policy)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.01)
    state = State(policy, reference, descent, schedule, choice, seed)
    settings = dict(max_new_tokens=12, temperature=1.0, generator=state.generators["sampling"])
    sample = policy.sample([problem.prompt for problem in PROBLEMS], 4, **settings)
    sample = sample._replace(ended=torch.ones_like(sample.ended))  # a cut answer would earn nothing
    verdicts = iter(correct)
    task = SimpleNamespace(grade=lambda problem, text, ended: Grade(next(verdicts), True, None, True, 0))
    tensors = rollout.graded(PROBLEMS, sample, 4, task, state)
    return state, SimpleNamespace(tensors=tensors)


def trained(choice, beta=0.0, tokens=10_000, epochs=1, minibatches=1, **given):
    """Parameters after the updates on one rollout, the metrics, and how many answers went through the policy."""
    state, drawn = made(copy.deepcopy(choice), beta, **given)  # an option may draw from a generator of its own
    computed, token_logp = [], state.policy.token_logp
    state.policy.token_logp = lambda *a, **k: computed.append(len(a[0])) or token_logp(*a, **k)
    clip = functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=float("inf"))
    batch = grpo.prepare(drawn, state, beta, 1.0, False, False, tokens)
    computed.clear()
    metrics = grpo.update(batch, state, beta, 1.0, epochs, minibatches, tokens, clip)
    weights = torch.cat([p.detach().flatten() for p in state.policy.parameters()])
    return weights, metrics, sum(computed), computed


def everything(monkeypatch):
    monkeypatch.setattr(grpo, "teaching", lambda batch, *_: torch.ones(len(batch["group"]), dtype=torch.bool))


@pytest.mark.parametrize("option", options_of("surrogate"))
def test_a_surrogate_says_that_it_is_in_proportion_to_the_advantage_exactly_if_it_is(option):
    choice = knobs(f"surrogate={option}").surrogate
    generator = torch.Generator().manual_seed(0)
    noise = lambda scale: scale * torch.randn(200, 5, generator=generator, dtype=torch.float64)  # noqa: E731
    logp_old, mask = -noise(1).abs(), torch.ones(200, 5, dtype=torch.bool)
    logp = (logp_old + noise(1.5)).requires_grad_()
    values = {"logp": logp, "logp_old": logp_old, "mask": mask, "advantages": torch.zeros_like(logp_old)}
    values |= {"ratio": torch.exp(logp - logp_old), "rewards": torch.arange(200.0).remainder(2).double()}
    term = call(choice, values | {"chosen": mask & (noise(1) > 0)})
    term.sum().backward()
    vanishes = not term.any() and not logp.grad.any()
    assert vanishes == getattr(getattr(choice, "func", choice), "in_proportion", False)


@pytest.mark.parametrize("option", options_of("surrogate"))
@pytest.mark.parametrize("epochs", [1, 2])
def test_answers_without_an_advantage_are_left_out_and_the_step_is_the_same(option, epochs, monkeypatch):
    choice = knobs(f"surrogate={option}", "ratio=sequence_mean" if epochs == 2 else "ratio=token")
    weights, metrics, computed, _ = trained(choice, epochs=epochs)
    everything(monkeypatch)
    whole, all_metrics, all_computed, _ = trained(choice, epochs=epochs)
    torch.testing.assert_close(weights, whole, rtol=0, atol=1e-14)
    same = {"loss/total", "loss/policy", "gradient/norm", "clip/binding_low", "clip/binding_high"}
    assert {name: metrics[name] for name in same} == pytest.approx({name: all_metrics[name] for name in same}, rel=1e-9)
    left_out = 0 if option == "kl_cov" else 8
    across = 16 * epochs * (option in ("kl_cov", "clip_cov"))  # these choose tokens by the current log-probabilities
    assert computed - across == epochs * (16 - left_out) and all_computed - across == epochs * 16
    assert metrics["update/skipped"] == left_out / 16 and all_metrics["update/skipped"] == 0


@pytest.mark.parametrize(
    ("change", "beta", "computed"),
    [
        (["placement=loss"], 0.1, 16),
        (["placement=loss_to_old"], 0.1, 16),
        (["entropy=constant"], 0.0, 16),
        (["surrogate=kl_cov"], 0.0, 32),
        (["placement=reward_to_go"], 0.1, 16),   # a KL in the reward gives a group whose answers agree an advantage
        (["whiten=tokens"], 0.0, 16),            # the mean that is taken away does, too
        (["placement=loss"], 0.0, 8),
        (["keep=drop"], 0.0, 8),
        (["entropy=constant", "entropy.coefficient=0"], 0.0, 8),
    ],
)
def test_no_answer_is_left_out_where_a_term_lives_without_an_advantage(change, beta, computed, monkeypatch):
    weights, _, rows, _ = trained(knobs(*change), beta)
    assert rows == computed
    everything(monkeypatch)
    torch.testing.assert_close(weights, trained(knobs(*change), beta)[0], rtol=0, atol=1e-14)


def test_a_rollout_that_teaches_nothing_still_is_an_optimiser_step_with_a_gradient_of_zero():
    state, drawn = made(knobs(), correct=[True] * 16)
    state.optimizer = torch.optim.AdamW(state.policy.parameters(), lr=0.1, weight_decay=0.5)
    state.scheduler = torch.optim.lr_scheduler.LambdaLR(state.optimizer, lambda step: 1.0)
    before = [p.detach().clone() for p in state.policy.parameters()]
    batch = grpo.prepare(drawn, state, 0.0, 1.0, False, False, 10_000)
    metrics = grpo.update(batch, state, 0.0, 1.0, 1, 1, 10_000, lambda parameters: 0.0)
    assert metrics["update/skipped"] == 15 / 16 and metrics["loss/total"] == 0
    for old, new in zip(before, state.policy.parameters(), strict=True):
        torch.testing.assert_close(new, 0.95 * old)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_micro_batches_of_any_size_train_the_same_weights(minibatches):
    choice = knobs("entropy=constant")
    whole, row, _, _ = trained(choice, 0.1, minibatches=minibatches)
    for tokens in (100, 37, 1):
        weights, metrics, rows, parts = trained(choice, 0.1, tokens, minibatches=minibatches)
        torch.testing.assert_close(weights, whole, rtol=0, atol=1e-13)
        assert metrics == pytest.approx(row, rel=1e-9, abs=1e-13) and rows == 16
        assert (max(parts) == 1) == (tokens == 1)


def test_a_micro_batch_stays_within_its_tokens_and_counts_a_shared_prompt_once():
    _, drawn = made(knobs())
    batch = drawn.tensors
    prompt, answer = batch["prompt_mask"].sum(1), batch["mask"].sum(1)

    def cost(rows):
        return sum(int(prompt[rows][batch["group"][rows] == g][0]) for g in batch["group"][rows].unique()) + int(
            answer[rows].sum()
        )

    everyone = torch.arange(16)
    total = cost(everyone)
    for rows, tokens in itertools.product((everyone, everyone[::3]), (1, 20, 45, 80, 1000)):
        parts = grpo.micro_batches(batch, rows, tokens)
        assert torch.cat(parts).equal(rows)
        assert all(cost(part) <= tokens or len(part) == 1 for part in parts)
    assert len(grpo.micro_batches(batch, everyone, total)) == 1 < len(grpo.micro_batches(batch, everyone, total - 1))
    halves = [cost(part) for part in grpo.micro_batches(batch, everyone, total - 1)]
    assert max(halves) < 0.75 * total, "a budget just missed is no reason for one full part and one of crumbs"
    assert grpo.micro_batches(batch, everyone[:0], 100) == []
