"""A character tokenizer that transformers can save and load like any other."""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def characters(alphabet: str, *, end: str, pad: str, unknown: str) -> PreTrainedTokenizerFast:
    """One token per character of `alphabet`, its id the place in it; end, pad and unknown are three of the characters.

    A character outside the alphabet becomes `unknown`; prompts are padded on the left.
    """
    if len(set(alphabet)) != len(alphabet) or not {end, pad, unknown} <= set(alphabet):
        raise ValueError(
            f"the alphabet {alphabet!r} repeats a character or lacks one of end {end!r}, pad {pad!r} and unknown "
            f"{unknown!r}; give every character once, these three included."
        )
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(alphabet)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        pad_token=pad,
        unk_token=unknown,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
