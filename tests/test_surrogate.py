"""Token losses: published values, where each has a gradient, and what is chosen across a batch."""

import itertools
import math

import pytest
import torch
from token_rooms import close, evaluate, load, on_policy, options_of, padded, random_batch, rows_of

from ablations.knobs import surrogate
from ablations.knobs.call import call
from ablations.knobs.surrogate_covariance import ClipCov, KlCov, covariance

RATIOS = [0.01, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.29, 2.9, 3.1, 50.0]
GRID = list(itertools.product([1.0, -1.0, 0.0, 2.5, -0.3], RATIOS))


def one_token_each(pairs):
    """Rows of one token with the given (A, rho), log pi_old = -6, and the gradient variable log pi."""
    advantages, ratios = torch.tensor(pairs, dtype=torch.float64).T
    old = torch.full((len(pairs), 1), -6.0, dtype=torch.float64)
    logp = (old + ratios[:, None].log()).requires_grad_()
    mask = torch.ones(len(pairs), 1, dtype=torch.bool)
    return {"advantages": advantages[:, None], "logp": logp, "logp_old": old, "mask": mask, "rewards": advantages}


def loss_and_gradient(knob, pairs, **changes):
    """Of each row of `one_token_each`: (loss, d loss / d log pi), both (N,)."""
    values = one_token_each(pairs)
    knob = load("surrogate", knob, **changes) if isinstance(knob, str) else knob
    values["ratio"] = call(load("ratio", "token", clamp=None), values)
    loss = call(knob, values)
    loss.sum().backward()
    return loss.detach()[:, 0], values["logp"].grad[:, 0]


# --- PPO -------------------------------------------------------------------------------------------------------------


def test_the_clip_binds_in_the_direction_of_the_advantage_only():
    """trl#3120: eps 0.2; of four tokens outside the band two are clipped."""
    pairs = [(1, 1.5), (1, 0.5), (-1, 1.5), (-1, 0.5)]
    loss, gradient = loss_and_gradient("ppo_clip", pairs)
    close(-loss, [1.2, 0.5, -1.5, -0.8])
    assert (gradient == 0).tolist() == [True, False, False, True]  # a share of 0.5; outside the band are all four


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.05, 0.5), (0.9, 3.0)])
def test_a_token_is_live_iff_it_may_still_move_in_the_direction_of_its_advantage(low, high):
    _, gradient = loss_and_gradient("ppo_clip", GRID, eps_low=low, eps_high=high)
    for (advantage, rho), slope in zip(GRID, gradient.tolist(), strict=True):
        live = (advantage > 0 and rho < 1 + high) or (advantage < 0 and rho > 1 - low)
        assert slope == (pytest.approx(-advantage * rho) if live else 0)


@pytest.mark.parametrize("bound", ["dual_clip", "delta"])
def test_dual_clip_and_delta_stop_a_negative_advantage_at_their_bound(bound):
    loss, gradient = loss_and_gradient("ppo_clip", GRID, **{bound: 3.0})
    plain_loss, plain_gradient = loss_and_gradient("ppo_clip", GRID)
    for k, (advantage, rho) in enumerate(GRID):
        if advantage < 0 and rho > 3:
            assert gradient[k] == 0 and loss[k] == pytest.approx(3 * abs(advantage))
        else:
            assert gradient[k] == plain_gradient[k] and loss[k] == plain_loss[k]


def test_delta_below_the_band_cuts_positive_advantages_too_and_dual_clip_never_does():
    pairs = [(1.0, 1.15), (-1.0, 1.15), (-1.0, 1.25)]
    close(loss_and_gradient("ppo_clip", pairs, delta=1.1)[1], [0.0, 1.15, 0.0])  # A < 0: the wider of the two bounds
    close(loss_and_gradient("ppo_clip", pairs, dual_clip=1.1)[1], [-1.15, 0.0, 0.0])


def test_a_clip_too_wide_to_bind_is_no_clip():
    wide = loss_and_gradient("ppo_clip", GRID, eps_low=1.0, eps_high=1e6)
    for one, other in zip(wide, loss_and_gradient("unclipped_ratio", GRID), strict=True):
        close(one, other, 0)


def test_a_loss_of_zero_on_policy_still_has_a_gradient():
    """open-r1#239: rewards 1, 0, 0, 1 of equal lengths, ratio 1."""
    loss, gradient = loss_and_gradient("ppo_clip", [(0.5, 1.0), (-0.5, 1.0), (-0.5, 1.0), (0.5, 1.0)])
    close(loss.sum(), 0.0)
    close(gradient, [-0.5, 0.5, 0.5, -0.5])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"eps_low": -0.1}, "eps_low is -0.1"),
        ({"eps_high": -0.1}, "eps_high is -0.1"),
        ({"dual_clip": 1.0}, "dual_clip is 1.0"),
        ({"delta": 0.0}, "delta is 0.0"),
    ],
)
def test_impossible_bands_are_refused(setting, says):
    with pytest.raises(ValueError, match=says):
        loss_and_gradient("ppo_clip", [(1.0, 1.0)], **setting)


