"""The default setting has something to show: a base that solves some problems, and runs that learn the rest."""

import json

import pytest
from composing import composed

from ablations import run


@pytest.mark.slow
def test_the_default_run_rises_from_about_a_third_to_above_85_percent_on_five_of_five_seeds(results):
    for seed in range(5):
        overrides = [f"seed={seed}", "evaluate.every=0", "machine.tracking=none"]
        assert run.run(composed(*overrides), overrides) == "complete"
        (folder,) = results.glob(f"single/runs/seed{seed}-*")
        rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        assert 0.2 < rows[0]["accuracy/heldout"] < 0.45
        assert rows[-1]["step"] == 60 and rows[-1]["accuracy/heldout"] > 0.85
