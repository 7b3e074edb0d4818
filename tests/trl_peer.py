"""TRL's own GRPOTrainer on a tiny model, with a record of every rollout that it trained on."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer


class Recording(NamedTuple):
    """rollouts: one mapping per generation, the rows of a prompt adjacent: prompt_ids, prompt_mask, completion_ids,
    completion_mask (N, ...) and rewards (N,). norms: per optimiser step, before clipping. parameters: after the last
    step, by name."""

    rollouts: list[dict[str, Any]]
    norms: list[float]
    parameters: dict[str, Tensor]


class Recorder(GRPOTrainer):
    """The trainer unchanged; what its own sampling and grading returned is kept before it shuffles the rows."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.rollouts: list[dict[str, Any]] = []

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self.rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self.rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        seen = {name: output[name].clone() for name in ("prompt_ids", "prompt_mask", "completion_ids")}
        seen |= {"completion_mask": output["completion_mask"].clone(), "rewards": self.rewards[:, 0].clone()}
        self.rollouts.append(seen)
        return output


def digits(completions: list[str], **_: Any) -> list[float]:
    """The reward: a point for every digit, half a point off for every character. TRL keeps rewards in float32, which
    holds these exactly."""
    return [sum(map(str.isdigit, text)) - len(text) / 2 for text in completions]


def trained(base: Path, prompts: list[str], output: Path, **settings: Any) -> Recording:
    """Train the policy saved in `base`, in float64, with GRPOConfig(**settings)."""
    config = GRPOConfig(
        output_dir=str(output),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **settings,
    )
    with global_generators_restored():
        trainer = Recorder(
            # A path would be loaded in float32; TRL reads the reference from the folder that the model names.
            LlamaForCausalLM.from_pretrained(base, dtype=torch.float64),
            reward_funcs=[digits],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=AutoTokenizer.from_pretrained(base),
        )
        trainer.train()
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    parameters = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    return Recording(trainer.rollouts, norms, parameters)


@contextlib.contextmanager
def global_generators_restored() -> Iterator[None]:
    """TRL seeds and uses the global generators; other tests find them as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(python)
    np.random.set_state(numpy)
