"""`ablate-check vectors`: every reference case as it is marked, and a checker that notices when something is wrong."""

import copy
import json
import random
from pathlib import Path

import pytest
import torch

from ablations import contradictions, grpo, vectors
from ablations.check import cli
from ablations.knobs import aggregate, baseline, kl, ratio, scale, surrogate, tokens, whiten
from ablations.knobs import group as by_group
from ablations.vectors import vocabulary
from ablations.vectors.case import Node, read
from ablations.vectors.replay import compute

FOLDER = Path(__file__).parent / "reference"
PATHS = sorted(FOLDER.glob("*.json"))
CASES = {path.stem: json.loads(path.read_text()) for path in PATHS}
EQUAL = [name for name, case in CASES.items() if case["expect"] == "equal"]


def case(name: str) -> dict:
    return copy.deepcopy(CASES[name])


@pytest.fixture
def check(tmp_path):
    """A case as a dict -> its verdict, read from a file like any other."""

    def verdict(content: dict) -> vectors.Verdict:
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(content))
        return vectors.check(path)

    return verdict


def outputs(name: str) -> dict[str, torch.Tensor]:
    return compute(read(FOLDER / f"{name}.json"))[0]


# --- as marked --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_case_is_as_marked(path):
    verdict = vectors.check(path)
    assert verdict.passed, str(verdict)


def test_the_command_counts_all_cases_and_says_how_close_each_one_is(capsys):
    assert cli(["vectors", str(FOLDER)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "182 passed, 0 failed"
    assert len(lines) == 183 and lines[0].startswith("passed  course_grpo_default  ") and "of 1e-09" in lines[0]


def test_the_files_are_the_published_ones():
    marks = [content["expect"] for content in CASES.values()]
    assert [marks.count(mark) for mark in ("equal", "differs", "refused")] == [160, 12, 10]


def correct(loss: float | list[float]) -> torch.Tensor:
    return torch.tensor(loss, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "loss"),
    {
        "oat_grpo_empty_row_nan": -0.00693323111256,
        "roll_agg_token-mean": 0.068618048828,
        "trl_e2e_real_trainer_bnpo": -0.0787159475413,
        "trl_gradaccum2_bnpo": -0.0711532739344,
        "trl_gradaccum_dapo_spg4_ga2": [-0.154610493625, -0.0278197175565],
        "verl_microbatch4_legacy_seq-mean-token-mean": -0.00739542301885,
        "verl_microbatch4_legacy_seq-mean-token-sum-norm": -0.562204877149,
        "verl_microbatch4_legacy_seq-mean-token-sum": -0.374803251433,
        "verl_microbatch4_legacy_token-mean": -0.0711651743226,
        "trl_gmpo": 0.0187888830039,  # the files of these two hold a constant of the empty row as well
        "trl_rloo_loss": 0.0632588825619,
    }.items(),
)
def test_where_the_trainer_is_wrong_the_loss_is_the_right_one(name, loss):
    torch.testing.assert_close(outputs(name)["loss"], correct(loss), rtol=0, atol=1e-11)


def test_dropped_answers_leave_the_groups_as_they_were():
    content = case("openinstruct_adv_mask_truncated_misgroups")
    inputs = content["inputs"]
    rows = list(zip(inputs["rewards"], inputs["group_ids"], inputs["truncated"], strict=True))
    kept = [(reward, group) for reward, group, cut in rows if not cut]
    members = {group: [reward for reward, own in kept if own == group] for _, group in kept}
    right = [reward - sum(members[group]) / len(members[group]) for reward, group in kept]
    ours = outputs("openinstruct_adv_mask_truncated_misgroups")["advantages"]
    torch.testing.assert_close(ours, torch.tensor(right, dtype=torch.float64))


def test_a_batch_mean_over_a_group_std_is_one_number_per_row():
    assert outputs("roll_reward_norm_batch_mean_group_std_shape_bug")["advantages"].shape == (16,)


def test_the_straight_through_kl_has_the_value_of_k3_and_the_gradient_of_k2():
    content = case("verl_kl_penalty_k3plus_broken")["inputs"]
    new, ref, mask = (torch.tensor(content[key], dtype=torch.float64) for key in ("logp_new", "logp_ref", "mask"))
    ours = outputs("verl_kl_penalty_k3plus_broken")
    inside = (mask == 1) & (ours["kl_token"] < 10)
    d = (ref - new)[inside]
    torch.testing.assert_close(ours["kl_token"][inside], d.exp() - d - 1)
    torch.testing.assert_close(ours["grad_logp_new"][inside], -d)
    assert correct(0.336222866988).sub(ours["kl_token"].sum() / mask.sum()).abs() < 1e-11


def test_the_rule_that_refuses_a_case_also_refuses_a_run():
    rules = (*baseline.NEEDS_TWO_ANSWERS, *scale.NEEDS_TWO_ANSWERS)
    assert {rule.__name__ for rule in rules} <= contradictions.GROUP_STATISTICS


@pytest.mark.parametrize("unscored", [False, True])
def test_one_scored_answer_left_in_one_group_is_refused(check, unscored):
    content = case("trl_adv_scale_group")
    if unscored:
        content["inputs"]["rewards"][:3] = ["NaN"] * 3
    else:
        content["inputs"]["group_ids"][3] = 99
    verdict = check(content)
    assert not verdict.passed and "one scored answer in group" in verdict.sentence
    assert check(content | {"expect": "refused"}).passed
    independent = content["options"] | {"baseline": "batch_mean", "scale": {"name": "none"}}
    assert not check(content | {"expect": "refused", "options": independent}).passed


# --- the checker notices ----------------------------------------------------------------------------------------------


def _nudged(value, weight: list, by: float):
    """The same nested lists with the first entry of weight 1 moved by `by` times its size, at least `by`."""
    if not isinstance(value, list):
        return value + by * max(1, abs(value))
    place = next(i for i, one in enumerate(weight) if (any(one) if isinstance(one, list) else one))
    return [*value[:place], _nudged(value[place], weight[place], by), *value[place + 1 :]]


@pytest.mark.parametrize("name", EQUAL[::5])
def test_one_changed_number_in_any_output_fails_the_case(check, name):
    for output in CASES[name]["compare"]:
        content = case(name)
        value = content["outputs"][output]
        per_token = isinstance(value, list) and isinstance(value[0], list)
        weight = content["inputs"]["mask"] if per_token else [1] * (len(value) if isinstance(value, list) else 1)
        content["outputs"][output] = _nudged(value, weight, 1e3 * content["verification"]["tol"])
        verdict = check(content)
        assert not verdict.passed and output in verdict.sentence, output


@pytest.mark.parametrize("key", ["logp_new", "logp_old", "logp_ref", "rewards"])
def test_one_changed_number_in_an_input_fails_the_case(check, key):
    content = case("trl_loss_grpo_kl_k3_is")
    weight = content["inputs"]["mask"] if key != "rewards" else [1] * 16
    content["inputs"][key] = _nudged(content["inputs"][key], weight, 1e-4)
    assert not check(content).passed


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("trl_loss_grpo", "differs"),
        ("trl_loss_grpo", "refused"),
        ("verl_adv_rloo_G1", "equal"),
        ("verl_adv_rloo_G1", "differs"),
        ("roll_agg_token-mean", "refused"),
    ],
)
def test_a_case_with_another_mark_fails(check, name, mark):
    assert not check(case(name) | {"expect": mark}).passed


