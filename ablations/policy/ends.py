"""Where an answer ends."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Llama 3, Qwen and SmolLM, Gemma, Phi: what stands at the end of an assistant's turn.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>", "<|end_of_text|>", "<|endoftext|>")


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token at which an answer ends, the tokenizer's own first: those that model and generation config name, and
    the marks with which the chat template closes a turn. A chat model often has two, and with one of them missing its
    answers run on into the next turn."""
    named = [tokenizer.eos_token_id]
    for config in (getattr(model, "generation_config", None), model.config):
        ends = getattr(config, "eos_token_id", None)
        named += ends if isinstance(ends, list | tuple) else [ends]
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    vocabulary = tokenizer.get_vocab()
    named += [vocabulary[mark] for mark in TURN_ENDS if mark in template and mark in vocabulary]
    return tuple(dict.fromkeys(end for end in named if end is not None))
