"""The vocabulary of the reference cases, read into this project's knobs: one table per room, no rule for any file.

A case says what it computes in words that belong to no trainer (tests/reference/README.md). Here every word has its
function, the very one that training calls. Whatever a table does not hold is refused with the key, what stands there
and what may.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ablations import grpo
from ablations.knobs import (
    aggregate,
    baseline,
    combine,
    correction,
    credit,
    entropy,
    kl,
    ratio,
    reward,
    scale,
    surrogate,
    tokens,
    whiten,
)
from ablations.knobs.call import needs
from ablations.knobs.surrogate_covariance import KlCov
from ablations.vectors.case import BadCase, Node


class Form(NamedTuple):
    """One option: build(**settings) with every setting read from the case by its own reader."""

    build: Callable[..., Any]
    settings: Mapping[str, Callable[[Node], Any]]

    def read(self, node: Node, *others: str) -> dict[str, Any]:
        """The settings, from an object that may hold `others` beside them."""
        node.only(*others, *self.settings)
        return {key: reader(node[key]) for key, reader in self.settings.items()}


def _bound(function: Callable, **settings: Callable[[Node], Any]) -> Form:
    """The option is the function with its settings bound."""
    return Form(lambda **values: partial(function, **values), settings)


NUMBER, OPTIONAL = Node.number, Node.number_or_null


def _ddof(node: Node) -> int:
    if node.number() not in (0, 1):
        raise node.bad("0, 1")
    return int(node.value)


def _sign_mask(node: Node) -> dict[str, float] | None:
    return None if node.value is None else SIGN_MASK.read(node)


def _tis(sign_mask: dict[str, float] | None, **bounds) -> Callable:
    """The vocabulary allows TIS a sign mask too, and with one its formula is CISPO's."""
    return partial(surrogate.cispo, sign_mask=sign_mask, **bounds) if sign_mask else partial(surrogate.tis, **bounds)


