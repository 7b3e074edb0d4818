"""Where models come from: untrained ones by size and style, saved ones, and what is done to them before training."""

import random

import pytest
import torch
from composing import composed
from hydra.utils import instantiate

from ablations.tasks import chain_sum

ALPHABET = "".join(chr(ord("0") + i) for i in range(48))  # the vocabulary at which the sizes are stated


def untrained(*overrides, alphabet=ALPHABET, seed=0):
    make = instantiate(composed(*overrides).model)
    end, pad, unknown = alphabet[-3:]  # which characters they are does not matter here
    return make(alphabet, end=end, pad=pad, unknown=unknown, generator=torch.Generator().manual_seed(seed))


def size(policy):
    return sum(parameter.numel() for parameter in policy.parameters())


@pytest.mark.parametrize(("name", "count"), [("S", 230_880), ("M", 1_010_448), ("L", 4_771_072)])
def test_the_sizes_S_M_L_have_a_quarter_one_and_five_million_parameters(name, count):
    """Per layer 4 d d + 3 d f + 2 d, and d + 2 V d around them."""
    policy = untrained(f"model={name}")
    d, layers, f, v = (policy.model.config.to_dict()[key] for key in SHAPE)
    assert size(policy) == count == layers * (4 * d * d + 3 * d * f + 2 * d) + d + 2 * v * d


def test_the_default_model_has_85056_parameters_and_room_for_the_longest_problem():
    policy = untrained(alphabet=chain_sum.ALPHABET)
    assert size(policy) == 85056
    longest = max(len(x.prompt) for x in chain_sum.ChainSum((5,), 7, 36).draw(9, random.Random(0), "train")) + 36
    assert longest <= policy.model.config.max_position_embeddings


SHAPE = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")


@pytest.mark.parametrize("name", ["tiny", "S", "M", "L"])
def test_in_the_style_of_qwen3_a_model_has_a_gain_per_head_channel_more_and_one_table_less(name):
    llama, qwen = untrained(f"model={name}"), untrained(f"model={name}", "model/architecture=qwen3")
    d, layers, _, v = (llama.model.config.to_dict()[key] for key in SHAPE)
    assert type(qwen.model).__name__ == "Qwen3ForCausalLM"
    assert size(qwen) == size(llama) + 2 * layers * (d // llama.model.config.num_attention_heads) - v * d


def test_an_untrained_model_is_set_by_its_generator_and_not_by_global_state():
    one, other = untrained("model/architecture=qwen3"), untrained("model/architecture=qwen3")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    third = untrained("model/architecture=qwen3", seed=1)
    assert not torch.equal(one.model.lm_head.weight, third.model.lm_head.weight)


@pytest.mark.parametrize("size", ["hidden", "layers", "heads", "key_value_heads", "feed_forward", "max_positions"])
def test_a_size_that_leaves_no_model_is_refused_by_its_name(size):
    for change in (f"model.{size}=0", f"model.{size}=-1"):
        with pytest.raises(ValueError, match=f"^{change} leaves no model"):
            untrained(change)


@pytest.mark.parametrize("change", ["model.heads=5", "model.key_value_heads=3", "model.heads=64"])
def test_heads_that_do_not_divide_are_refused_in_a_sentence(change):
    with pytest.raises(ValueError, match="key_value_heads must divide heads"):
        untrained(change)