# --- weights that are constant for the gradient ----------------------------------------------------------------------


def test_the_gradient_without_a_ratio_does_not_know_how_old_a_sample_is():
    close(loss_and_gradient("unclipped_logp", GRID)[1], [-advantage for advantage, _ in GRID])
    close(loss_and_gradient("unclipped_ratio", GRID)[1], [-advantage * rho for advantage, rho in GRID])


@pytest.mark.parametrize(("lower", "upper"), [(0.8, 1.2), (None, 5.0), (0.5, None), (None, None), (0.0, 0.2)])
def test_cispo_clips_the_weight_and_never_the_token(lower, upper):
    low, high = -math.inf if lower is None else lower, math.inf if upper is None else upper
    gradient = loss_and_gradient("cispo", GRID, lower=lower, upper=upper)[1]
    close(gradient, [-advantage * min(max(rho, low), high) for advantage, rho in GRID])


def test_cispos_bounds_are_absolute():
    """TRL's own default 0.2 multiplies even an on-policy token by 0.2."""
    close(loss_and_gradient("cispo_one_sided", [(1.0, 1.0)], upper=0.2)[1], [-0.2])


def test_cispos_sign_mask_silences_what_ppo_would_clip():
    gradient = loss_and_gradient("cispo_sign_mask", GRID)[1]
    for (advantage, rho), slope in zip(GRID, gradient.tolist(), strict=True):
        silent = (advantage > 0 and rho > 1.1) or (advantage < 0 and rho < 0.9)
        assert slope == pytest.approx(0 if silent else -advantage * min(max(rho, 0.9), 1.1))


def test_tis_is_cispo_with_bounds_0_and_1():
    close(loss_and_gradient("tis", GRID)[1], [-advantage * min(rho, 1.0) for advantage, rho in GRID])


def test_topr_goes_by_the_sign_of_the_reward_and_not_of_the_advantage():
    values = one_token_each([(1.0, 0.5), (1.0, 0.5), (-1.0, 0.5), (-1.0, 2.0), (1.0, 0.5)])
    values["rewards"] = torch.tensor([1.0, 0.0, 2.0, -1.0, math.nan], dtype=torch.float64)
    values["ratio"] = call(load("ratio", "token"), values)
    call(load("surrogate", "topr"), values).sum().backward()
    close(values["logp"].grad[:, 0], [-1.0, -0.5, 1.0, 1.0, -0.5])


def test_vespos_weight_is_1_on_policy_peaks_at_k_over_lambda_and_vanishes_on_both_sides():
    weight = {rho: -loss_and_gradient("vespo", [(1.0, rho)])[1].item() for rho in (1e-9, 0.6, 2 / 3, 0.7, 1.0, 50.0)}
    assert weight[1.0] == 1
    assert weight[2 / 3] > max(weight[0.6], weight[0.7])
    assert max(weight[1e-9], weight[50.0]) < 1e-15
    close(weight[2 / 3], math.exp(3) * (2 / 3) ** 2 * math.exp(-2))


def test_vespo_has_its_own_weight_for_negative_advantages():
    close(loss_and_gradient("vespo", [(-1.0, 0.5)])[1], [math.exp(2) * 0.5**3 * math.exp(-1)])


# --- soft gates, geometric means, bands of probability ---------------------------------------------------------------


def test_sapos_gate_is_the_derivative_of_its_sigmoid_with_a_temperature_by_sign():
    gradient = loss_and_gradient("sapo", GRID)[1]
    for (advantage, rho), slope in zip(GRID, gradient.tolist(), strict=True):
        gate = 1 / (1 + math.exp(-(1.0 if advantage > 0 else 1.05) * (rho - 1)))
        assert slope == pytest.approx(-advantage * rho * 4 * gate * (1 - gate), rel=1e-12)


def test_gmpo_is_a_geometric_mean_of_ratios_clipped_on_the_side_of_the_advantage():
    mask = torch.tensor([[True, True, False]] * 2)
    old = padded(torch.zeros(2, 3, dtype=torch.float64), mask)
    logp = padded(torch.tensor([[0.6, -0.7, 0.0]] * 2, dtype=torch.float64), mask).requires_grad_()
    advantages = torch.tensor([[2.0], [-2.0]], dtype=torch.float64).expand(2, 3)
    loss = load("surrogate", "gmpo")(advantages, logp, old, mask)
    up, down = math.exp((0.4 - 0.7) / 2), math.exp((0.6 - 0.4) / 2)
    close(loss, [[-2 * up, -2 * up, 0], [2 * down, 2 * down, 0]])
    (0.5 * loss).sum().backward()
    close(logp.grad, [[0, -up, 0], [down, 0, 0]])