BASELINES = {
    "group_mean": baseline.group_mean,
    "leave_one_out": baseline.leave_one_out,
    "batch_mean": baseline.batch_mean,
    "opo": baseline.opo,
    "best_minus_second": baseline.best_minus_second,
    "none": baseline.none,
}
STD = {"ddof": _ddof, "eps": NUMBER}
BATCH_STDS = {"raw": scale.batch_std, "centred": scale.batch_std_of_centred}
SCALES = {
    "none": _bound(scale.none),
    "gpg": _bound(scale.gpg),
    "group_std": Form(
        lambda of, **std: partial(scale.group_std, **std), STD | {"of": lambda node: node.one_of("raw", None)}
    ),
    "batch_std": Form(
        lambda of, **std: partial(BATCH_STDS[of], **std), STD | {"of": lambda node: node.one_of(*BATCH_STDS)}
    ),
}
EPS_FORMS = {
    "added_to_std": whiten.added_to_std,
    "added_to_variance": whiten.added_to_variance,
    "variance_floor": whiten.variance_floor,
}
WHITEN = {"sequences": whiten.sequences, "tokens": whiten.tokens}
RATIOS = {
    "token": ratio.token,
    "sequence_mean": ratio.sequence_mean,
    "sequence_sum": ratio.sequence_sum,
    "sequence_mean_straight_through": ratio.sequence_mean_straight_through,
}
SIGN_MASK = Form(dict, {"positive_above": NUMBER, "negative_below": NUMBER})
PROBABILITY_MASKS = {
    "by_sign": surrogate.probability_mask_by_sign,
    "symmetric": surrogate.probability_mask_symmetric,
}
BAND = {"eps_low": NUMBER, "eps_high": NUMBER}
BOUNDS = {"lower": OPTIONAL, "upper": OPTIONAL}
SURROGATES = {
    "ppo_clip": _bound(surrogate.ppo_clip, **BAND, dual_clip=OPTIONAL, delta=OPTIONAL),
    "unclipped_logp": _bound(surrogate.unclipped_logp),
    "cispo": _bound(surrogate.cispo, **BOUNDS, sign_mask=_sign_mask),
    "tis": Form(_tis, BOUNDS | {"sign_mask": _sign_mask}),
    "topr": Form(
        lambda sign_of, **bounds: partial(surrogate.topr, **bounds),
        BOUNDS | {"sign_of": lambda node: node.one_of("reward")},
    ),
    "sapo": _bound(surrogate.sapo, tau_pos=NUMBER, tau_neg=NUMBER),
    "gmpo": _bound(surrogate.gmpo, **BAND),
    "vespo": _bound(surrogate.vespo, k_pos=NUMBER, lambda_pos=NUMBER, k_neg=NUMBER, lambda_neg=NUMBER),
    "probability_mask": Form(
        lambda rule, **steps: partial(PROBABILITY_MASKS[rule], **steps),
        {"rule": lambda node: node.one_of(*PROBABILITY_MASKS), "above": NUMBER, "below": NUMBER},
    ),
    "kl_cov": Form(KlCov, {"share": NUMBER, "coefficient": NUMBER}),
}
ONLY_POLICY = {"touches": lambda node: node.names("policy")}
TOKEN_MASKS = {
    "top_entropy": Form(
        lambda touches, **own: partial(tokens.high_entropy, **own), {"keep_share": NUMBER} | ONLY_POLICY
    ),
    "off_policy_sequence": Form(
        lambda touches, **own: partial(tokens.off_policy_sequence, **own), {"threshold": NUMBER} | ONLY_POLICY
    ),
}
CORRECTIONS = {
    "truncated_token_ratio": Form(
        lambda touches, **own: partial(correction.truncated_token_ratio, **own), {"cap": NUMBER} | ONLY_POLICY
    ),
}
ESTIMATORS = {
    "k1": kl.k1,
    "k2": kl.k2,
    "k3": kl.k3,
    "abs": kl.absolute,
    "k3_value_k2_gradient": kl.k3_value_k2_gradient,
    "ratio_k1": kl.ratio_k1,
    "ratio_k3": kl.ratio_k3,
}
PLACEMENTS = {
    "none": {None: (0, 0, 0), "ref": (0, 0, 0), "old": (0, 0, 0)},
    "loss": {"ref": (1, 0, 0), "old": (1, 0, 0, True)},
    "reward_before_baseline": {"ref": (0, 1, 0)},
    "reward_to_go": {"ref": (0, 0, 1)},
}
# The vocabulary says twice that the KL is spread over the tokens: every credit with the placements it goes with.
CREDITS = {
    "outcome": ("none", "loss", "reward_before_baseline"),
    "reward_to_go": ("reward_to_go",),
    "given_token_advantages": ("none", "loss"),
}
AGGREGATES = {
    "sequence_mean": aggregate.sequence_mean,
    "token_mean": aggregate.token_mean,
    "sequence_sum": aggregate.sequence_sum,
    "constant": aggregate.constant,
    "sum_over_constant": aggregate.sum_over_constant,
}
BATCH_MEAN = {"constant": True, "sum_over_constant": False}  # what `batch_mean` has to be, where that is not free

ADVANTAGE_KEYS = (
    "computes",
    "reward_parts",
    "unscored",
    "baseline",
    "scale",
    "whiten",
    "credit",
    "overlong",
    "kl",
    "report",
)
LOSS_KEYS = ("token_masks", "ratio", "log_ratio_clamp", "surrogate", "sampler_correction", "aggregate", "entropy_bonus")
SPLIT_KEYS = ("micro_batches", "update_batches")


class Plan(NamedTuple):
    """What a case asks for. knobs: the rooms that its computation enters, None in the others."""

    knobs: grpo.Knobs
    beta: float
    part_weights: list[float]
    given_advantages: bool
    group_statistics: tuple[str, ...]  # "baseline=group_mean" ...: what needs two scored answers in every group
    drop_truncated: bool


def for_advantages(options: Node) -> Plan:
    """The rooms from reward to advantage. Raises BadCase."""
    options.only(*ADVANTAGE_KEYS)
    return _plan(options, {})


