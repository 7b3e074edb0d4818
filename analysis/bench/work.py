"""The same work for everyone: one model, one batch of prompts, one reward, one optimiser."""

import contextlib
import copy
import functools
import math
import random
import string
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import nn

from ablations import build, grpo, rollout
from ablations.policy.language import LanguagePolicy
from ablations.state import State, frozen
from ablations.tasks.problem import Grade, Problem

LETTERS = string.ascii_letters[:45]
END, PAD, UNKNOWN = "$", "_", "?"
NEVER = -1e4  # added to a logit: a token with it is never drawn
LEARNING_RATE = 1e-6  # so small that the lengths of the answers stay what they are over the rounds


class Work(NamedTuple):
    """size: an option of conf/model. natural: answers end by themselves, else all have `tokens` tokens. prompts of 16
    to 24 tokens, with `group` answers each. dead: share of the groups without an advantage."""

    size: str
    natural: bool
    prompts: int = 32
    group: int = 8
    tokens: int = 64
    dead: float = 0.0

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def ends(self) -> str:
        return "natural" if self.natural else "fixed"


@functools.cache
def config(size: str):
    build.register_resolvers()
    with initialize_config_dir(str(build.CONF), version_base=None):
        return compose("config", [f"model={size}"])


def policy_for(work: Work) -> LanguagePolicy:
    """An untrained model whose head has a constant bias: it says whether the end token can be drawn."""
    signs = dict(end=END, pad=PAD, unknown=UNKNOWN, generator=torch.Generator().manual_seed(0))
    made = instantiate(config(work.size).model)(LETTERS + END + PAD + UNKNOWN, **signs)
    old, end, pad = made.model.lm_head, made.tokenizer.eos_token_id, made.tokenizer.pad_token_id
    head = nn.Linear(old.in_features, old.out_features)
    head.weight = old.weight
    with torch.no_grad():
        head.weight[end] = 0.0  # the chance of an end is then nearly the same everywhere
        head.bias.zero_()
        head.bias[end] = 0.0 if work.natural else NEVER
        head.bias[pad] = NEVER
    head.bias.requires_grad_(False)
    made.model.lm_head = head
    return made.eval()


def prompts_for(work: Work) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(LETTERS, k=draw.randint(16, 24))) for _ in range(work.prompts)]


def verdicts(work: Work) -> list[bool]:
    """Every second answer of a group is right, but none in the groups that are to be dead."""
    live = work.prompts - round(work.dead * work.prompts)
    return [prompt < live and answer % 2 == 0 for prompt in range(work.prompts) for answer in range(work.group)]


class Timed:
    """Adds up the processor time of the calls of a function: on a shared core, others' work is not in it."""

    def __init__(self, function: Callable):
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments, **settings):
        started = time.process_time()
        try:
            return self.function(*arguments, **settings)
        finally:
            self.seconds += time.process_time() - started


class Task:
    """Always the same prompts, and verdicts by place."""

    def __init__(self, work: Work):
        self.problems = [Problem(key=p, prompt=p, answer="", level=1) for p in prompts_for(work)]
        self.all, self.left = verdicts(work), iter(())

    def draw(self, n: int, generator, split: str) -> list[Problem]:
        self.left = iter(self.all)
        return self.problems

    def grade(self, problem: Problem, text: str, ended: bool) -> Grade:
        return Grade(correct=next(self.left), format=True, answer=None, chain=True, fillers=0)


class Ours:
    """This project's step: sample, grade, update, as `ablate` runs it with the default knobs."""

    def __init__(self, work: Work):
        cfg, policy = config(work.size), policy_for(work)
        optimizer = torch.optim.AdamW(
            [p for p in policy.parameters() if p.requires_grad], lr=LEARNING_RATE, weight_decay=0.0
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        self.state = State(policy, frozen(policy), optimizer, schedule, build.knobs(cfg), 0)
        # An answer that was cut is as good as another: with fixed lengths all are.
        self.sampling = Timed(policy.sample)
        policy.sample = lambda *a, **k: _ended(self.sampling(*a, **k))
        shape = dict(
            prompts=work.prompts, group_size=work.group, max_new_tokens=work.tokens, temperature=cfg.rollout.temperature
        )
        task = Task(work)
        self.collect = Timed(lambda state: rollout.collect(state, task, **shape))
        self.rows = grpo.train(
            self.state,
            self._collect,
            lambda policy: {},
            steps=10**9,
            beta=0.0,
            temperature=cfg.rollout.temperature,
            epochs=1,
            minibatches=1,
            tokens_per_micro_batch=cfg["update"].tokens_per_micro_batch,
            clip=functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=1.0),
            recompute_logp=False,
            evaluate_every=0,
            measure_kl_every=0,
            sync_every=0,
            sync_mix=1.0,
        )
        next(self.rows)  # the row before any update

    def _collect(self, state):
        drawn = self.collect(state)
        mask, prompts = drawn.tensors["mask"], drawn.tensors["prompt_mask"]
        groups = torch.unique(drawn.tensors["group"], return_inverse=True)[1]
        first = torch.ones(len(groups), dtype=torch.bool)
        first[1:] = groups[1:] != groups[:-1]
        self.tokens, self.prompt_tokens = int(mask.sum()), int(prompts[first].sum())
        return drawn

    def step(self) -> dict[str, float]:
        """One step -> processor seconds of the whole, of the sampling and of the update; tokens."""
        self.sampling.seconds = self.collect.seconds = 0.0
        started = time.process_time()
        row = next(self.rows)
        whole = time.process_time() - started
        found = {"seconds": whole, "sampling": self.sampling.seconds, "update": whole - self.collect.seconds}
        found |= {"tokens": self.tokens, "packed": self.tokens + self.prompt_tokens}
        return found | {"skipped": row["update/skipped"]}


