"""Where a policy comes from: the functions that conf/model names."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from ablations.policy.language import LanguagePolicy
from ablations.policy.tokenizer import characters


def started(start: LanguagePolicy | Path, *, adapter: Callable, recompute: bool) -> LanguagePolicy:
    """The policy as training begins: the base, or the policy saved in that folder, with adapter(policy) around it;
    recompute: whether activations are computed again in the backward pass instead of kept."""
    policy = start if isinstance(start, LanguagePolicy) else LanguagePolicy.load(start)
    policy = adapter(policy).eval()
    return policy.recompute_activations() if recompute else policy


def llama_style(**sizes) -> PreTrainedConfig:
    """RMSNorm, RoPE, SwiGLU, no bias, untied head (Touvron et al. 2023, arXiv:2302.13971)."""
    return LlamaConfig(**sizes, tie_word_embeddings=False, attention_bias=False, mlp_bias=False)


def qwen3_style(**sizes) -> PreTrainedConfig:
    """As llama_style, with queries and keys normalised per head and the head tied to the embeddings, as in the Qwen3
    models of up to 4B parameters (arXiv:2505.09388, sec. 2)."""
    head = sizes["hidden_size"] // sizes["num_attention_heads"]
    return Qwen3Config(**sizes, head_dim=head, tie_word_embeddings=True, attention_bias=False)


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
    architecture: Callable[..., PreTrainedConfig] = llama_style,
) -> LanguagePolicy:
    """An untrained model over the characters of `alphabet`; architecture(**sizes) makes its transformers config.

    Weights are normal with standard deviation initial_std and norm gains 1, all from `generator`; the global generator
    stays where it is. Raises ValueError for a size below 1 and for heads that do not divide.
    """
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "key_value_heads": key_value_heads}
    sizes |= {"feed_forward": feed_forward, "max_positions": max_positions}
    if small := [f"model.{name}={size}" for name, size in sizes.items() if size < 1]:
        raise ValueError(f"{', '.join(small)} leaves no model; each size is 1 or more.")
    if hidden % (2 * heads) or heads % key_value_heads:
        raise ValueError(
            f"model.hidden is {hidden} with {heads} heads and {key_value_heads} key_value_heads; a head needs an even "
            "size, hidden / heads, and key_value_heads must divide heads. Choose numbers that do."
        )
    tokenizer = characters(alphabet, end=end, pad=pad, unknown=unknown)
    config = architecture(
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
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws globally; its weights are replaced below
        model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=initial_std, generator=generator)
    return LanguagePolicy(model, tokenizer)
