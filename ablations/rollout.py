"""One rollout: draw prompts, sample their groups, grade, reward, and keep the groups worth training on."""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ablations import measure
from ablations.grpo import PER_BATCH, total_rewards
from ablations.knobs.call import call, needs
from ablations.state import State
from ablations.tasks.problem import Outcome

FAILURES_ALLOWED = 0.1  # share of a rollout, for tasks that do not say


class Rollout(NamedTuple):
    """tensors: what `ablations.grpo.prepare` turns into an update batch, one row per answer. metrics: of everything
    that was drawn.
    examples: one mapping per answer with prompt, text, reward and so on, for people to read."""

    tensors: dict[str, Any]
    metrics: dict[str, float]
    examples: list[dict[str, Any]]


def collect(state: State, task, *, prompts: int, group_size: int, max_new_tokens: int, temperature: float) -> Rollout:
    """Sample `group_size` answers to each of `prompts` prompts at `temperature`, and again while groups are missing.

    With `keep.refill_rounds` = 0 every drawn group stays in the batch, and `kept` marks those that train (drop).
    Otherwise groups that fail the rule leave, and up to that many further rounds fill their places (dynamic sampling,
    DAPO, arXiv:2503.14476): the batch has the first `prompts` groups that passed, or fewer at the limit; with none at
    all the last round is returned untouched, to train on nothing. Whatever was drawn is counted in samples/generated
    and tokens/generated.
    """
    keep = state.knobs.keep
    drawn, passed, seconds = [], [], {"seconds/sample": 0.0, "seconds/grade": 0.0}
    missing = prompts
    for _ in range(1 + keep.refill_rounds):
        problems = draw(task, prompts, state)
        started = time.perf_counter()
        sample = state.policy.sample(
            [problem.prompt for problem in problems],
            group_size,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            generator=state.generators["sampling"],
        )
        seconds["seconds/sample"] += time.perf_counter() - started
        started = time.perf_counter()
        drawn.append(graded(problems, sample, group_size, task, state, first_group=len(drawn) * prompts))
        seconds["seconds/grade"] += time.perf_counter() - started
        chosen = first_groups(drawn[-1], missing) if keep.refill_rounds else drawn[-1]
        if chosen is not None:
            passed.append(chosen)
            missing -= len(chosen["group"]) // group_size
        if not missing:
            break
    everything, tensors = join(drawn), join(passed or drawn[-1:])
    metrics = measure.rollout_metrics(
        lengths=everything["lengths"],
        ended=~everything["truncated"],
        correct=everything["correct"],
        fillers=everything["fillers"],
        rewards=everything["total"],
        group=everything["group"],
    )
    metrics |= measure.checker_metrics(*(everything[name] for name in ("correct", "lenient", "total", "outcomes")))
    return Rollout(tensors, metrics | seconds, examples(tensors))


def draw(task, prompts: int, state: State) -> list:
    """`prompts` training problems, none of them retired. Raises RuntimeError if 1,000 draws bring no problem that is
    not retired."""
    problems, tries = [], 0
    while len(problems) < prompts:
        fresh = [p for p in task.draw(prompts - len(problems), state.data, "train") if p.key not in state.retired]
        problems += fresh
        tries = 0 if fresh else tries + 1
        if tries == 1000:
            raise RuntimeError(
                f"{len(state.retired)} problems are retired (solved at keep.retire_at or better) and 1,000 draws "
                "found no other: "
                "raise keep.retire_at, add levels to the task, or stop here."
            )
    return problems


def graded(problems, sample, group_size: int, task, state: State, first_group: int = 0) -> dict[str, Any]:
    """Grades and rewards of one sample as tensors: one row per answer, `group_size` adjacent rows per problem.

    Problems that are solved well enough (`keep.retire_at`) are retired on the way.
    """
    knobs = state.knobs
    each = [problem for problem in problems for _ in range(group_size)]
    ended = sample.ended.tolist()
    grades = [task.grade(problem, text, end) for problem, text, end in zip(each, sample.texts, ended, strict=True)]
    group = torch.arange(first_group, first_group + len(problems)).repeat_interleave(group_size)
    lengths, truncated = sample.mask.sum(1), ~sample.ended
    values = {"grades": grades, "texts": sample.texts, "lengths": lengths, "truncated": truncated, "group": group}
    parts, weights = reward_parts(knobs.reward, values | {"generator": state.generators["reward"]})
    total = total_rewards(parts, weights, knobs.transform, truncated)
    correct = measure.as_floats([math.nan if g.correct is None else float(g.correct) for g in grades])
    stop_if_broken(grades, getattr(task, "failures_allowed", FAILURES_ALLOWED))
    retire(correct, problems, state)
    step_ends = [[end for end, _ in g.steps] for g in grades]
    if "step_ends" in needs(knobs.credit):  # the task speaks of characters, the credit of tokens
        step_ends = state.policy.token_ends(sample.texts, step_ends)
    return {
        "prompt_ids": sample.prompt_ids,
        "prompt_mask": sample.prompt_mask,
        "ids": sample.ids,
        "mask": sample.mask,
        "logp_sampler": sample.logp,
        "entropies": sample.entropy,
        "lengths": lengths,
        "truncated": truncated,
        "group": group,
        "parts": parts,
        "part_weights": weights,
        "part_names": list(knobs.reward),
        "total": total,
        "kept": call(knobs.keep.rule, {"rewards": total, "group": group}),
        "correct": correct,
        "lenient": measure.as_floats([math.nan if g.any_answer is None else float(g.any_answer) for g in grades]),
        "outcomes": [g.outcome for g in grades],
        "fillers": measure.as_floats([g.fillers for g in grades]),
        "step_ends": step_ends,
        "step_rewards": [[reward for _, reward in g.steps] for g in grades],
        "texts": sample.texts,
        "problems": each,
    }