def test_a_fault_that_we_share_is_not_taken_for_a_difference(check):
    content = case("verl_microbatch4_legacy_token-mean")
    ours = outputs("verl_microbatch4_legacy_token-mean")
    content["outputs"] = {key: ours[key].tolist() for key in ("loss", "grad_logp_new")}
    assert "fault" in check(content).sentence and not check(content).passed


def test_nothing_to_compare_is_no_agreement(check):
    assert not check(case("trl_loss_grpo") | {"compare": []}).passed


def _flipped_ddof(original):
    return lambda rewards, group, ddof: original(rewards, group, 1 - ddof)


def _whole_batch(original):
    return lambda rewards, group: original(rewards, torch.zeros_like(group))


def _swapped_sides(original):
    return lambda formula, logp, logp_ref, *clamps: original(formula, logp_ref, logp, *clamps)


def _one_more(original):
    return lambda *arguments, **settings: original(*arguments, **settings) + 1


def _doubled(original):
    return lambda *arguments, **settings: 2 * original(*arguments, **settings)


def _all_tokens(original):
    return lambda values, q: values.min() - 1


def _no_weight(original):
    return lambda weight, *rest: original(1.0, *rest)


def _sum_for_mean(original):
    return lambda values, mask: values.sum(1, keepdim=True)


def _constant_entry(name):
    return lambda original: dict(original, **{name: original["token_mean"]})


