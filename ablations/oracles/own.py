"""A user's own predictions: a Python file with a function `predictions(ask)`, and what that function may ask for.

def predictions(ask):
    for p in (0.1, 0.5):
        measured = ask.weight(p, 8, "scale=max_rl")
        yield ask.exact(f"max_rl {p}", "weight of a prompt", predicted=(1 - (1 - p) ** 7) / p, measured=measured)
"""

import runpy
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from torch import Tensor

from ablations import build, grpo
from ablations.contradictions import Refused
from ablations.oracles import enumerate as groups
from ablations.oracles import runs, table
from ablations.oracles.advantage import is_last_token
from ablations.oracles.table import Row
from ablations.policy.tabular import Tabular, TwoClass
from ablations.tasks.tabular import Table

ENTRY = "predictions"


class Unusable(Exception):
    """What was given cannot be checked; the message says why and what to do."""


class Ask:
    """What the training code measures, with knobs chosen as on the command line of `ablate` ("scale=none",
    "kl.value_clamp=10").

    The KL coefficient is `beta`; its reference is the policy given as `reference`. Temperature 1, one update per
    rollout, nothing clipped by norm. `exact` and `sampled` make the rows of the table (see `ablations.oracles.table`).
    """

    exact = staticmethod(table.exact)
    sampled = staticmethod(table.sampled)

    def config(self, *overrides: str):
        """The composed config. Raises Unusable, with what is allowed, for an option or key that does not exist."""
        build.register_resolvers()
        try:
            with initialize_config_dir(str(build.CONF), version_base=None):
                return compose("config", list(overrides))
        except HydraException as error:
            raise Unusable(f"{' '.join(overrides)}: {str(error).partition('Config search path')[0].strip()}") from None

    def knobs(self, *overrides: str) -> grpo.Knobs:
        """The knobs that `ablate` would train with."""
        try:
            return build.knobs(self.config(*overrides))
        except Refused as error:
            raise Unusable(f"{' '.join(overrides)}: {error}") from None

    def ascent(
        self,
        policy: Tabular,
        rewards: Sequence[float] | Tensor | Callable[[Tensor], bool],
        *overrides: str,
        group_size: int,
        longest: int = 1,
        beta: float = 0.0,
        reference: Tabular | None = None,
        sampler: Tabular | None = None,
    ) -> Tensor:
        """Expected direction of training, minus the gradient of the loss by all parameters, over every group that the
        policy can draw.

        rewards: one per answer, in the order of `answers`; or a function of an answer's token ids that says whether it
        is right. sampler: who drew the answers, the policy itself if not given.
        """
        of = self.answers(policy, rewards if callable(rewards) else None, longest=longest)
        if not callable(rewards):
            paid = torch.as_tensor(rewards, dtype=torch.float64)
            if len(paid) != len(of.ids):
                raise Unusable(
                    f"{len(paid)} rewards were given for the {len(of.ids)} answers of the policy; give one for each."
                )
            of = of.paid(paid)
        chosen = self.knobs(*overrides)
        return groups.expected(
            policy, of, chosen, group_size=group_size, beta=beta, reference=reference, sampler=sampler
        ).ascent

    def answers(
        self, policy: Tabular, right: Callable[[Tensor], bool] | None = None, longest: int = 1
    ) -> groups.Outcomes:
        """Every answer that the policy can give to prompt "0": ids (A, T), mask (A, T), probability(policy) (A,)."""
        return groups.outcomes(policy, right, longest=longest)

    def weight(self, p: float, group_size: int, *overrides: str) -> float:
        """w(p) of a prompt that is solved with probability p: expected ascent of its logit over p (1 - p)."""
        ascent = self.ascent(TwoClass([p]), is_last_token(1), *overrides, group_size=group_size)
        return ascent.item() / (p * (1 - p))

    def trained(
        self,
        policy: Tabular,
        right: Sequence[str],
        *overrides: str,
        prompts: int,
        group_size: int,
        steps: int,
        lr: float,
        seed: int = 0,
        max_new_tokens: int = 1,
        **settings,
    ) -> list[dict[str, float]]:
        """Rows of a sampled run by plain gradient descent, which trains `policy` in place; row 0 is before the first
        update.

        right: letters with which right answers begin ("a" is token 0). settings: beta, reference, evaluate, and what
        grpo.train takes.
        """
        task = Table(len(policy.start), right)
        collect = runs.sampling(task, prompts=prompts, group_size=group_size, max_new_tokens=max_new_tokens)
        return list(runs.trained(policy, self.knobs(*overrides), collect, steps=steps, lr=lr, seed=seed, **settings))


def predictions(file: str) -> list[Callable[[], Iterable[Row]]]:
    """The one oracle of a user's file. Raises Unusable for a file that is missing, broken, or without the function."""
    path = Path(file)
    if not path.is_file():
        raise Unusable(f"there is no file {file}; give the path of a Python file that defines {ENTRY}(ask).")
    try:
        names = runpy.run_path(str(path))
    except Exception as error:  # whatever a user's file raises is the user's to read, with its line
        raise Unusable(f"{file} could not be read: {_where(error, path)}") from None
    if not callable(names.get(ENTRY)):
        own = sorted(name for name, value in names.items() if callable(value) and not name.startswith("_"))
        raise Unusable(
            f"{file} has no function {ENTRY}(ask); its functions are: {', '.join(own) or 'none'}. Define it, and let "
            "it yield ask.exact(...)."
        )
    return [lambda: _rows(names[ENTRY], path)]


def _rows(function: Callable, path: Path) -> Iterable[Row]:
    """The user's rows one by one; a fault in the middle is a row that fails and says on which line."""
    count = 0
    try:
        for row in function(Ask()) or ():
            if not isinstance(row, Row):
                raise Unusable(f"{ENTRY} yielded {row!r}; it has to yield ask.exact(...) or ask.sampled(...)")
            count += 1
            yield row
    except Exception as error:  # as above: the line in the user's file is what helps
        yield table.broken(path.name, f"after {count} predictions: {_where(error, path)}")
        return
    if not count:
        yield table.broken(path.name, f"{ENTRY} yielded nothing; it has to yield ask.exact(...) or ask.sampled(...)")


def _where(error: Exception, path: Path) -> str:
    """The error in one line, with the last line of the user's file that it came through."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    name = "" if isinstance(error, Unusable) else f"{type(error).__name__}: "
    return (f"line {lines[-1]}: " if lines else "") + name + " ".join(str(error).split())
