"""Policies: sampler and trainer agree with the plain transformers forward, with each other and with worked values."""

import copy
import inspect
import math
import random

import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ablations.policy import generic, llama
from ablations.policy.language import LanguagePolicy
from ablations.policy.load import scratch
from ablations.policy.sample import _draw, distribution, generate, mask_of
from ablations.policy.tokenizer import characters
from ablations.tasks.chain_sum import ALPHABET, END, PAD, UNKNOWN

SIZES = dict(hidden=32, layers=2, heads=4, key_value_heads=4, feed_forward=48, rope_theta=1000.0, norm_eps=1e-6)
SIZES |= dict(initial_std=0.3, max_positions=64)  # a wide initialisation: distributions far from uniform
PROMPTS = ["7a5=", "1a2b3c4d5e6=", "7a5=", "9a9b9="]  # unequal lengths, one of them twice
LIMIT = 20


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def policy(seed=0, **changes):
    return scratch(ALPHABET, end=END, pad=PAD, unknown=UNKNOWN, generator=generator(seed), **{**SIZES, **changes})


def other_family(name):
    """A small model of another make, with the same tokenizer and wide weights."""
    tokenizer = characters(ALPHABET, end=END, pad=PAD, unknown=UNKNOWN)
    sizes = dict(vocab_size=22, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    sizes |= dict(num_key_value_heads=2, max_position_embeddings=64, eos_token_id=19, pad_token_id=20)
    gpt2 = dict(vocab_size=22, n_positions=64, n_embd=32, n_head=4, n_layer=2, eos_token_id=19, bos_token_id=19)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = {
            "llama grouped queries": lambda: LlamaForCausalLM(LlamaConfig(**sizes)),
            "llama biases": lambda: LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=True, mlp_bias=True)),
            "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)),
            "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**sizes)),
            "qwen2 tied": lambda: Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True)),
            "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=12, attention_bias=True)),
            "qwen3 tied": lambda: Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=8, tie_word_embeddings=True)),
            "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**gpt2)),
        }[name]()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1 and "llama" in name), std=0.3)
    return LanguagePolicy(model, tokenizer)


FAMILIES = ["llama grouped queries", "llama biases", "llama tied", "qwen2", "qwen2 tied", "qwen3", "qwen3 tied", "gpt2"]


def plain_forward(p, sample, temperature):
    """Log-probabilities and entropies by the textbook: each row alone, without padding, cache or mask."""
    logp, entropy = torch.zeros_like(sample.logp), torch.zeros_like(sample.entropy)
    for i in range(len(sample.ids)):
        prompt = sample.prompt_ids[i][sample.prompt_mask[i]]
        answer = sample.ids[i][sample.mask[i]]
        logits = p.model(input_ids=torch.cat((prompt, answer))[None]).logits[0, len(prompt) - 1 : -1]
        every = torch.log_softmax(logits / temperature, -1)
        logp[i, : len(answer)] = every.gather(1, answer[:, None])[:, 0]
        entropy[i, : len(answer)] = -(every.exp() * every).sum(-1)
    return logp, entropy


@pytest.fixture(params=["own", *FAMILIES])
def any_policy(request):
    return policy() if request.param == "own" else other_family(request.param)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("temperature", "shared_from"), [(1.0, 0), (0.6, 2**40)])
def test_sampler_and_trainer_equal_the_plain_transformers_forward(
    any_policy, dtype, tolerance, temperature, shared_from, monkeypatch
):
    """With the prompts' part of the cache read by the whole group together, and with a copy for every answer."""
    monkeypatch.setattr(llama, "SHARED_FROM", shared_from)
    p = any_policy.to(dtype)
    sample = p.sample(PROMPTS, 8, max_new_tokens=LIMIT, temperature=temperature, generator=generator())
    assert len(set(sample.mask.sum(1).tolist())) > 3
    with torch.no_grad():
        logp, entropy = plain_forward(p, sample, temperature)
        trainer = p.token_logp(*sample[:4], temperature=temperature)
    for ours, plain in ((sample.logp, logp), (sample.entropy, entropy), (trainer[0], logp), (trainer[1], entropy)):
        torch.testing.assert_close(ours, plain, atol=tolerance, rtol=0)


