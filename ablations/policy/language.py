"""A transformers language model as a policy: it samples answers and says how likely given ones are."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ablations.policy import generic, llama
from ablations.policy.ends import end_tokens
from ablations.policy.sample import Generated, Sample, distribution, generate, mask_of
from ablations.tasks.prompt import Conversation


class LanguagePolicy(nn.Module):
    """model: a causal language model; tokenizer: one with an end token.

    Dropout stays off, in training too: the ratio of new to old log-probabilities compares one function at two
    parameter values, and with dropout it would differ from 1 before any update.
    Raises ValueError for a tokenizer without an end token.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        if tokenizer.eos_token_id is None:
            raise ValueError(
                f"the tokenizer of {model.config.name_or_path or type(model).__name__} has no end token; without one "
                "no answer can end. Set tokenizer.eos_token and save it with the model, or choose another model."
            )
        self.model, self.tokenizer, self.precision = model, tokenizer, "float32"
        self._ends = end_tokens(model, tokenizer)
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        """The flag of this module alone changes; the model stays without dropout."""
        super().train(mode)
        self.model.eval()
        return self

    @property
    def engine(self) -> ModuleType:
        """The module that runs the model: the fast way where there is one for it."""
        return llama if llama.supports(self.model) else generic

    def recompute_activations(self) -> Self:
        """Gradient checkpointing: a layer's activations are computed again in the backward pass instead of kept, which
        costs one more forward pass and keeps one vector per token and layer. The numbers stay the same."""
        self.model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        return self

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens at which an answer ends; answers that are shown to the policy end with the first."""
        return self._ends

    def placed(self, device: str, precision: str) -> Self:
        """Compute on `device` (auto: a CUDA device if there is one) in `precision`: float32, or bfloat16 for the matrix
        products alone (autocast). Weights stay as they are, and what goes in and comes out is on the CPU."""
        self.precision = precision
        return self.to(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)

    def _products(self) -> contextlib.AbstractContextManager:
        """Under bfloat16 a log-probability depends on how the rows are grouped into products: sampler and trainer then
        differ by far more than rounding of float32, which mismatch/mean and mismatch/max report."""
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def as_reference(self) -> Self | None:
        """What stands for this policy before any update, where that takes no copy; None: it takes one."""
        return None

    @property
    def _fill(self) -> int:
        """What stands at padding; never looked at, so the end token will do."""
        pad = self.tokenizer.pad_token_id
        return self.tokenizer.eos_token_id if pad is None else pad

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[str],
        group_size: int,
        *,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
        greedy: bool = False,
    ) -> Sample:
        """group_size answers to each prompt, of at most max_new_tokens tokens, from softmax(logits / temperature).

        A prompt that occurs several times is computed once. Only `generator` is used for randomness.
        """
        if not prompts or group_size < 1 or max_new_tokens < 1 or not temperature > 0:
            raise ValueError(
                f"sampling got {len(prompts)} prompts, group_size {group_size}, max_new_tokens {max_new_tokens} and "
                f"temperature {temperature}; all must be above 0. For the likeliest answer set greedy=True."
            )
        distinct = list(dict.fromkeys(prompts))
        place = {prompt: i for i, prompt in enumerate(distinct)}
        prompt_ids, prompt_mask = self.encode_prompts(distinct)
        rows = torch.tensor([place[p] for p in prompts], device=prompt_ids.device).repeat_interleave(group_size)
        with torch.inference_mode(), self._products():  # a sixth faster than no_grad at one token per row
            made = generate(
                self.engine.Decoder(self.model),
                prompt_ids,
                prompt_mask,
                rows,
                end=self.ends,
                pad=self._fill,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                generator=generator,
                greedy=greedy,
            )
        made = Generated(*(tensor.clone().cpu() for tensor in made))  # ordinary tensors again, which training may save
        prompt_ids, prompt_mask, rows = prompt_ids.cpu(), prompt_mask.cpu(), rows.cpu()
        spoken = (made.lengths - made.ended.long()).tolist()
        texts = self.tokenizer.batch_decode(
            [row[:n] for row, n in zip(made.ids.tolist(), spoken, strict=True)], skip_special_tokens=False
        )
        mask = mask_of(made.lengths, made.ids.shape[1])
        return Sample(prompt_ids[rows], prompt_mask[rows], made.ids, mask, made.ended, made.logp, made.entropy, texts)

    def token_logp(
        self, prompt_ids: Tensor, prompt_mask: Tensor, ids: Tensor, mask: Tensor, *, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of every answer token, and entropy of the distribution it was drawn from, at this
        temperature.

        prompt_ids, prompt_mask: (N, P), padded on the left; ids, mask: (N, T) -> both (N, T) in nats, 0 where masked,
        differentiable. Padding, and which rows share the batch, change the values by rounding only.
        """
        given = [tensor.to(self.model.device) for tensor in (prompt_ids, prompt_mask, ids, mask)]
        with self._products():
            logits = self.engine.answer_logits(self.model, *given)
        every, spread = distribution(logits, temperature)
        chosen = every.gather(1, given[2][given[3]][:, None])[:, 0]
        zero, mask = torch.zeros(ids.shape, dtype=every.dtype), mask.cpu()
        return zero.masked_scatter(mask, chosen.cpu()), zero.masked_scatter(mask, spread.cpu())

    def token_ends(self, texts: Sequence[str], char_ends: Sequence[Sequence[int]]) -> list[list[int]]:
        """For each text, the index of the token in which each character position ends: steps found in a text, as
        tokens.

        char_ends are exclusive ends, as in text[:end]. A last position at the end of the text stays at the last token
        of the text; the end token is one further.
        """
        ends = []
        for text, wanted in zip(texts, char_ends, strict=True):
            spans = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            stops = torch.tensor([stop for _, stop in spans])
            ends.append([int(torch.searchsorted(stops, end)) for end in wanted])
        return ends

    def save(self, folder: Path | str) -> None:
        """Model and tokenizer, in transformers' own format."""
        with _quiet():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """A saved policy. Raises ValueError for a folder that is not there or holds no model."""
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            found = "holds no config.json" if folder.is_dir() else "is not there"
            raise ValueError(
                f"the policy folder {folder} {found}; give one that LanguagePolicy.save or save_pretrained wrote."
            )
        with _quiet(), torch.random.fork_rng(devices=[]):
            model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
            return cls(model, AutoTokenizer.from_pretrained(folder, local_files_only=True))

    def encode_answers(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Complete answers as token ids (N, T), the end token added, padded on the right, and their mask."""
        coded = [[*ids, self.tokenizer.eos_token_id] for ids in self._ids(texts)]
        width = max(map(len, coded))
        ids = torch.tensor([ids + [self._fill] * (width - len(ids)) for ids in coded], device=self.model.device)
        return ids, mask_of(torch.tensor([len(ids) for ids in coded], device=self.model.device), width)

    def encode_prompts(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids (U, P), padded on the left, and their mask (U, P) bool."""
        coded = [self._prompt_ids(prompt) for prompt in prompts]
        unknown = self.tokenizer.unk_token_id
        for prompt, ids in zip(prompts, coded, strict=True):
            if not ids or (unknown is not None and unknown in ids):
                raise ValueError(
                    f"the prompt {prompt!r} is empty or has a character that the tokenizer does not know, so the model "
                    "cannot read it. Check that task and model belong together."
                )
        width = max(map(len, coded))
        prompt_ids = torch.tensor([[self._fill] * (width - len(ids)) + ids for ids in coded], device=self.model.device)
        lengths = torch.tensor([len(ids) for ids in coded], device=self.model.device)
        return prompt_ids, mask_of(lengths, width).flip(1)

    def _prompt_ids(self, prompt: str) -> list[int]:
        """A plain prompt with what the tokenizer puts before any text; a conversation as the chat template frames it,
        up to where the assistant speaks."""
        if not isinstance(prompt, Conversation):
            return self.tokenizer(str(prompt))["input_ids"]
        if not self.tokenizer.chat_template:
            raise ValueError(
                "the prompt is a conversation and this model's tokenizer has no chat template; choose "
                "task/prompt=question, r1_zero or terse, or an instruct model."
            )
        turns = [{"role": role, "content": content} for role, content in prompt.turns]
        framed = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(framed, add_special_tokens=False)["input_ids"]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts that go on from others: without the token with which a text begins."""
        return self.tokenizer([str(text) for text in texts], add_special_tokens=False)["input_ids"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' bar for every file: it would drown the one that says how the run goes."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
