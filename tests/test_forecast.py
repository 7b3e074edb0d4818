"""What a crossing will cost, before it starts."""

import json
import os

import pytest
import torch
from composing import composed
from omegaconf import OmegaConf

from ablations import build, checkpoint, forecast
from ablations.status import CHECKPOINTS


@pytest.fixture
def config():
    return build.plain(composed("steps=10"))


@pytest.fixture
def measured(tmp_path, config):
    """Results with one run like that one, of 2 seconds a step; step 0 is not of a step's price."""
    folder = tmp_path / "earlier/runs/one-0123abcd"
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(config), folder / "config.yaml")
    rows = [{"step": step, "seconds/sample": 1.5 if step else 60.0, "seconds/update": 0.5} for step in range(11)]
    (folder / "timing.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def test_the_rest_of_a_run_costs_its_steps_after_the_last_checkpoint(measured, config):
    begun, fresh = measured / "x/runs/begun-1", measured / "x/runs/fresh-2"
    said = forecast.sentence(measured, [(config, fresh), (config, begun)], 1)
    assert said.startswith("Predicted: 40 s of one core for 2 runs, 40 s with 1 at a time (from the step times of 1 ")
    for step in (3, 6):
        checkpoint.save(begun / CHECKPOINTS, step, {"weights": torch.zeros(1)})
    (begun / CHECKPOINTS / "step-000009.ckpt.77.partial").write_bytes(b"cut off by a kill")
    said = forecast.sentence(measured, [(config, fresh), (config, begun)], 2)
    begins = "Predicted: 28 s of one core for 2 runs (1 of them from a checkpoint), 14 s with 2 at a time"
    assert said.startswith(begins)


def test_a_run_with_longer_answers_is_not_like_one_that_was_measured(measured, config):
    longer = build.plain(composed("steps=10", "rollout.max_new_tokens=99"))
    said = forecast.sentence(measured, [(config, measured / "a"), (longer, measured / "b")], 1)
    assert said.startswith("The cost of 2 runs cannot be predicted: no run like them")


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (["local"], os.cpu_count()),
        (["local", "n_jobs=3"], 3),
        (["ray", "ray.init.num_cpus=6"], 6),
        (["ray", "ray.init.num_cpus=6", "ray.remote.num_cpus=4"], 1),
        (["ray", "ray.init.num_cpus=6", "ray.remote.num_cpus=.5"], 12),
        (["ray", "ray.init.address=head:6379"], None),
        (["slurm"], 64),
        (["slurm", "array_parallelism=5"], 5),
    ],
)
def test_as_many_runs_at_a_time_as_the_launcher_has_room_for(launcher, expected):
    name, *settings = launcher
    told = OmegaConf.merge(OmegaConf.load(build.CONF / f"hydra/launcher/{name}.yaml"), OmegaConf.from_dotlist(settings))
    assert forecast.processes(told) == expected


def test_where_only_a_cluster_knows_its_room_no_time_on_the_clock_is_predicted(measured, config):
    said = forecast.sentence(measured, [(config, measured / "a")], None)
    assert said.startswith("Predicted: 20 s of one core for 1 runs (from the step times")
