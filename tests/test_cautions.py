"""What cannot be compared is not, and what there was little to learn from is said."""

import pandas as pd
import pytest
from synthetic import Cell, write, write_folders, write_question

from analysis import cautions
from analysis.report import report

CLAIM = {
    "says": "a is better than b",
    "metric": "accuracy/heldout",
    "window": [10, 10],
    "compare": {"rollout.temperature": ["1.0", "0.6"]},
    "expect": "greater",
    "margin": 0.01,
}


def decoded(folder, metric="accuracy/heldout", temperatures=(("1.0", "1.0"), ("0.6", "0.6"))):
    """Two arms; the second text of each pair is what their config says of the sampling temperature."""
    cells = [
        Cell({"rollout.temperature": arm}, seed, {metric: {10: seed / 10 + 0.3 * (place == 0) + 0.01 * seed * place}})
        for seed in range(5)
        for place, (arm, _) in enumerate(temperatures)
    ]
    write(folder, "x", cells)
    write_question(folder, "x", [CLAIM | {"metric": metric}])
    write_folders(folder, "x", [cell._replace(knobs={"rollout.temperature": "t"}, hash=cell.id) for cell in cells])
    for cell in cells:
        place = folder / "x" / "runs" / f"{cell.slug}-{cell.id}"
        place.mkdir(exist_ok=True)
        config = f"rollout:\n  temperature: {dict(temperatures)[cell.knobs['rollout.temperature']]}\n"
        (place / "config.yaml").write_text(config + f"task: {{levels: [1]}}\nseed: {cell.seed}\n")
    report(folder, "x")
    return pd.read_csv(folder / "x" / "claims.csv").iloc[0]


def test_held_out_accuracy_under_two_decodings_is_not_compared(tmp_path):
    """sail-sg/understand-r1-zero#39, simpleRL-reason#52: one arm at temperature 1, the other at another one."""
    row = decoded(tmp_path)
    assert row.verdict == "no verdict" and row.difference == pytest.approx(0.28)
    assert "evaluated under different settings (rollout.temperature: 1.0 and 0.6)" in row.note


def test_under_one_decoding_it_is(tmp_path):
    assert decoded(tmp_path, temperatures=(("1.0", "1.0"), ("0.6", "1.0"))).verdict == "reproduced"


def test_greedy_answers_do_not_depend_on_the_temperature_and_training_metrics_are_what_was_trained(tmp_path):
    assert decoded(tmp_path / "greedy", "accuracy/heldout_greedy").verdict == "reproduced"
    assert decoded(tmp_path / "train", "accuracy/train").verdict == "reproduced"


def test_a_report_made_from_the_kept_tables_refuses_it_as_well(tmp_path):
    import shutil

    decoded(tmp_path)
    shutil.rmtree(tmp_path / "x" / "runs")
    (tmp_path / "mlflow.db").unlink()
    report(tmp_path, "x")
    assert pd.read_csv(tmp_path / "x" / "claims.csv").verdict[0] == "no verdict"


@pytest.mark.parametrize("key", ["task.levels", "task.template", "evaluate.problems", "rollout.max_new_tokens"])
def test_other_problems_another_template_and_another_length_are_other_settings(key):
    settings = {"a": {key: "1"}, "b": {key: "2"}}
    assert key in cautions.unlike(settings, pd.Series(["a"]), pd.Series(["b"]), "accuracy/heldout/pass_at_4")
    assert cautions.unlike(settings, pd.Series(["a"]), pd.Series(["a"]), "accuracy/heldout") == ""


def grouped(folder, sizes, answers, dead=0.5):
    cells = [
        Cell(
            {"rollout.group_size": str(size)},
            seed,
            {"groups/zero_advantage": dict.fromkeys(range(1, 21), dead)}
            | {"groups/zero_advantage_predicted": dict.fromkeys(range(1, 21), 0.705)}
            | {"samples/generated": dict.fromkeys(range(1, 21), float(n))},
        )
        for seed in range(2)
        for size, n in zip(sizes, answers, strict=True)
    ]
    write(folder, "x", cells)
    write_question(folder, "x", [{**CLAIM, "metric": "groups/zero_advantage", "expect": "less"}
                                 | {"compare": {"rollout.group_size": [sizes[-1], sizes[0]]}}])
    write_folders(folder, "x", cells)
    report(folder, "x")
    return (folder / "x" / "report.md").read_text()


def test_a_sweep_of_the_group_size_says_what_it_holds_fixed(tmp_path):
    assert "with the answers per step held fixed (128)" in grouped(tmp_path / "a", (2, 16), (128, 128))
    assert "with the prompts per step held fixed (16)" in grouped(tmp_path / "b", (2, 16), (32, 256))


def test_groups_that_nearly_all_agree_are_warned_of_with_the_share_to_expect(tmp_path):
    """CoursIA#10603: at a success rate of .18, groups of two leave 30 % of them to learn from."""
    text = grouped(tmp_path / "few", (2, 4), (32, 64), dead=0.72)
    assert "only 28% of the groups of rollout.group_size=2 (base ramble) had anything to learn from; 30% are" in text
    assert "anything to learn from" not in grouped(tmp_path / "many", (2, 4), (32, 64), dead=0.6)


def test_what_was_found_out_after_the_runs_is_a_caution_of_every_later_report(tmp_path):
    decoded(tmp_path)
    (tmp_path / "x" / "cautions.txt").write_text("the clock was wrong.\n\nso was the scale.\n")
    report(tmp_path, "x")
    written = (tmp_path / "x" / "report.md").read_text()
    assert "- **Caution**: the clock was wrong." in written and "- **Caution**: so was the scale." in written