BROKEN = {
    "ddof": (by_group, "std", _flipped_ddof),
    "groups": (by_group, "mean", _whole_batch),
    "sign of the KL": (kl, "_estimate", _swapped_sides),
    "k3 without its last term": (kl, "_k3", _one_more),
    "KL in the reward": (grpo, "sequence_kl", _doubled),
    "KL to go": (grpo, "kl_to_go", _doubled),
    "number of rows": (aggregate, "_row_count", _one_more),
    "sequence weights": (vocabulary, "AGGREGATES", _constant_entry("sequence_mean")),
    "constant weights": (aggregate, "_positive", _one_more),
    "mean of the log-ratios": (ratio, "_row_mean", _sum_for_mean),
    "clamp of the log-ratio": (ratio, "bounded", lambda original: lambda values, clamp: values),
    "clip of the weight": (surrogate, "_weighted_logp", _no_weight),
    "clip of the ratio": (surrogate, "bounded", lambda original: lambda values, clamp: values),
    "threshold of the entropy": (tokens, "_quantile", _all_tokens),
    "form of eps": (vocabulary, "EPS_FORMS", lambda original: dict.fromkeys(original, whiten.added_to_std)),
    "sum over the terms": (grpo, "_sum", _doubled),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_knob_fails_a_case(monkeypatch, broken):
    module, name, breaking = BROKEN[broken]
    monkeypatch.setattr(module, name, breaking(getattr(module, name)))
    failed = next(verdict for verdict in map(vectors.check, PATHS) if not verdict.passed)
    assert "not equal" in failed.sentence  # by its number, and not because the broken knob raised


# --- other inputs -----------------------------------------------------------------------------------------------------


def _reordered(content: dict, order: list[int]) -> dict:
    """The same case with its rows in another order, and every group under another number."""
    count = len(order)
    for part in ("inputs", "outputs"):
        for key, value in content[part].items():
            if isinstance(value, list) and len(value) == count and key not in ("loss_per_microbatch", "output"):
                content[part][key] = [value[i] for i in order]
    for key in ("micro_batches", "update_batches"):
        if content["options"].get(key):
            content["options"][key] = [[order.index(row) for row in part] for part in content["options"][key]]
    if "group_ids" in content["inputs"]:
        content["inputs"]["group_ids"] = [1000 - 7 * group for group in content["inputs"]["group_ids"]]
    return content


@pytest.mark.parametrize("name", EQUAL[::3])
def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(check, name):
    content = case(name)
    count = len(next(value for value in content["inputs"].values() if isinstance(value, list)))
    verdict = check(_reordered(content, random.Random(name).sample(range(count), count)))
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("name", [name for name in EQUAL if CASES[name]["options"]["computes"] == "loss"][::4])
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(check, name):
    content = case(name)
    content["compare"] = [output for output in content["compare"] if output != "loss_per_microbatch"]
    rows = list(range(len(content["inputs"]["mask"])))
    random.Random(name).shuffle(rows)
    content["options"]["micro_batches"] = [rows[:1], rows[1:4], rows[4:]]
    verdict = check(content)
    assert verdict.passed, str(verdict)


def test_every_update_batch_has_its_own_denominators(check):
    content = case("verl_loss_vanilla_token-mean") | {"compare": ["loss"]}
    halves = [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]
    losses = []
    for half in halves:
        part = copy.deepcopy(content)
        for key, value in part["inputs"].items():
            if isinstance(value, list):
                part["inputs"][key] = [value[i] for i in half]
        losses.append(compute(Node(part, ""))[0]["loss"].item())
    content["options"]["update_batches"] = halves
    content["outputs"] = {"loss": losses}
    assert check(content).passed
    content["outputs"] = {"loss": sum(losses)}
    assert check(content).passed


def test_a_batch_std_of_centred_rewards_is_worked_by_hand(check):
    content = case("roll_reward_norm_group_mean_batch_std")
    content["inputs"] = {"rewards": [1.0, 0.0, 3.0, 1.0], "group_ids": [5, 5, 2, 2]}
    content["options"]["scale"] = {"name": "batch_std", "of": "centred", "ddof": 1, "eps": 0.0}
    spread = (2.5 / 3) ** 0.5
    content["outputs"] = {"advantages": [0.5 / spread, -0.5 / spread, 1 / spread, -1 / spread]}
    assert check(content).passed


def test_a_detached_ratio_is_a_constant_factor_of_the_kl(check):
    content = case("openinstruct_dapo_kl3")
    content["options"]["kl"]["ratio_gradient"] = "detached"
    assert check(content | {"compare": ["loss", "mean_kl"]}).passed
    assert not check(content | {"compare": ["grad_logp_new"]}).passed


def test_a_sign_mask_means_the_same_for_tis_and_for_cispo(check):
    content = case("roll_pg_cispo_unified")
    content["options"]["surrogate"]["name"] = "tis"
    assert check(content).passed


# --- bad input --------------------------------------------------------------------------------------------------------


def _without(content: dict, *path: str) -> dict:
    node = content
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return content


def _with(content: dict, *path_and_value) -> dict:
    *path, value = path_and_value
    node = content
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path_and_value", "words"),
    [
        (("options", "baseline", "group_median"), ["options.baseline", '"group_median"', "leave_one_out"]),
        (("options", "surrogate", "name", "ppo"), ["options.surrogate.name", '"ppo"', "ppo_clip", "kl_cov"]),
        (("options", "surrogate", "eps_low", "wide"), ["options.surrogate.eps_low", '"wide"', "a number"]),
        (("options", "surrogate", "eps", 0.1), ["options.surrogate", "'eps'", "eps_low"]),
        (("options", "scale", "ddof", 2), ["options.scale.ddof", "2", "0, 1"]),
        (("options", "scale", {"name": "none", "eps": 1e-6}), ["options.scale", "'eps'", "name"]),
        (("options", "ratio", None), ["options.ratio", "null", "sequence_mean"]),
        (("options", "ratio", "none"), ["options.ratio", "none", "options.surrogate"]),
        (("options", "log_ratio_clamp", "token", [1]), ["options.log_ratio_clamp.token", "[1]", "[low, high]"]),
        (("options", "aggregate", "policy", "mean"), ["options.aggregate.policy", '"mean"', "token_mean"]),
        (("options", "aggregate", "rows", "some"), ["options.aggregate.rows", '"some"', "non_empty"]),
        (("options", "aggregate", "kl", None), ["options.aggregate.kl", "null", "sequence_mean"]),
        (("options", "kl", "estimator", "k4"), ["options.kl.estimator", '"k4"', "k3"]),
        (("options", "kl", "placement", "reward_to_go"), ["options.kl.placement", "reward_to_go", "loss"]),
        (("options", "overlong", {"mode": "cut"}), ["options.overlong.mode", '"cut"', "drop"]),
        (("options", "overlong", {"mode": "drop"}), ["inputs", "truncated"]),
        (("options", "token_masks", [{"name": "rare"}]), ["options.token_masks[0].name", '"rare"', "top_entropy"]),
        (("options", "micro_batches", [[0, 1], [1, 2]]), ["options.micro_batches", "every row exactly once"]),
        (("options", "report", {"clip_frac": {"counts": "all", "over": "tokens"}}), ["counts", '"all"', "binding"]),
        (("options", "colour", "red"), ["options", "'colour'", "baseline"]),
        (("options", "computes", "everything"), ["options.computes", '"everything"', "aggregate"]),
        (("expect", "similar"), ["expect", '"similar"', "refused"]),
        (("compare", ["reward"]), ["compare[0]", '"reward"', "grad_logp_new"]),
        (("schema_version", 1), ["schema_version", "1", "2"]),
        (("inputs", "rewards", [0.0] * 15), ["inputs", "15", "16"]),
        (("inputs", "logp_old", [[0.0] * 3] * 16), ["logp_old", "(16, 3)", "(16, 10)"]),
        (("inputs", "logp_old", [[0.0] * 3, [0.0]]), ["inputs.logp_old", "same length"]),
        (("inputs", "rewards", ["high"] * 16), ["inputs.rewards", '"high"', "NaN"]),
        (("inputs", []), ["inputs", "[]", "an object"]),
        (("verification", {}), ["verification.tol", "null", "a number"]),
    ],
)
def test_an_unknown_word_fails_the_case_with_its_file_its_key_and_what_is_allowed(check, path_and_value, words):
    verdict = check(_with(case("trl_loss_grpo_kl_k3"), *path_and_value))
    assert not verdict.passed
    assert all(word in verdict.sentence for word in ["changed.json", *words]), verdict.sentence