def test_a_probability_band_frees_rare_tokens_and_stops_likely_ones():
    mask = torch.ones(3, 1, dtype=torch.bool)
    old = torch.tensor([[0.01], [0.5], [0.9]], dtype=torch.float64).log()
    new = torch.tensor([[0.10], [0.71], [0.69]], dtype=torch.float64).log()  # ratios 10, 1.42, 0.77
    values = {"ratio": (new - old).exp(), "logp": new, "logp_old": old, "mask": mask}
    for sign, by_sign, symmetric in (
        (1.0, [1, 0, 1], [1, 0, 0]),
        (-1.0, [1, 1, 0], [1, 0, 0]),
        (0.0, [1, 1, 0], [1, 0, 0]),
    ):
        values["advantages"] = torch.full((3, 1), sign, dtype=torch.float64)
        for option, live in (("by_sign", by_sign), ("symmetric", symmetric)):
            knob = load("surrogate", f"probability_mask_{option}", above=0.2, below=0.2)
            close(call(knob, values), -sign * values["ratio"] * torch.tensor(live)[:, None])


# --- chosen across the batch -----------------------------------------------------------------------------------------

CENTRED = torch.tensor([[-2.0, -1.0, 0.0], [1.0, 2.0, math.nan]], dtype=torch.float64)
FIVE = torch.tensor([[True, True, True], [True, True, False]])


def test_the_covariance_is_centred_on_the_means_over_the_unmasked_tokens():
    advantages = torch.tensor([[1.0, 1.0, 1.0], [-1.5, -1.5, math.nan]], dtype=torch.float64)
    close(covariance(CENTRED - 3, advantages + 0.7, FIVE), [-2.0, -1.0, 0.0, -1.5, -3.0])


@pytest.mark.parametrize(("share", "count"), [(0.002, 1), (0.2, 1), (0.39, 1), (0.4, 2), (0.99, 4), (1.0, 5)])
def test_kl_cov_chooses_the_whole_part_of_the_share_but_at_least_one_by_largest_covariance(share, count):
    advantages = torch.tensor([[1.0, 1.0, 1.0], [-1.5, -1.5, math.nan]], dtype=torch.float64)
    chosen = KlCov(share, 1.0).choose(CENTRED, advantages, FIVE)
    ranked = [(0, 2), (0, 1), (1, 0), (0, 0), (1, 1)]
    assert sorted(map(tuple, chosen.nonzero().tolist())) == sorted(ranked[:count])


def test_kl_cov_adds_the_distance_to_the_chosen_tokens_and_clips_nothing():
    batch = random_batch()
    batch["chosen"] = torch.zeros_like(batch["mask"])
    batch["chosen"][0, 0] = batch["chosen"][1, 3] = True  # the second is padding
    knob, plain = KlCov(0.1, 0.5), load("surrogate", "unclipped_ratio")
    batch["ratio"] = call(load("ratio", "token"), batch)
    added = call(knob, batch) - call(plain, batch)
    assert added.nonzero().tolist() == [[0, 0]]
    close(added[0, 0], 0.5 * math.log(1.24))


@pytest.mark.parametrize("option", ["kl_cov", "clip_cov"])
def test_the_choice_is_made_once_from_the_whole_batch(option):
    """Choosing in every micro-batch would take at least one token from each."""
    batch, knob = random_batch(), load("surrogate", option, share=0.1)
    choose = lambda rows: knob.choose(*(rows_of(batch, rows)[n] for n in ("logp", "advantages", "mask")))  # noqa: E731
    assert choose(range(6)).sum() == 1
    whole = evaluate(batch, surrogate=load("surrogate", option, share=0.1))[1]
    cut = evaluate(batch, [[0], [1], [2], [3], [4], [5]], surrogate=load("surrogate", option, share=0.1))[1]
    close(cut, whole)


def test_clip_cov_draws_only_from_the_band_and_not_more_than_its_share():
    batch = random_batch()
    arguments = batch["logp"], batch["advantages"], batch["mask"]
    cov = torch.zeros_like(batch["logp"])
    cov[batch["mask"]] = covariance(*arguments)
    low, high = cov[batch["mask"]].sort().values[[4, 11]].tolist()
    band = batch["mask"] & (cov > low) & (cov < high)
    assert band.sum() == 6
    draws = [ClipCov(0.2, low, high, 1.0, 1.0, seed).choose(*arguments) for seed in range(40)]
    assert all(draw.sum() == 3 and not (draw & ~band).any() for draw in draws)  # int(15 * 0.2)
    assert torch.stack(draws).any(0).equal(band), "every token of the band has its turn"
    assert ClipCov(1.0, low, high, 1.0, 1.0, 0).choose(*arguments).equal(band)


