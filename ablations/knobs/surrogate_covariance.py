"""Surrogates that choose a few tokens of the whole update batch by their covariance and treat those apart.

Cui et al. 2025 (arXiv:2505.22617): entropy falls with the covariance of log-probability and advantage, and a few
tokens carry most of it, cov_it = (A_it - mean A)(log pi_it - mean log pi), means over all unmasked tokens. `choose`
is called once per update batch, without gradient and before the batch is cut into micro-batches; the chosen tokens
(N, T) bool come back into the loss as `chosen`. Choosing per micro-batch instead would choose other tokens for every
micro-batch size.
"""

import torch
from torch import Tensor

from ablations.knobs.surrogate import in_proportion, ppo_clip, unclipped_ratio


class KlCov:
    """l = -A rho, no clip; plus coefficient |log rho| on the share of tokens with the largest covariance.

    KL-Cov (arXiv:2505.22617); verl loss_mode=kl_cov. Of n unmasked tokens k = max(1, int(n share)) are chosen; among
    equal covariances the first ones in row order. |log rho| has gradient 0 at rho = 1, so the penalty cannot act at
    the first update of a rollout. Raises ValueError unless 0 < share <= 1 and coefficient >= 0.
    """

    def __init__(self, share: float, coefficient: float):
        _check_share(share)
        if coefficient < 0:
            raise ValueError(
                f"surrogate.coefficient is {coefficient}; the penalty of KL-Cov is at least 0. verl's default is 0.1."
            )
        self.share, self.coefficient = share, coefficient

    @torch.no_grad()
    def choose(self, logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        """The k tokens of largest covariance. logp in nats, advantages: (N, T); mask: (N, T) bool -> (N, T) bool."""
        cov = covariance(logp, advantages, mask)
        order = cov.sort(descending=True, stable=True).indices
        return _scattered(mask, order[: _count(self.share, len(cov))])

    def __call__(
        self, ratio: Tensor, advantages: Tensor, logp: Tensor, logp_old: Tensor, mask: Tensor, chosen: Tensor
    ) -> Tensor:
        """All (N, T), mask and chosen bool -> token loss (N, T), 0 where masked."""
        distance = torch.where(mask & chosen, logp - logp_old, 0.0).abs()
        return unclipped_ratio(ratio, advantages, mask) + self.coefficient * distance


@in_proportion
class ClipCov:
    """PPO's clipped loss, but 0 on a random share of all tokens, drawn from those with low < covariance < high.

    Clip-Cov (arXiv:2505.22617); verl loss_mode=clip_cov. Of n unmasked tokens max(1, int(n share)) are drawn, or as
    many as lie in the band. The authors switch the ratio clip off in effect (eps 1). verl leaves tokens that the
    ratio clip binds out of the draw; here the draw does not look at the ratio, which is the paper's formula. The
    draws come from a generator of its own, seeded with `seed` and saved with the run. Raises ValueError unless 0 <
    share <= 1 and low < high.
    """

    def __init__(self, share: float, low: float, high: float, eps_low: float, eps_high: float, seed: int):
        _check_share(share)
        if not low < high:
            raise ValueError(
                f"surrogate.low is {low} and high is {high}; the band of covariances needs low < high. Swap them."
            )
        self.share, self.low, self.high, self.eps_low, self.eps_high = share, low, high, eps_low, eps_high
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def choose(self, logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        """A random draw from the band. logp in nats, advantages: (N, T); mask: (N, T) bool -> (N, T) bool."""
        cov = covariance(logp, advantages, mask)
        band = ((cov > self.low) & (cov < self.high)).nonzero()[:, 0]
        order = torch.randperm(len(band), generator=self._generator).to(band.device)
        return _scattered(mask, band[order[: _count(self.share, len(cov))]])

    def __call__(self, ratio: Tensor, advantages: Tensor, mask: Tensor, chosen: Tensor) -> Tensor:
        """All (N, T), mask and chosen bool -> token loss (N, T), 0 where masked or chosen."""
        band = {"eps_low": self.eps_low, "eps_high": self.eps_high}
        return ppo_clip(ratio, advantages, mask & ~chosen, **band, dual_clip=None, delta=None)

    def state_dict(self) -> dict[str, Tensor]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._generator.set_state(state["generator"])


def covariance(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean A)(log pi - mean log pi) of the unmasked tokens, in row order: (N, T) -> (n,) float64."""
    logp, advantages = logp[mask].double(), advantages[mask].double()
    return (advantages - advantages.mean()) * (logp - logp.mean())


def _count(share: float, tokens: int) -> int:
    return max(1, int(tokens * share)) if tokens else 0


def _scattered(mask: Tensor, chosen: Tensor) -> Tensor:
    """Numbers of unmasked tokens in row order, (k,) -> (N, T) bool."""
    places = torch.zeros(int(mask.sum()), dtype=torch.bool, device=mask.device)
    places[chosen] = True
    result = torch.zeros_like(mask)
    result[mask] = places
    return result


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"surrogate.share is {share}; it is a share of all tokens, above 0 and at most 1.")