class CheckerBroken(RuntimeError):
    """The checker could not tell more answers of a rollout than a run may go on with."""


def stop_if_broken(grades, allowed: float) -> None:
    """Raises CheckerBroken if the checker failed, or ran out of time, on more than the share `allowed`."""
    broken = [grade for grade in grades if grade.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)]
    if len(broken) > allowed * len(grades):
        raise CheckerBroken(
            f"the checker could not tell {len(broken)} of {len(grades)} answers, for example {broken[0].answer!r} "
            f"({broken[0].outcome}); a run goes on with a share of {allowed}. Repair the checker, or set "
            "task.failures_allowed if hostile answers are expected."
        )


def reward_parts(reward: Mapping[str, Mapping], values: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Every part of the reward for every answer, (N, K) float64, and the parts' weights (K,)."""
    parts = [call(entry["part"], values).double() for entry in reward.values()]
    return torch.stack(parts, 1), measure.as_floats([float(entry["weight"]) for entry in reward.values()])


def retire(correct: Tensor, problems, state: State) -> None:
    """No positive resampling: a problem solved by at least the share `keep.retire_at` of its group is not drawn
    again."""
    share = state.knobs.keep.retire_at
    if share is None:
        return
    rates = correct.nan_to_num(0.0).view(len(problems), -1).mean(1).tolist()
    state.retired |= {problem.key for problem, rate in zip(problems, rates, strict=True) if rate >= share}


def first_groups(graded_: Mapping[str, Any], count: int) -> dict[str, Any] | None:
    """The rows of the first `count` kept groups, or None if no group is kept."""
    wanted = graded_["group"][graded_["kept"]].unique()[:count]
    rows = torch.isin(graded_["group"], wanted).nonzero()[:, 0]
    if not len(rows):
        return None
    return {name: value if name in PER_BATCH else _rows(value, rows) for name, value in graded_.items()}


def join(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """One mapping out of several, prompts padded on the left and completions on the right to the longest."""
    if len(draws) == 1:
        return draws[0]
    joined: dict[str, Any] = {}
    for name, first in draws[0].items():
        values = [each[name] for each in draws]
        if name in PER_BATCH:
            joined[name] = first
        elif not isinstance(first, Tensor):
            joined[name] = [item for value in values for item in value]
        else:
            joined[name] = torch.cat(_same_width(values, left=name.startswith("prompt_")))
    return joined


def _same_width(values: list[Tensor], left: bool) -> list[Tensor]:
    if values[0].dim() == 1 or values[0].shape[1] == 0:
        return values
    width = max(value.shape[1] for value in values)
    gaps = [width - value.shape[1] for value in values]
    return [pad(value, (gap, 0) if left else (0, gap)) for value, gap in zip(values, gaps, strict=True)]


def _rows(value, rows: Tensor):
    return value[rows] if isinstance(value, Tensor) else [value[i] for i in rows.tolist()]


def examples(tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answers in readable form: plain text, whatever classes of texts or numbers a task has, since they go into
    files that whoever reads them may not have the classes for."""
    columns = (
        tensors["problems"],
        tensors["texts"],
        tensors["total"].tolist(),
        tensors["lengths"].tolist(),
        tensors["truncated"].tolist(),
    )
    return [
        {
            "prompt": str(p.prompt),
            "gold": str(p.answer),
            "level": p.level,
            "text": text,
            "reward": reward,
            "length": n,
            "truncated": cut,
        }
        for p, text, reward, n, cut in zip(*columns, strict=True)
    ]
