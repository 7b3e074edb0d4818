"""A new option is three edits, or none: the README's section on it, performed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from composing import composed
from hydra.utils import instantiate

from ablations import build, run
from ablations.contradictions import Refused

ROOT = Path(__file__).resolve().parent.parent
QUICK = ["steps=2", "rollout.prompts=4", "rollout.group_size=4", "evaluate.problems=20", "machine.tracking=none"]
NEVER_ENDS = ["base.clean_steps=4", "base.noisy_steps=2", "base.solved=null", "base.record_problems=20"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    """A base policy that has learnt next to nothing: what it writes is paid by a coin."""
    cfg, where = composed(*NEVER_ENDS), tmp_path_factory.mktemp("base")
    task, model = instantiate(cfg.task), instantiate(cfg.model)
    return str(instantiate(cfg.base)(model=model, task=task, results=where, progress=False))


# --- no edit: a function of the user's own, by its import path -------------------------------------------------------

MY_MODULE = '''
def over(centred, *, divisor):
    """A = c / divisor."""
    return centred / divisor


def tired(centred, hour_of_day):
    return centred


class Coins:
    """A reward that remembers how often it was asked."""

    def __init__(self, start):
        self.asked = start

    def __call__(self, lengths):
        self.asked += 1
        return (lengths + self.asked) % 2
'''


@pytest.fixture
def mine(tmp_path, monkeypatch) -> str:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_module.py").write_text(MY_MODULE)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    return "my_module"


def trained(base: str, *overrides: str) -> list[dict]:
    """Rows of a run of two steps."""
    overrides = [*QUICK, f"base.folder={base}", "reward=random", *overrides]
    assert run.run(composed(*overrides), overrides) == "complete"
    folder = max(Path(os.environ["ABLATIONS_RESULTS"]).glob("single/runs/*"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_a_function_of_ones_own_is_an_option_without_any_edit(base, mine):
    plain = trained(base, "scale=none")
    half = trained(base, "scale=none", f"scale._target_={mine}.over", "+scale.divisor=2")
    assert half[1]["gradient/norm"] == pytest.approx(plain[1]["gradient/norm"] / 2, rel=1e-6)
    assert len(half) == 3 and half[1]["reward/mean"] == plain[1]["reward/mean"]


def test_a_reward_of_ones_own_is_one_more_part(base, mine):
    part = f"{{part:{{_target_:{mine}.Coins,start:0}},weight:0.5}}"
    rows = trained(base, f"+reward.coins={part}")
    assert 0 < rows[1]["reward/part/coins"] < 1 and "reward/part/random" in rows[1]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["scale._target_=my_module.tired"], "scale: .*asks for hour_of_day; in this room it can have .*centred"),
        (["scale._target_=my_module.over"], "scale: .*asks for divisor; in this room it can have"),
        (["scale._target_=my_module.over", "+scale.by=2"], "scale: my_module.over was given by; it takes .*divisor"),
        (["scale._target_=my_module.under"], "scale: my_module.under cannot be imported"),
        (["scale._target_=no_such_module.over"], "scale: no_such_module.over cannot be imported.*PYTHONPATH"),
        (["+reward.coins={part:{_target_:my_module.Coins},weight:1}"], "reward: my_module.Coins .*'start'"),
        (["baseline=running_mean", "baseline.decay=2"], "baseline.decay is 2; .* 0 <= decay < 1"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_with_what_there_is(mine, overrides, sentence):
    with pytest.raises(Refused, match=sentence) as caught:
        build.knobs(composed("scale=none", *overrides))
    assert "\n" not in str(caught.value)


# --- three edits: a function, a yaml, a test -------------------------------------------------------------------------

FUNCTION = '''"""A baseline that one lucky answer cannot move."""

import torch
from torch import Tensor


def group_median(rewards: Tensor, group: Tensor) -> Tensor:
    """c_i = r_i - (lower) median of the scored rewards of the row's group. rewards, group (N,) -> (N,)."""
    centred = torch.zeros_like(rewards, dtype=torch.float64)
    for one in group.unique():
        rows = (group == one) & ~torch.isnan(rewards)
        if rows.any():
            centred[rows] = rewards[rows].double() - rewards[rows].double().median()
    return centred
'''
YAML = """# formula: r - median of the group
# paper: -
# peers: -
# The middle answer instead of the mean of all.
_target_: ablations.knobs.median.group_median
_partial_: true
"""
TEST = """import torch
from composing import knobs


def test_the_median_is_not_moved_by_one_lucky_answer():
    group = torch.zeros(3, dtype=torch.long)
    centred = knobs("baseline=group_median").baseline
    for best in (1.0, 100.0):
        assert centred(rewards=torch.tensor([0.0, 0.5, best]), group=group).tolist() == [-0.5, 0.0, best - 0.5]
"""


@pytest.fixture
def copied(tmp_path) -> Path:
    """The repository after the three edits."""
    where = tmp_path / "copy"
    for folder in ("ablations", "analysis", "conf", "tests"):
        ignored = ["__pycache__", "reference"] if folder == "tests" else ["__pycache__"]
        shutil.copytree(ROOT / folder, where / folder, ignore=shutil.ignore_patterns(*ignored))
    shutil.copy(ROOT / "pyproject.toml", where)
    (where / "ablations" / "knobs" / "median.py").write_text(FUNCTION)
    (where / "conf" / "baseline" / "group_median.yaml").write_text(YAML)
    (where / "tests" / "test_median.py").write_text(TEST)
    return where


def at(folder: Path, *command: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["ABLATIONS_RESULTS"] = str(folder / "results")
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=800
    )


def test_the_three_edits_make_an_option_that_trains(copied, base):
    done = at(copied, "-m", "ablations.run", *QUICK, f"base.folder={base}", "reward=random", "baseline=group_median")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (copied / "results").glob("single/runs/*")
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and rows[1]["gradient/norm"] > 0
    assert "group_median" in (folder / "config.yaml").read_text()


def test_a_new_option_is_covered_before_its_author_writes_a_test(copied):
    (copied / "tests" / "test_median.py").unlink()
    files = [f"tests/{name}.py" for name in ("test_every_option", "test_no_inert_knob")]
    done = at(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", "group_median", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 8, done.stdout
    yaml = copied / "conf" / "baseline" / "group_median.yaml"
    yaml.write_text(yaml.read_text().replace("median.group_median", "baseline.group_mean"))
    done = at(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "group_median", files[1])
    assert done.returncode == 1 and "has the gradient of baseline=group_mean on every input" in done.stdout


def test_the_options_own_test_runs_beside_the_others(copied):
    done = at(copied, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_median.py")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