def for_loss(options: Node) -> Plan:
    """All rooms. Raises BadCase."""
    options.only(*ADVANTAGE_KEYS, *LOSS_KEYS, *SPLIT_KEYS)
    return _plan(options, _loss_rooms(options))


def estimator(node: Node) -> Callable:
    """options.kl -> the KL's knob; k3 with beta 0 where the case has none."""
    node.only("placement", "estimator", "ratio_gradient", "reference", "beta", "log_ratio_clamp", "value_clamp")
    clamps = {key: node[key].number_or_null() for key in ("log_ratio_clamp", "value_clamp")}
    if node["estimator"].value is None:
        node["placement"].one_of("none")
        return partial(kl.k3, **clamps)
    chosen = node["estimator"].pick(ESTIMATORS)
    if "ratio" not in needs(chosen):
        node["ratio_gradient"].one_of(None)
        return partial(chosen, **clamps)
    return partial(chosen, attached=node["ratio_gradient"].pick({"attached": True, "detached": False}), **clamps)


def weights_of(options: Node, term: str) -> Callable | None:
    """options.aggregate -> the knob of one of the terms policy, kl, entropy; None where that term is null."""
    node = options["aggregate"].only("policy", "kl", "entropy", "rows", "length_constant", "batch_mean")
    if node[term].value is None:
        return None
    chosen, name = node[term].pick(AGGREGATES), node[term].value
    settings: dict[str, Any] = {"rows": node["rows"].pick({None: "all", "all": "all", "non_empty": "non_empty"})}
    if name in BATCH_MEAN:
        settings["length"] = node["length_constant"].number()
        node["batch_mean"].one_of(BATCH_MEAN[name], *([] if term == "policy" else [not BATCH_MEAN[name]]))
    return partial(chosen, **settings)


def _plan(options: Node, loss_rooms: dict[str, Any]) -> Plan:
    options["credit"].one_of(*CREDITS)
    options["kl"]["placement"].one_of(*CREDITS[options["credit"].value])
    options["unscored"].one_of("excluded", None)
    where = options["kl"]["reference"].pick(options["kl"]["placement"].pick(PLACEMENTS))
    rooms = {"kl": estimator(options["kl"]), "placement": kl.Placement(*where), **loss_rooms}
    given, statistics = options["credit"].value == "given_token_advantages", ()
    if given:
        for room in ("baseline", "scale", "whiten", "reward_parts"):
            options[room].one_of(None)
    else:
        rooms |= _advantage_rooms(options)
        statistics = _group_statistics(options, rooms)
    knobs = grpo.Knobs(**(dict.fromkeys(grpo.Knobs._fields) | rooms))
    drop = options["overlong"].only("mode", "touches")["mode"].one_of("none", "mask", "drop") == "drop"
    parts = options["reward_parts"]["weights"].items()
    beta = options["kl"]["beta"].number()
    return Plan(knobs, beta, [entry.number() for entry in parts] or [1.0], given, statistics, drop)


def _advantage_rooms(options: Node) -> dict[str, Any]:
    form = options["scale"]["name"].pick(SCALES)
    return {
        "transform": reward.none,
        "combine": _combine(options["reward_parts"]),
        "baseline": options["baseline"].pick(BASELINES),
        "scale": form.build(**form.read(options["scale"], "name")),
        "credit": credit.outcome,
        "whiten": _whiten(options["whiten"]),
    }


def _combine(node: Node) -> Callable:
    if node.value is None:
        return combine.sum_then_normalise
    return node.only("combine", "weights")["combine"].pick({"normalise_each_then_sum": combine.normalise_each_then_sum})


def _whiten(node: Node) -> Callable:
    if node.value is None:
        return whiten.none
    node.only("over", "subtract_mean", "divide", "ddof", "eps", "eps_form")
    divide = node["divide"].one_of(False, True)
    # Without the division these three say nothing and are null in the files; the knob wants numbers all the same.
    spread = {"ddof": 0, "eps": 0.0, "eps_form": whiten.added_to_std}
    if divide:
        spread = {
            "ddof": _ddof(node["ddof"]),
            "eps": node["eps"].number(),
            "eps_form": node["eps_form"].pick(EPS_FORMS),
        }
    chosen = node["over"].pick(WHITEN)
    return partial(chosen, subtract_mean=node["subtract_mean"].one_of(False, True), divide=divide, **spread)