def test_llama_models_take_the_fast_way_and_others_transformers_own():
    engines = {name: other_family(name).engine for name in FAMILIES}
    assert [name for name, engine in engines.items() if engine is generic] == ["gpt2"]
    rotary = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    stretched = LlamaConfig(vocab_size=22, hidden_size=32, num_hidden_layers=1, rope_parameters=rotary)
    assert not llama.supports(LlamaForCausalLM(stretched))
    window = Qwen2Config(vocab_size=22, hidden_size=32, num_hidden_layers=2, use_sliding_window=True)
    window.layer_types = ["full_attention", "sliding_attention"]
    assert not llama.supports(Qwen2ForCausalLM(window)), "sliding windows are left to transformers"


def test_gradients_equal_those_of_the_plain_transformers_forward(any_policy):
    p = any_policy.double()
    sample = p.sample(PROMPTS, 3, max_new_tokens=LIMIT, temperature=1.0, generator=generator())
    factor = torch.randn(sample.ids.shape, dtype=torch.float64, generator=generator(1))
    gradients = []
    for logp, entropy in (p.token_logp(*sample[:4], temperature=0.6), plain_forward(p, sample, 0.6)):
        p.zero_grad()
        (factor * (logp + 0.3 * entropy)).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in p.parameters() if parameter.grad is not None])
    for ours, plain in zip(*gradients, strict=True):
        assert (ours - plain).norm() <= 2e-6 * plain.norm()  # transformers' norm rounds to float32 in any model


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_packed_gradients_equal_those_of_a_padded_batch(any_policy, dtype, tolerance):
    """Relative to the gradient's size. In float32 two padded batches of other widths differ as much."""
    p = any_policy.to(dtype)
    s = p.sample(PROMPTS, 4, max_new_tokens=LIMIT, temperature=1.0, generator=generator())
    factor = torch.randn(s.ids.shape, dtype=dtype, generator=generator(1))
    gradients = []
    for engine in (p.engine, generic):
        p.zero_grad()
        logits = engine.answer_logits(p.model, *s[:4])
        chosen = torch.log_softmax(logits, -1).gather(1, s.ids[s.mask][:, None])[:, 0]
        (factor[s.mask] * chosen).sum().backward()
        gradients.append(torch.cat([g.grad.flatten() for g in p.parameters() if g.grad is not None]))
    assert (gradients[0] - gradients[1]).norm() <= tolerance * gradients[1].norm()


def test_the_ratio_is_one_before_any_update_even_in_training_mode_with_dropout(monkeypatch):
    p = policy()
    p.model.config.attention_dropout = 0.1
    for layer in p.model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    for supported in (True, False):
        monkeypatch.setattr(llama, "supports", lambda model, supported=supported: supported)
        p.train()
        sample = p.sample(PROMPTS, 8, max_new_tokens=LIMIT, temperature=1.0, generator=generator())
        first, _ = p.token_logp(*sample[:4], temperature=1.0)
        second, _ = p.token_logp(*sample[:4], temperature=1.0)
        assert (first - second).exp().sub(1).abs().max() < 1e-6
        assert (first - sample.logp).exp().sub(1).abs().max() < 2e-5


def test_temperature_divides_the_logits_and_entropy_is_that_of_the_whole_distribution():
    logp, entropy = distribution(torch.tensor([2.0, 0.0]), 0.5)
    assert logp[0].item() == pytest.approx(-0.0181, abs=1e-4)
    assert entropy.item() == pytest.approx(0.0901, abs=1e-4)
    assert distribution(torch.tensor([2.0, 0.0]), 1.0)[1].item() == pytest.approx(0.3653, abs=1e-4)


def test_a_token_of_probability_zero_leaves_entropy_and_gradient_finite():
    logits = torch.tensor([[1.0, 0.0, -math.inf]], requires_grad=True)
    _, entropy = distribution(logits, 1.0)
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(0.5823, abs=1e-4)
    assert torch.isfinite(logits.grad).all()


class Fixed:
    """A decoder whose logits are given, whatever was said so far: (V,), or one row of (N, V) per step."""

    def __init__(self, logits):
        self.logits, self.t = logits, 0

    def prompt(self, prompt_ids, prompt_mask, rows, columns):
        self.rows = rows
        return self._now()

    def step(self, tokens):
        self.t += 1
        return self._now()

    def keep(self, rows):
        self.rows = self.rows[rows]

    def _now(self):
        now = self.logits if self.logits.dim() == 1 else self.logits[self.t]
        return now.expand(len(self.rows), -1) if now.dim() == 1 else now[self.rows]


