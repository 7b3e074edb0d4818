"""A6: what importance ratios and their clipping do, and what they cannot do while there is one update per rollout."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ablations.knobs import baseline, reward, surrogate
from ablations.measure import as_floats as numbers
from ablations.oracles import enumerate as groups
from ablations.oracles import rules, runs
from ablations.oracles.advantage import a_bandit, is_last_token
from ablations.oracles.table import Row, exact
from ablations.policy.tabular import TwoTokens
from ablations.tasks.tabular import Table


def rivals() -> dict[str, dict]:
    """Surrogates and ratios that are one thing while the policy is the one that sampled."""
    by_sequence = rules.sequence_ratio("sequence_mean")
    return {
        "PPO clip 0.001": {"surrogate": rules.ppo_clip(1e-3, 1e-3)},
        "PPO clip 0.2/0.28, dual clip 3": {"surrogate": rules.ppo_clip(0.2, 0.28, dual_clip=3.0)},
        "GSPO": {"ratio": by_sequence, "surrogate": rules.ppo_clip(3e-4, 4e-4)},
        "GSPO, token form": {"ratio": rules.sequence_ratio("sequence_mean_straight_through")},
        "GMPO": {"surrogate": partial(surrogate.gmpo, eps_low=0.4, eps_high=0.4, token_clamp=None)},
        "SAPO": {"surrogate": partial(surrogate.sapo, tau_pos=1.0, tau_neg=1.05)},
        "CISPO": {"surrogate": partial(surrogate.cispo, lower=None, upper=5.0, sign_mask=None)},
        "VESPO": {
            "ratio": rules.sequence_ratio("sequence_sum"),
            "surrogate": partial(surrogate.vespo, k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0),
        },
        "no clip": {"surrogate": surrogate.unclipped_ratio},
    }


def table_of_two() -> tuple[TwoTokens, groups.Outcomes]:
    policy = TwoTokens(numbers([0.5, -0.4]), numbers([[0.2, -0.2], [0.9, -0.8]]))
    return policy, groups.outcomes(policy, is_last_token(1), longest=2)


def on_policy() -> Iterator[Row]:
    """A6.1: at ratio 1 all of them are REINFORCE."""
    policy, of = table_of_two()
    plain = groups.expected(policy, of, rules.knobs(surrogate=surrogate.unclipped_logp), group_size=3).ascent
    for number, (name, rooms) in enumerate(rivals().items(), 1):
        ascent = groups.expected(policy, of, rules.knobs(**rooms), group_size=3).ascent
        yield exact(f"A6.1.{number}", f"first update: {name} has the gradient of REINFORCE", plain, ascent)


def live() -> Iterator[Row]:
    """A6.2: which tokens still have a gradient, over a grid of ratios and both signs."""
    ratios = torch.tensor([0.3, 0.7, 0.79, 0.81, 1.0, 1.19, 1.21, 1.5, 2.9, 3.1], dtype=torch.float64).repeat(2, 1)
    advantages = numbers([[1.0], [-1.0]]).expand_as(ratios)
    low = high = 0.2
    up, down = advantages > 0, advantages < 0
    plain = (up & (ratios < 1 + high)) | (down & (ratios > 1 - low))
    cases = (
        ("A>0 and rho < 1+eps, or A<0 and rho > 1-eps", rules.ppo_clip(low, high), plain),
        (
            "dual clip 3: not where A<0 and rho > 3",
            rules.ppo_clip(low, high, dual_clip=3.0),
            plain & ~(down & (ratios > 3)),
        ),
        ("delta 3: not where A<0 and rho > 3", rules.ppo_clip(low, high, delta=3.0), plain & ~(down & (ratios > 3))),
    )
    for number, (what, clip, predicted) in enumerate(cases, 1):
        variable = ratios.clone().requires_grad_()
        loss = clip(ratio=variable, advantages=advantages, mask=torch.ones_like(up)).sum()
        (slope,) = torch.autograd.grad(loss, variable)
        yield exact(
            f"A6.2.{number}", f"a token has a gradient (-A) iff {what}", torch.where(predicted, -advantages, 0.0), slope
        )


def random_rewards() -> Iterator[Row]:
    """A6.3: rewards of +-1 by coin, after the policy has moved away from the sampler."""
    sampler, policy, low, high = a_bandit(0.0, 0.0, 0.0, 0.0), a_bandit(0.9, 0.05, -0.6, 0.1), 0.2, 0.28
    of = groups.outcomes(policy).randomly_paid([1.0, -1.0], [0.5, 0.5])
    arms = groups.outcomes(policy)
    now, old = arms.probability(policy).detach(), arms.probability(sampler).detach()
    rho = now / old

    def scores(where: Tensor) -> Tensor:
        """sum over the arms in `where` of pi_k s_k."""
        return now * where - now * (now * where).sum()

    free = rules.knobs(baseline=baseline.none, surrogate=surrogate.unclipped_ratio)
    clipped = rules.knobs(baseline=baseline.none, surrogate=rules.ppo_clip(low, high))
    unclipped = groups.expected(policy, of, free, group_size=1, sampler=sampler).ascent
    yield exact("A6.3a", "coin rewards, no clip: no expected ascent", [0.0] * 4, unclipped)
    pull = 0.5 * (scores(rho <= 1 - low) - scores(rho >= 1 + high))
    measured = groups.expected(policy, of, clipped, group_size=1, sampler=sampler).ascent
    yield exact(
        "A6.3b",
        "coin rewards, clip: E|A|/2 [sum_(rho<=1-eps) pi s - sum_(rho>=1+eps) pi s], back into the band",
        pull,
        measured,
    )


def moved(policy: TwoTokens, by: float) -> TwoTokens:
    """The same table with every logit moved, each by another amount of size `by`."""
    return TwoTokens(
        policy.first.detach() + by * numbers([1.0, -0.5]),
        policy.second.detach() + by * numbers([[0.3, -1.0], [0.8, 0.2]]),
    )


def stale_samples() -> Iterator[Row]:
    """A6.4: the ratio of a whole answer is exact wherever the policy has gone; the product of its tokens' own ratios is
    not."""
    sampler, of = table_of_two()
    errors = {}
    for number, by in enumerate((0.5, 1e-4, 5e-5), 1):
        policy = moved(sampler, by)
        true = groups.gradient((of.probability(policy) * of.rewards).sum(), policy)
        shared = {"baseline": baseline.none, "surrogate": surrogate.unclipped_ratio, "aggregate": rules.sequence_sum()}
        # The whole answer's ratio stands on each of its two tokens, so the sum over tokens counts it twice.
        by_answer = rules.knobs(**shared, ratio=rules.sequence_ratio("sequence_sum"))
        whole = groups.expected(policy, of, by_answer, group_size=1, sampler=sampler).ascent / 2
        by_token = groups.expected(policy, of, rules.knobs(**shared), group_size=1, sampler=sampler).ascent
        yield exact(f"A6.4a.{number}", f"answer's ratio, policy {by} away from the sampler: grad J", true, whole)
        errors[by] = (by_token - true).norm().item()
    own = groups.gradient((of.probability(sampler) * of.rewards).sum(), sampler)
    at_home = groups.expected(sampler, of, rules.knobs(**shared), group_size=1).ascent
    yield exact("A6.4b", "tokens' ratios, policy = sampler: grad J", own, at_home)
    why = "the error's next term is of the order of the distance, 1e-4"
    yield exact(
        "A6.4c",
        "tokens' ratios: the error is of first order, so half the distance halves it",
        2.0,
        errors[1e-4] / errors[5e-5],
        1e-3,
        why,
    )


def overlong() -> Iterator[Row]:
    """A6.5: DAPO's soft punishment, by hand."""
    longest, buffer = 20, 8
    lengths = torch.tensor([1, longest - buffer, longest - buffer // 2, longest - 2, longest, longest + 5])
    measured = partial(reward.soft_overlong, max_length=longest, buffer=buffer, factor=1.0)(lengths)
    yield exact(
        "A6.5",
        "0 up to Lmax - cache, then (Lmax - cache - L)/cache, -1 beyond Lmax",
        [0, 0, -0.5, -0.75, -1, -1],
        measured,
    )


EXACT = (on_policy, live, random_rewards, stale_samples, overlong)


# --- as runs ---------------------------------------------------------------------------------------------------------


def null_of_one_update() -> Iterator[Row]:
    """A6.1 as runs: with one update per rollout a clip cannot change a bit; with four it can."""

    def end(clip, epochs: int) -> Tensor:
        policy = a_bandit(0.3, 0.0, -0.2)
        collect = runs.sampling(Table(1, ["a"]), prompts=4, group_size=4)
        knobs = rules.knobs(scale=rules.group_std(), surrogate=clip)
        runs.finish(runs.trained(policy, knobs, collect, steps=20, lr=0.5, epochs=epochs, evaluate_every=0))
        return policy.arms.detach()

    clips = (rules.ppo_clip(1e-3, 1e-3), rules.ppo_clip(0.2, 0.28, dual_clip=3.0), surrogate.unclipped_ratio)
    tight, usual, free = (end(clip, 1) for clip in clips)
    what = "20 sampled updates, one per rollout: eps 0.001, 0.2 or no clip end in the same bits"
    yield exact("A6.1r", what, torch.cat([free, free]), torch.cat([tight, usual]), 0.0, "not one bit")
    reused = [end(clip, 4) for clip in clips]
    different = float((reused[0] != reused[2]).any())
    yield exact(
        "A6.1n",
        "the same with four updates per rollout: eps 0.001 and no clip differ (1: they do)",
        1.0,
        different,
        0.0,
        "a comparison of bits",
    )


TRAINED = (null_of_one_update,)