def _group_statistics(options: Node, rooms: dict[str, Any]) -> tuple[str, ...]:
    names = {"baseline": options["baseline"].value, "scale": options["scale"]["name"].value}
    lists = {"baseline": baseline.NEEDS_TWO_ANSWERS, "scale": scale.NEEDS_TWO_ANSWERS}
    functions = {room: getattr(rooms[room], "func", rooms[room]) for room in names}
    return tuple(f"{room}={name}" for room, name in names.items() if functions[room] in lists[room])


def _loss_rooms(options: Node) -> dict[str, Any]:
    form = options["surrogate"]["name"].pick(SURROGATES)
    settings = form.read(options["surrogate"], "name")
    clamps = options["log_ratio_clamp"].only("token", "sequence")
    if form is SURROGATES["gmpo"]:  # it builds its ratio itself, under the same bound
        settings["token_clamp"] = clamps["token"].interval()
    rooms = {
        "surrogate": form.build(**settings),
        "ratio": ratio_of(options),
        "correction": _correction(options["sampler_correction"]),
        "tokens": _tokens(options),
        "aggregate": weights_of(options, "policy"),
        "aggregate_kl": weights_of(options, "kl"),
        "aggregate_entropy": weights_of(options, "entropy"),
        "entropy": entropy.Constant(options["entropy_bonus"].only("coefficient")["coefficient"].number()),
    }
    _refuse_terms_without_weights(options, rooms)
    if options["ratio"].value == "none":
        for room, knob in {"surrogate": rooms["surrogate"], "kl": estimator(options["kl"])}.items():
            if "ratio" in needs(knob):
                raise BadCase(
                    f"options.ratio is 'none', but options.{room} uses one; allowed with it: {', '.join(RATIOS)}."
                )
    unused = aggregate.token_mean  # a term that is null still needs weights, and no term reads them
    return rooms | {key: rooms[key] or partial(unused, rows="all") for key in ("aggregate_kl", "aggregate_entropy")}


def _refuse_terms_without_weights(options: Node, rooms: dict[str, Any]) -> None:
    terms = {
        "policy": True,
        "kl": options["kl"]["placement"].value == "loss",
        "entropy": rooms["entropy"].coefficient != 0,
    }
    for term, used in terms.items():
        if used and options["aggregate"][term].value is None:
            raise options["aggregate"][term].bad(f"{', '.join(AGGREGATES)}, since the case has that term")


def ratio_of(options: Node, default: str | None = None) -> Callable:
    """options.ratio and options.log_ratio_clamp -> the ratio's knob. default: what null means, where it may be null."""
    name, clamps = options["ratio"].value or default, options["log_ratio_clamp"]
    if name == "none":
        return partial(ratio.token, clamp=None)
    chosen = Node(name, options["ratio"].path).pick({**RATIOS, "none": None})
    per_token, on_rho = clamps["token"].interval(), clamps["sequence"].interval()
    if chosen is not ratio.token:
        return partial(chosen, token_clamp=per_token, clamp=on_rho)
    clamps["sequence"].one_of(None)  # the ratio of a token has one logarithm, and `token` bounds it
    return partial(chosen, clamp=per_token)


def _correction(node: Node) -> Callable:
    if node.value is None:
        return correction.none
    form = node["name"].pick(CORRECTIONS)
    return form.build(**form.read(node, "name"))


def _tokens(options: Node) -> dict[str, Callable]:
    """The rules in the order in which they are applied: truncated answers go first."""
    rules: dict[str, Callable] = {}
    overlong = options["overlong"]
    if overlong["mode"].value == "mask":
        rules["overlong"] = partial(tokens.not_truncated, touches=overlong["touches"].names(*tokens.Masks._fields))
    for node in options["token_masks"].items():
        form = node["name"].pick(TOKEN_MASKS)
        rules[node["name"].value] = form.build(**form.read(node, "name"))
    return rules
