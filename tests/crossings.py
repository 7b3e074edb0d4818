"""Small crossings for tests, through the real command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from composing import composed
from hydra.utils import instantiate

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    "steps=2", "rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=6", "evaluate.problems=4",
    "machine.progress=false", "machine.checkpoint_every=1",
]


def untrained(folder: Path) -> Path:
    """A base policy that knows nothing; it costs nothing either."""
    cfg = composed()
    task = instantiate(cfg.task)
    made = instantiate(cfg.model)(
        task.alphabet, end=task.end, pad=task.pad, unknown=task.unknown, generator=torch.Generator().manual_seed(0)
    )
    made.save(folder)
    return folder


def environment(results: Path, **more: str) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ, "ABLATIONS_RESULTS": str(results), "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "MISCHIEF_CURE": str(results / "cure"), **more,
    }


def start(
    results: Path, *arguments: str, command: str = "ablations.run:cli", start_new_session: bool = False, **more: str
) -> subprocess.Popen:
    """A command of this project in a process of its own; `more` goes to its environment."""
    module, function = command.split(":")
    code = f"from {module} import {function}; {function}()"
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments], env=environment(results, **more),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=start_new_session,
    )


def finished(process: subprocess.Popen) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    out, err = process.communicate()
    return process.returncode, out, err


def ablate(results: Path, *arguments: str, **more: str) -> tuple[int, str, str]:
    return finished(start(results, *arguments, **more))


def states(results: Path, name: str = "single") -> dict[str, str]:
    """seed -> state, as the runs' folders say it."""
    found = {}
    for folder in (results / name / "runs").iterdir():
        seed = next(
            line.split(": ")[1] for line in (folder / "config.yaml").read_text().splitlines() if line[:6] == "seed: "
        )
        assert seed not in found
        found[seed] = json.loads((folder / "status.json").read_text())["state"]
    return found


