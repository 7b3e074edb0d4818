"""Which point is tried next: any of Optuna's samplers, made to agree with restarts, with several workers, and with
itself.

A sampler that is seeded once per process draws the same points in every worker and again after every restart. Here the
seed belongs to the trial: it is derived from the search's sampler seed and the trial's number, so workers draw apart,
and a search that was interrupted goes on with the points that it would have had. No point is tried twice: the same
seeds at the same point are the same numbers again.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GridSampler, RandomSampler
from optuna.trial import FrozenTrial

from ablations.search import space
from ablations.search.space import Space

TRIES = 20  # before a random new point is taken instead: a sampler that has settled on one point stays there


def grid(*, searched: Space, seed: int) -> GridSampler:
    """Every combination of the values that space.grid names, in an order drawn by the seed."""
    return GridSampler(space.grid(searched), seed=seed)


class Distinct(BaseSampler):
    """make(seed=, searched=) builds the sampler of one trial (searched only if it asks for it).

    one_sequence: the trials are terms of one sequence (grid, QMC), so all of them have the same seed.
    """

    def __init__(self, make: Callable[..., BaseSampler], searched: Space, seed: int, one_sequence: bool) -> None:
        self.make, self.searched, self.seed, self.one_sequence = make, searched, seed, one_sequence
        self.inner: BaseSampler | None = None

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """A sampler for this trial alone."""
        self.inner = self.sampler_of(trial.number)
        self.inner.before_trial(study, trial)

    def sampler_of(self, number: int) -> BaseSampler:
        """The sampler of a trial, made anew."""
        also = {"searched": self.searched} if "searched" in inspect.signature(self.make).parameters else {}
        return self.make(seed=self.seed if self.one_sequence else _derived(self.seed, number), **also)

    def most(self) -> int | None:
        """How many different points there can be; None without a bound."""
        inner = self.sampler_of(0)
        return len(inner._all_grids) if isinstance(inner, GridSampler) else space.size(self.searched)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The whole space, so that a point is drawn at once and can be compared with the others."""
        return dict(self.searched.distributions)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]) -> dict:
        """A point that no other trial has."""
        others = [other.params for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        fresh = study._storage.get_trial(trial._trial_id)  # with what before_trial wrote
        if set(fresh.params) == set(search_space):  # an interrupted trial goes on at its point
            return dict(fresh.params)
        for _ in range(TRIES):
            point = self._drawn(self.inner, study, fresh, search_space)
            if not space.same_point(point, others):
                return point
        chance = RandomSampler(seed=_derived(self.seed, trial.number))
        while space.same_point(point, others):  # ends: the budget is never more than there are points
            point = self._drawn(chance, study, fresh, search_space)
        return point

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, given: BaseDistribution) -> Any:
        """Never needed: the whole point is drawn at once."""
        raise RuntimeError(f"{name} is not in the space {', '.join(self.searched.distributions)}")

    def after_trial(self, study: Study, trial: FrozenTrial, state: Any, values: Sequence[float] | None) -> None:
        """Nothing: a grid's sampler would stop a loop that is not Optuna's. The budget ends a search."""

    def _drawn(self, sampler: BaseSampler, study: Study, trial: FrozenTrial, wanted: Mapping[str, Any]) -> dict:
        together = sampler.infer_relative_search_space(study, trial)
        point = sampler.sample_relative(study, trial, together)
        for name, given in wanted.items():
            if name not in point:
                single = given.single()
                point[name] = first(given) if single else sampler.sample_independent(study, trial, name, given)
        return {name: space.rounded(given, point[name]) for name, given in wanted.items()}


def first(given: BaseDistribution) -> Any:
    """A value of a distribution: the first choice, or the lower end."""
    return given.choices[0] if isinstance(given, CategoricalDistribution) else given.low


def _derived(seed: int, number: int) -> int:
    """A seed of 32 bits for one trial."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")
