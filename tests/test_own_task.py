"""Tasks other than the default one, through the command line: README's own, and the packaged model."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_pretrained import smollm2_cache  # noqa: F401  (a fixture)

README = Path(__file__).resolve().parent.parent / "README.md"
SHORT = ["base.clean_steps=120", "base.noisy_steps=40", "base.record_problems=50", "evaluate.problems=50"]
SHORT += ["evaluate.every=0", "machine.tracking=none"]


def ablate(folder, *overrides, results="results"):
    paths = [str(folder), str(README.parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "ABLATIONS_RESULTS": str(folder / results)}
    command = [sys.executable, "-m", "ablations.run", *overrides]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / results).glob("*/runs/*")
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()], run


@pytest.mark.slow
def test_the_task_in_readme_is_a_file_outside_the_package_and_trains_for_20_steps(tmp_path):
    text = README.read_text()
    (tmp_path / "my_task.py").write_text(re.search(r"```python\n(# my_task\.py.*?)```", text, re.DOTALL)[1])
    command = re.search(r"^ablate (task=own .*)$", text, re.MULTILINE)[1].split()
    assert "steps=20" in command
    rows, run = ablate(tmp_path, *command, *SHORT)
    assert rows[-1]["step"] == 20
    assert sum(row["gradient/norm"] > 0 for row in rows[1:]) > 10  # a step whose groups all agree has none
    assert rows[-1]["accuracy/heldout"] > rows[0]["accuracy/heldout"] + 0.1
    assert "my_task.Reverse" in (run / "config.yaml").read_text() and (run / "policy" / "config.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["arithmetic", "countdown", "sorting"])
def test_every_task_with_demonstrations_trains_a_model_from_nothing(task, tmp_path):
    rows, _ = ablate(tmp_path, f"task={task}", "base=slips", "steps=2", "task.levels=[1]", *SHORT, "rollout.prompts=4")
    assert rows[-1]["step"] == 2 and {"accuracy/lenient", "answers/none_share"} <= set(rows[-1])


@pytest.mark.slow
@pytest.mark.extra
def test_the_packaged_model_trains_for_20_grpo_steps(tmp_path, smollm2_cache):  # noqa: F811
    (tmp_path / "results").mkdir()
    shutil.copytree(smollm2_cache, tmp_path / "results" / "models", copy_function=os.link)
    settings = ["model=smollm2_135m", "task=arithmetic", "task/prompt=few_shot", "task.levels=[1]", "task.signs=false"]
    settings += ["task.operations=[+]", "rollout.prompts=2", "rollout.group_size=4", "rollout.max_new_tokens=4"]
    settings += ["rollout.temperature=0.7", "optimizer.lr=1e-5", "steps=20", "evaluate.problems=4", "evaluate.every=0"]
    settings += ["machine.tracking=none", "evaluate.measure_kl_every=0"]
    rows, run = ablate(tmp_path, *settings)
    assert rows[-1]["step"] == 20 and all(
        row["ratio/first_update_deviation"] < 1e-3 for row in rows[1:] if "ratio/max" in row
    )
    assert any(row["gradient/norm"] > 0 for row in rows[1:])
    assert (run / "policy" / "model.safetensors").is_file() and (run / "policy" / "chat_template.jinja").is_file()