def drive(decoder, n, limit, *, end, pad=0, temperature=1.0, **options):
    settings = dict(end=end, pad=pad, max_new_tokens=limit, temperature=temperature, greedy=False)
    settings["generator"] = generator()
    prompt = torch.zeros(n, 1, dtype=torch.long)
    return generate(decoder, prompt, prompt == 0, torch.arange(n), **settings | options)


def test_entropies_of_two_real_and_two_padded_tokens():
    # logits [2, 0] at T = 0.5 for the first two tokens; the second is forced to be the end of row 0, row 1 goes on.
    going, stop = torch.tensor([2.0, 0.0, -math.inf]), torch.tensor([-math.inf, -math.inf, 0.0])
    script = torch.stack([going.expand(2, 3), torch.stack([stop, going]), going.expand(2, 3), going.expand(2, 3)])
    made = drive(Fixed(script), 2, 4, end=2, temperature=0.5)
    assert made.lengths.tolist() == [2, 4]
    torch.testing.assert_close(made.entropy[1], torch.full((4,), 0.0901), atol=1e-4, rtol=0)
    torch.testing.assert_close(made.entropy[0], torch.tensor([0.0901, 0.0, 0.0, 0.0]), atol=1e-4, rtol=0)
    assert (made.logp[0, 2:] == 0).all() and (made.entropy >= 0).all()


def test_masks_come_from_where_generation_stopped_when_pad_and_end_are_one_token():
    rows = [[5, 6, 2, 9, 9], [5, 6, 7, 8, 9], [2, 9, 9, 9, 9]]
    script = torch.full((5, 3, 10), -math.inf)
    for row, tokens in enumerate(rows):
        for t, token in enumerate(tokens):
            script[t, row, token] = 0.0
    made = drive(Fixed(script), 3, 5, end=2, pad=2)
    assert made.ids.tolist() == [[5, 6, 2, 2, 2], [5, 6, 7, 8, 9], [2, 2, 2, 2, 2]]
    assert mask_of(made.lengths, 5).int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert made.lengths.tolist() == [3, 5, 1] and made.ended.tolist() == [True, False, True]


def test_an_answer_whose_last_allowed_token_is_the_end_token_has_ended():
    script = torch.full((2, 1, 3), -math.inf)
    script[0, 0, 1] = script[1, 0, 2] = 0.0
    made = drive(Fixed(script), 1, 2, end=2)
    assert made.lengths.tolist() == [2] and made.ended.tolist() == [True]


def test_tokens_are_drawn_with_the_probabilities_that_are_returned():
    logits = torch.tensor([2.0, 0.0, 1.0, -math.inf, -1.0])
    made = drive(Fixed(logits), 20000, 1, end=3, temperature=0.7)
    expected = torch.softmax(logits / 0.7, -1)
    counts = torch.bincount(made.ids[:, 0], minlength=5)
    error = (expected * (1 - expected) / 20000).sqrt()
    assert ((counts / 20000 - expected).abs() <= 4 * error).all() and counts[3] == 0
    torch.testing.assert_close(made.logp[:, 0].exp(), expected[made.ids[:, 0]])


def test_a_token_of_probability_zero_is_never_drawn():
    logp = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).log().expand(3, -1)
    assert _draw(logp, torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 3, 3]


@pytest.mark.parametrize("shared_from", [0, 2**40])
def test_dropping_finished_rows_changes_no_token_and_leaves_the_generator_at_the_same_place(shared_from, monkeypatch):
    monkeypatch.setattr(llama, "SHARED_FROM", shared_from)
    p = policy().double()
    made, after = [], []
    for share in (0.0, 0.125, 2.0):  # drop at once, lazily, never
        g = generator(3)
        prompt_ids, prompt_mask = p.encode_prompts(["7a5=", "1a2b3c4d5e6="])
        rows = torch.tensor([0, 1]).repeat_interleave(20)
        settings = dict(end=19, pad=20, max_new_tokens=30, temperature=1.0, greedy=False, drop_at=share)
        made.append(generate(llama.Decoder(p.model), prompt_ids, prompt_mask, rows, generator=g, **settings))
        after.append(g.get_state())
    assert 0 < made[0].ended.sum() < 40 and len(made[0].lengths.unique()) > 8
    for other, state in zip(made[1:], after[1:], strict=True):
        for name in ("ids", "lengths", "ended"):
            assert torch.equal(getattr(made[0], name), getattr(other, name))
        torch.testing.assert_close(made[0].logp, other.logp, atol=1e-12, rtol=0)
        assert torch.equal(after[0], state)


