"""The shipped questions run from end to end at their smallest budget, with the arms that their claims need."""

import resource

import pytest
from crossings import ablate

from analysis.claims import read_question
from analysis.load import load

CLAIM_A_GAIN = {"difficulty_bias", "group_size", "kl_placement"}  # over a reward that teaches nothing

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["aggregate_tuned", "length_bias", "reward_hacking", *sorted(CLAIM_A_GAIN)])
def test_a_shipped_question_runs_to_its_report_at_the_smallest_budget(name, results):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = ablate(results, f"ablation={name}", "budget=smoke", "machine.tracking=none", "machine.progress=false")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {spent:.1f} CPU seconds")  # told, and not judged: it is the machine's
    assert told[0] == 0, told

    name_of = f"{name}_smoke"  # beside the full results, and not over them
    question, stored = read_question(results, name_of), load(results, name_of)
    assert question.cells and sorted(stored.runs.hash) == sorted(cell["hash"] for cell in question.cells)
    assert set(stored.runs.state) == {"complete"}
    text = (results / name_of / "report.md").read_text()
    assert f"{len(question.cells)} of {len(question.cells)} runs are complete" in text and "## Verdict" in text
    assert all((results / name_of / file).stat().st_size for file in ("claims.csv", "summary.csv", "report.html"))

    # step 0 is the base policy: whatever the arm, one seed's runs start alike
    first = stored.rows[stored.rows.step.eq(0)]
    assert first.run.nunique() == len(question.cells) and "accuracy/heldout" in set(first.metric)
    first = first[~first.metric.astype(str).str.startswith("seconds/")]
    assert first.groupby(["seed", "base", "metric"], observed=True).value.nunique().le(1).all()
    later = stored.rows[stored.rows.step.eq(3) & stored.rows.metric.eq("surprisal/mean")]
    assert later.value.nunique() > later.seed.nunique(), "the arms must come apart"

    assert set(question.placebo) == ({"reward"} if name in CLAIM_A_GAIN else set())
    for key, wanted in question.placebo.items():
        assert stored.runs[key].astype(object).eq(wanted).any()