@pytest.mark.parametrize("key", ["baseline", "scale", "ratio", "surrogate", "kl", "aggregate", "credit", "overlong"])
def test_a_missing_option_is_named(check, key):
    verdict = check(_without(case("trl_loss_grpo_kl_k3"), "options", key))
    assert not verdict.passed and f"options.{key}" in verdict.sentence


@pytest.mark.parametrize("key", ["logp_old", "logp_new", "logp_ref", "mask", "rewards", "group_ids"])
def test_a_missing_input_is_named(check, key):
    verdict = check(_without(case("trl_loss_grpo_kl_k3"), "inputs", key))
    assert not verdict.passed and key in verdict.sentence and "lack" in verdict.sentence


def test_a_file_that_is_no_json_fails_and_the_others_are_still_checked(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"options": ')
    (tmp_path / "b.json").write_text("[1]")
    (tmp_path / "c.json").write_text(json.dumps(case("trl_loss_grpo")))
    (tmp_path / "notes.txt").write_text("not a case")
    assert cli(["vectors", str(tmp_path)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert "a.json" in out[0] and "line 1 column" in out[0]
    assert "an object" in out[1] and out[2].startswith("passed") and out[3] == "1 passed, 2 failed"


def test_a_folder_without_cases_is_an_error(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert cli(["vectors", str(folder)]) != 0
        assert str(folder) in capsys.readouterr().out
