"""Low-rank adapters through peft, and what they spare: the reference is the same model with the adapter off."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ablations.policy.language import LanguagePolicy


def none(policy: LanguagePolicy) -> LanguagePolicy:
    """All parameters train."""
    return policy


def lora(policy: LanguagePolicy, *, rank: int, alpha: float, targets: Sequence[str] | str, seed: int) -> LanguagePolicy:
    """W + (alpha / rank) B A on the linear layers `targets` (Hu et al. 2021, arXiv:2106.09685); only A and B train.

    A is drawn from `seed`, B is 0, so the policy starts where its base is. targets: names of layers, or "all-linear".
    Without dropout, as everywhere. Raises ValueError for a rank below 1, an alpha of 0 and layers that do not exist.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"adapter=lora needs the package peft ({error}): pip install 'ablations[lora]'.") from None
    if rank < 1:
        raise ValueError(f"adapter.rank is {rank}; a matrix of rank 0 changes nothing. Set adapter.rank=8, say.")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ValueError(f"adapter.alpha is {alpha}; the update is scaled by alpha / rank. Set {2 * rank}.")
    wanted = targets if isinstance(targets, str) else list(targets)
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=wanted, lora_dropout=0.0, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        try:
            model = get_peft_model(policy.model, config)
        except ValueError as error:
            linear = [name for name, module in policy.model.named_modules() if type(module) is nn.Linear]
            there = sorted({name.rsplit(".", 1)[-1] for name in linear})
            raise ValueError(
                f"adapter.targets is {targets}: {str(error).splitlines()[0]} This model's linear layers are "
                f"{', '.join(there)}."
            ) from None
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:  # peft draws from the global generator
            drawn = torch.empty(parameter.shape, dtype=torch.float32)
            nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=generator)
            with torch.no_grad():
                parameter.copy_(drawn)
    return AdaptedPolicy(model, policy.tokenizer)


class AdaptedPolicy(LanguagePolicy):
    """A policy of which only an adapter trains. Saved, it is an ordinary model with the adapter merged into it."""

    def as_reference(self) -> "AdapterOff":
        """What the policy was before any update, without a copy of the weights."""
        return AdapterOff(self)

    def save(self, folder) -> None:
        """The merged model and tokenizer in transformers' own format, and the adapter alone in folder/adapter."""
        merged = copy.deepcopy(self.model).merge_and_unload()
        LanguagePolicy(merged, self.tokenizer).save(folder)
        self.model.save_pretrained(f"{folder}/adapter")


class AdapterOff(nn.Module):
    """The reference of an AdaptedPolicy; it has no parameters of its own, so it can neither drift nor take memory."""

    def __init__(self, policy: AdaptedPolicy):
        super().__init__()
        object.__setattr__(self, "_policy", policy)  # not a submodule: its parameters are the policy's

    @torch.no_grad()
    def token_logp(self, *arguments: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """As LanguagePolicy.token_logp, with the adapter off."""
        with self._policy.model.disable_adapter():
            return self._policy.token_logp(*arguments, temperature=temperature)