def _ended(sample):
    return sample._replace(ended=torch.ones_like(sample.ended))


def generate(policy: LanguagePolicy, work: Work) -> dict[str, float]:
    """transformers' generate on the same prompts."""
    ids, mask = policy.encode_prompts(prompts_for(work))
    ids, mask = ids.repeat_interleave(work.group, 0), mask.repeat_interleave(work.group, 0)
    settings = dict(max_new_tokens=work.tokens, do_sample=True, top_k=0, pad_token_id=policy.tokenizer.pad_token_id)
    started = time.process_time()
    with torch.no_grad():
        made = policy.model.generate(input_ids=ids, attention_mask=mask.long(), **settings)
    seconds = time.process_time() - started
    answers = made[:, ids.shape[1] :]
    ends = (answers == policy.tokenizer.eos_token_id).long()
    return {"seconds": seconds, "tokens": int((ends.cumsum(1) - ends == 0).sum())}


class Ceiling:
    """The matrix products of a model alone, at the shapes of the work: what no step of this arithmetic can beat."""

    def __init__(self, work: Work, policy: LanguagePolicy):
        self.rows, self.batch = work.rows, config(work.size)["update"].tokens_per_micro_batch
        weights = [p.detach() for p in policy.parameters() if p.dim() == 2]
        embedding = policy.model.get_input_embeddings().weight
        weights = [w for w in weights if w.data_ptr() != embedding.data_ptr()]
        layers = policy.model.config.num_hidden_layers
        joined = [torch.ones(3 * w.shape[1], w.shape[1]) for w in weights[:1]]  # q, k and v are one product
        hidden, wide = policy.model.config.hidden_size, policy.model.config.intermediate_size
        joined += [torch.ones(hidden, hidden), torch.ones(2 * wide, hidden), torch.ones(hidden, wide)]
        self.weights = joined * layers + [policy.model.lm_head.weight.detach()]

    @torch.no_grad()
    def decode(self) -> float:
        """Processor seconds of one token per row of the work, divided by the rows: least of three."""
        inputs = {w.shape[1]: torch.ones(self.rows, w.shape[1]) for w in self.weights}
        return _least(lambda: [inputs[w.shape[1]] @ w.t() for w in self.weights], 16) / self.rows

    @torch.no_grad()
    def train(self) -> float:
        """The same of a forward and backward pass over one micro-batch, by token."""
        pairs = [(torch.ones(self.batch, w.shape[1]), torch.ones(self.batch, w.shape[0]), w) for w in self.weights]
        return _least(lambda: [(x @ w.t(), g @ w, g.t() @ x) for x, g, w in pairs], 1) / self.batch


def _least(function: Callable, times: int) -> float:
    spent = []
    for _ in range(3):
        started = time.process_time()
        for _ in range(times):
            function()
        spent.append((time.process_time() - started) / times)
    return min(spent)


def forget_peak() -> None:
    """The highest resident memory counts from here on, where the kernel lets a process say so (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Highest resident memory of this process since then, in MiB; NaN where the kernel does not tell."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return math.nan


def trl_trainer(work: Work, rounds: int, between: Callable[[], None], output: str):
    """TRL's trainer on the same model and work -> a function that trains `rounds` steps: one mapping for each.

    between() runs after every step, outside its time: that is how everything else is interleaved. The batch is cut
    as TRL's users do, by accumulation, into the pieces that were fastest for it here.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    policy, verdict, seen = policy_for(work), verdicts(work), SimpleNamespace(tokens=0, started=0.0, steps=[])

    def reward(completions, completion_ids, **_):
        seen.tokens = sum(map(len, completion_ids))
        return [float(right) for right in verdict]

    class Watch(TrainerCallback):
        def on_step_begin(self, *_, **__):
            forget_peak()
            seen.started = time.process_time()

        def on_step_end(self, *_, **__):
            spent = time.process_time() - seen.started
            seen.steps.append({"seconds": spent, "tokens": seen.tokens, "peak_mb": peak_mb()})
            between()

    pieces = max(1, work.rows // TRL_ROWS)
    settings = GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        per_device_train_batch_size=work.rows // pieces,
        gradient_accumulation_steps=pieces,
        num_generations=work.group,
        max_completion_length=work.tokens,
        max_steps=rounds,
        temperature=1.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        beta=0.0,
        loss_type="grpo",
        max_grad_norm=1.0,
        seed=0,
    )
    trainer = GRPOTrainer(
        copy.deepcopy(policy.model),
        reward_funcs=[reward],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts_for(work)}),
        processing_class=policy.tokenizer,
        callbacks=[Watch()],
    )

    def run() -> list[dict[str, float]]:
        trainer.train()
        return seen.steps

    return run


TRL_ROWS = 64  # answers per forward pass of TRL's loss