def test_clip_cov_silences_the_chosen_and_clips_the_others():
    batch = random_batch()
    batch["ratio"] = call(load("ratio", "token"), batch)
    batch["chosen"] = torch.arange(30).view(6, 5) % 3 == 0
    loss = ClipCov(0.1, 0.0, 9.0, 0.2, 0.28, 0)(batch["ratio"], batch["advantages"], batch["mask"], batch["chosen"])
    clipped = call(load("surrogate", "clip_higher"), batch)
    close(loss, torch.where(batch["chosen"], 0.0, clipped), 0)


def test_clip_covs_draws_come_from_its_own_generator_and_resume_where_they_were():
    batch = random_batch()
    arguments = batch["logp"], batch["advantages"], batch["mask"]
    first, second, resumed = (ClipCov(0.1, 0.0, 9.0, 1.0, 1.0, seed=s) for s in (5, 5, 6))
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    draws = [first.choose(*arguments) for _ in range(5)]
    torch.manual_seed(2)
    assert all(draw.equal(second.choose(*arguments)) for draw in draws)
    torch.random.set_rng_state(state)
    first.choose(*arguments)
    assert torch.random.get_rng_state().equal(state)
    resumed.load_state_dict(first.state_dict())
    assert all(first.choose(*arguments).equal(resumed.choose(*arguments)) for _ in range(5))


@pytest.mark.parametrize("option", ["kl_cov", "clip_cov"])
def test_padding_does_not_move_the_choice(option):
    batch = random_batch()
    wide = {n: torch.nn.functional.pad(batch[n], (2, 0), value=v) for n, v in
            (("logp", -math.inf), ("advantages", math.nan), ("mask", False))}  # fmt: skip
    choices = [
        load("surrogate", option, share=0.3).choose(b["logp"], b["advantages"], b["mask"]) for b in (batch, wide)
    ]
    assert choices[0].any()
    assert choices[1][:, 2:].equal(choices[0])


@pytest.mark.parametrize(
    "build",
    [lambda: KlCov(0.0, 1.0), lambda: KlCov(1.1, 1.0), lambda: KlCov(0.1, -1.0), lambda: ClipCov(0.1, 5, 1, 1, 1, 0)],
)
def test_impossible_shares_coefficients_and_bands_are_refused(build):
    with pytest.raises(ValueError, match="surrogate"):
        build()


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", options_of("surrogate"))
def test_an_advantage_of_0_has_no_gradient(option):
    batch = on_policy(random_batch())
    still = batch | {"advantages": torch.zeros_like(batch["advantages"])}
    assert not evaluate(still, beta=0.0, surrogate=option)[1].any()


@pytest.mark.parametrize("option", options_of("surrogate"))
def test_the_loss_is_0_at_padding_whatever_stands_there(option):
    batch = random_batch()
    batch["advantages"] = torch.where(batch["mask"], batch["advantages"], math.nan)
    batch["chosen"] = torch.ones_like(batch["mask"])
    batch["ratio"] = torch.where(batch["mask"], 1.1, math.inf).to(torch.float64)
    logp = batch["logp"].requires_grad_()
    loss = call(load("surrogate", option), batch)
    assert (loss[~batch["mask"]] == 0).all()
    if loss.requires_grad:
        loss.sum().backward()
        assert not logp.grad[~batch["mask"]].any()


def test_numbers_of_the_yaml_are_not_rounded_to_float32():
    ratio, mask = torch.tensor([[2.0]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    loss = surrogate.sapo(ratio, torch.tensor([[-1.0]], dtype=torch.float64), mask, tau_pos=1.0, tau_neg=1.05)
    close(loss, [[4 / 1.05 / (1 + math.exp(-1.05))]], 1e-15)


@pytest.mark.parametrize("settings", [{"tau_pos": 0.0}, {"tau_neg": -1.0}])
def test_a_gate_without_temperature_is_refused(settings):
    with pytest.raises(ValueError, match="both are above 0"):
        loss_and_gradient("sapo", [(1.0, 1.0)], **settings)


def test_gmpo_refuses_a_negative_band():
    with pytest.raises(ValueError, match="distances from 0 in log space"):
        loss_and_gradient("gmpo", [(1.0, 1.0)], eps_low=-0.1)