def test_sampling_uses_its_own_generator_and_touches_no_global_one():
    p = policy()
    torch.manual_seed(0)
    random.seed(0)
    before = torch.get_rng_state(), random.getstate()
    one = p.sample(PROMPTS, 4, max_new_tokens=LIMIT, temperature=1.0, generator=generator(1))
    torch.manual_seed(7)
    again = p.sample(PROMPTS, 4, max_new_tokens=LIMIT, temperature=1.0, generator=generator(1))
    other = p.sample(PROMPTS, 4, max_new_tokens=LIMIT, temperature=1.0, generator=generator(2))
    assert one.texts == again.texts and torch.equal(one.logp, again.logp) and one.texts != other.texts
    torch.manual_seed(0)
    p.sample(PROMPTS, 4, max_new_tokens=LIMIT, temperature=1.0, generator=generator(1), greedy=True)
    policy(seed=5)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_rows_of_a_prompt_are_adjacent_and_texts_lack_the_end_token():
    p = policy()
    sample = p.sample(PROMPTS, 5, max_new_tokens=LIMIT, temperature=1.0, generator=generator())
    assert len(sample.texts) == 20 and sample.ids.shape[1] == sample.mask.sum(1).max()
    for i, text in enumerate(sample.texts):
        shown = p.tokenizer.decode(sample.prompt_ids[i][sample.prompt_mask[i]])
        assert shown == PROMPTS[i // 5]
        ids = sample.ids[i][sample.mask[i]].tolist()
        assert "".join(ALPHABET[token] for token in ids) == text + END * bool(sample.ended[i])
        assert sample.ended[i] == (ids[-1] == p.tokenizer.eos_token_id)
    assert sample.ended.any() and not sample.ended.all()
    assert (sample.logp[~sample.mask] == 0).all() and (sample.entropy[~sample.mask] == 0).all()


def test_each_distinct_prompt_is_computed_once(monkeypatch):
    seen = []
    pack = llama.pack_prompts
    monkeypatch.setattr(llama, "pack_prompts", lambda ids, mask: seen.append(len(ids)) or pack(ids, mask))
    policy().sample(PROMPTS, 4, max_new_tokens=3, temperature=1.0, generator=generator())
    assert seen == [3]


def test_greedy_takes_the_likeliest_token():
    p = policy()
    sample = p.sample(PROMPTS[:2], 1, max_new_tokens=LIMIT, temperature=1.0, generator=generator(), greedy=True)
    for i in range(2):
        ids = sample.prompt_ids[i][sample.prompt_mask[i]]
        for token in sample.ids[i][sample.mask[i]]:
            assert p.model(input_ids=ids[None]).logits[0, -1].argmax() == token
            ids = torch.cat((ids, token[None]))


def test_padding_shuffling_and_splitting_a_batch_change_nothing():
    p = policy().double()
    s = p.sample(PROMPTS, 30, max_new_tokens=LIMIT, temperature=1.0, generator=generator())
    logp, entropy = p.token_logp(*s[:4], temperature=1.0)
    wider = [torch.nn.functional.pad(x, (3, 0) if i < 2 else (0, 4)) for i, x in enumerate(s[:4])]
    order = torch.randperm(len(s.ids), generator=generator(4))
    parts = [p.token_logp(*(x[rows] for x in s[:4]), temperature=1.0) for rows in order.split([50, 1, 69])]
    padded = p.token_logp(*wider, temperature=1.0)
    torch.testing.assert_close(padded[0][:, :-4], logp, atol=1e-12, rtol=0)
    torch.testing.assert_close(padded[1][:, :-4], entropy, atol=1e-12, rtol=0)
    assert (padded[0][:, -4:] == 0).all()
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), logp[order], atol=1e-12, rtol=0)


def test_what_stands_at_masked_positions_reaches_neither_value_nor_gradient():
    p = policy()
    s = p.sample(PROMPTS, 4, max_new_tokens=LIMIT, temperature=1.0, generator=generator())
    other = s._replace(ids=torch.where(s.mask, s.ids, 3), prompt_ids=torch.where(s.prompt_mask, s.prompt_ids, 3))
    for a, b in zip(p.token_logp(*s[:4], temperature=1.0), p.token_logp(*other[:4], temperature=1.0), strict=True):
        assert torch.equal(a, b)


