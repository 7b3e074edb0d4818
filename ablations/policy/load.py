"""Where a policy comes from: the functions that conf/model names."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ablations.policy.language import LanguagePolicy
from ablations.policy.tokenizer import characters


def scratch(
    alphabet: str,
    *,
    end: str,
    pad: str,
    unknown: str,
    generator: torch.Generator,
    hidden: int,
    layers: int,
    heads: int,
    key_value_heads: int,
    feed_forward: int,
    rope_theta: float,
    norm_eps: float,
    initial_std: float,
    max_positions: int,
) -> LanguagePolicy:
    """An untrained Llama-style model over the characters of `alphabet`: RMSNorm, RoPE, SwiGLU, no bias, untied head.

    Weights are normal with standard deviation initial_std and norm gains 1, all from `generator`; the global generator
    stays where it is.
    """
    tokenizer = characters(alphabet, end=end, pad=pad, unknown=unknown)
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        intermediate_size=feed_forward,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        rms_norm_eps=norm_eps,
        initializer_range=initial_std,
        max_position_embeddings=max_positions,
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws globally; its weights are replaced below
        model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=initial_std, generator=generator)
    return LanguagePolicy(model, tokenizer)