def test_answers_of_one_token_and_of_none_are_taken():
    p = policy()
    prompt_ids, prompt_mask = p.encode_prompts(["7a5=", "1a2b3="])
    ids = torch.tensor([[19], [20]])
    mask = torch.tensor([[True], [False]])
    logp, entropy = p.token_logp(prompt_ids, prompt_mask, ids, mask, temperature=1.0)
    assert logp[0, 0] < 0 and entropy[0, 0] > 0 and logp[1, 0] == 0
    nothing, _ = p.token_logp(prompt_ids, prompt_mask, ids, mask & False, temperature=1.0)
    assert (nothing == 0).all()


def test_a_saved_policy_comes_back_the_same(tmp_path):
    p = policy()
    p.save(tmp_path)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    q = LanguagePolicy.load(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(p.parameters(), q.parameters(), strict=True))
    settings = dict(max_new_tokens=LIMIT, temperature=1.0)
    one, two = (x.sample(PROMPTS, 4, generator=generator(), **settings) for x in (p, q))
    assert one.texts == two.texts and torch.equal(one.logp, two.logp)


def test_the_character_tokenizer_round_trips(tmp_path):
    tokenizer = characters(ALPHABET, end=END, pad=PAD, unknown=UNKNOWN)
    tokenizer.save_pretrained(tmp_path)
    for t in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        assert len(t) == 22 and (t.eos_token, t.pad_token, t.padding_side) == (END, PAD, "left")
        assert t(ALPHABET)["input_ids"] == list(range(22))
        assert t.decode(list(range(22)), skip_special_tokens=False) == ALPHABET
        assert t("a\nb")["input_ids"] == [10, ALPHABET.index(UNKNOWN), 11]


def test_places_in_a_text_become_places_in_its_tokens():
    text = "~a52..b81c33#3."
    assert policy().token_ends([text, ""], [[6, 9, 12, 15], []]) == [[5, 8, 11, 14], []]


def test_a_reference_is_a_copy_that_does_not_move_with_the_policy():
    p = policy()
    reference = copy.deepcopy(p)
    s = p.sample(PROMPTS, 4, max_new_tokens=LIMIT, temperature=1.0, generator=generator())
    before, _ = reference.token_logp(*s[:4], temperature=1.0)
    assert torch.equal(before, p.token_logp(*s[:4], temperature=1.0)[0])
    with torch.no_grad():
        for parameter in p.parameters():
            parameter.add_(0.1)
    assert torch.equal(before, reference.token_logp(*s[:4], temperature=1.0)[0])
    assert not torch.equal(before, p.token_logp(*s[:4], temperature=1.0)[0])


def test_truncated_sampling_does_not_exist():
    for function in (LanguagePolicy.sample, LanguagePolicy.token_logp, generate):
        assert not {"top_p", "top_k", "min_p"} & set(inspect.signature(function).parameters)


def test_a_model_without_an_end_token_is_refused_in_a_sentence():
    p = policy()
    p.tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no end token"):
        LanguagePolicy(p.model, p.tokenizer)


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"max_new_tokens": 0}, {"group_size": 0}, {"prompts": []}])
def test_impossible_sampling_settings_are_refused_in_a_sentence(change):
    settings = dict(prompts=PROMPTS, group_size=2, max_new_tokens=3, temperature=1.0, generator=generator())
    with pytest.raises(ValueError, match="must be above 0"):
        policy().sample(**settings | change)


@pytest.mark.parametrize("prompt", ["", "7+5="])
def test_a_prompt_that_the_model_cannot_read_is_refused_by_name(prompt):
    with pytest.raises(ValueError, match="is empty or has a character"):
        policy().sample([prompt], 1, max_new_tokens=3, temperature=1.0, generator=generator())


def test_a_missing_policy_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not there"):
        LanguagePolicy.load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no config.json"):
        LanguagePolicy.load(tmp_path)


def test_a_mask_with_a_hole_is_refused():
    p = policy()
    prompt_ids, prompt_mask = p.encode_prompts(["7a5="])
    holed = torch.tensor([[True, False, True]])
    with pytest.raises(ValueError, match="hole"):
        p.token_logp(prompt_ids, prompt_mask, torch.ones(1, 3).long(), holed, temperature=1.0)
