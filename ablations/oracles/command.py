"""`ablate-check oracles`: every prediction, a table of them, and a report under results/oracles."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from ablations.identity import results_folder
from ablations.oracles import advantage, clipping, dynamics, entropy, kl, length, length_runs, own, sampling, table
from ablations.oracles.table import Row

Oracle = Callable[[], Iterable[Row]]

# Subject, functions that enumerate (seconds in all), functions that train (minutes).
SUBJECTS: dict[str, tuple[Sequence[Oracle], Sequence[Oracle]]] = {
    "A1": (advantage.EXACT, dynamics.TRAINED_BASELINE),
    "A2": (sampling.EXACT, sampling.TRAINED),
    "A3": (dynamics.EXACT, dynamics.TRAINED),
    "A4": (length.EXACT, length_runs.TRAINED),
    "A5": (kl.EXACT, dynamics.TRAINED_AT_REST),
    "A6": (clipping.EXACT, clipping.TRAINED),
    "A7": (entropy.EXACT, entropy.TRAINED),
}

HEADING = """# Oracles

What theory predicts for this code, and what this code does. Written by `ablate-check oracles`; nothing here is edited
by hand.

A prediction is a closed form evaluated beside the measurement, not a stored number. Measured is either an expectation
without sampling noise (every group of answers that a small policy can produce goes through the advantage, KL,
aggregation and loss functions that train language models, weighted by its probability), or a run of the training loop
on such a policy. Of a vector the entry with the largest difference is shown. A sampled mean has to be within 4
standard errors of its prediction; the seeds are fixed.

- A1 baseline and scale
- A2 groups that teach nothing, and dynamic sampling
- A3 time to learn
- A4 length
- A5 KL: estimator, place, and where training comes to rest
- A6 ratio and clip
- A7 entropy and pass@k
"""


def command(choices: Sequence[str] = ()) -> int:
    """Check and print. choices: any of file=PATH (a user's own predictions instead), only=A1,A5 (subjects),
    trained=false (no runs).

    The whole set is written to results/oracles/{summary.csv,report.md}; a part, or a file of one's own, is only
    printed. -> 0 if all hold, 1 if one does not, 2 if there was nothing to check.
    """
    try:
        given = settings(choices)
        oracles = (
            own.predictions(given["file"])
            if "file" in given
            else chosen(given.get("only"), given.get("trained", "true"))
        )
    except own.Unusable as error:
        print(f"ablate-check oracles: {error}")
        return 2
    torch.set_num_threads(1)  # the tensors are tiny, and sums are then the same bits on any machine
    print(table.header(), flush=True)
    rows = []
    for row in checked(oracles):
        print(table.line(row), flush=True)
        rows.append(row)
    print(table.counted(rows))
    if not given:
        folder = Path(results_folder()) / "oracles"
        try:
            print(f"Written: {write(rows, folder)}")
        except OSError as error:
            print(f"{folder} cannot be written ({error.strerror}); name another place in ABLATIONS_RESULTS.")
            return 2
    return int(not all(row.passed for row in rows))


def settings(choices: Sequence[str]) -> dict[str, str]:
    """["only=A1", "trained=false"] -> {"only": "A1", "trained": "false"}. Raises Unusable for anything else."""
    given = dict(choice.partition("=")[::2] for choice in choices)
    allowed = {"file", "only", "trained"}
    if strange := [
        choice for choice in choices if choice.partition("=")[0] not in allowed or not choice.partition("=")[2]
    ]:
        raise own.Unusable(
            f"{' '.join(strange)} says nothing here; allowed are file=PATH, only=A1,A5 and trained=false."
        )
    if "file" in given and len(given) > 1:
        raise own.Unusable(
            "file= has predictions of its own, so that only= and trained= choose nothing. Give file= alone."
        )
    return given


def chosen(only: str | None, trained: str) -> list[Oracle]:
    """The functions of the subjects named in `only` (all if None); trained "false" leaves out those that train. Raises
    Unusable."""
    names = [name.strip().upper() for name in only.split(",")] if only else list(SUBJECTS)
    if strange := [name for name in names if name not in SUBJECTS]:
        raise own.Unusable(
            f"only={only} names {', '.join(strange)}; the subjects are {', '.join(SUBJECTS)}. Name one or more of them."
        )
    if trained not in ("true", "false"):
        raise own.Unusable(
            f"trained={trained} is neither true nor false; with false the predictions that need a run are left out."
        )
    parts = 2 if trained == "true" else 1
    return [oracle for name in names for part in SUBJECTS[name][:parts] for oracle in part]


def checked(oracles: Iterable[Oracle]) -> Iterator[Row]:
    """The rows of all oracles; one that raises is a row that fails, so that the others are still seen."""
    for oracle in oracles:
        try:
            yield from oracle()
        except Exception as error:  # a broken knob must fail here and not hide the rest; it is printed and counted
            yield table.broken(oracle.__name__, error)


def write(rows: Sequence[Row], folder: Path) -> Path:
    """summary.csv and report.md -> the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.csv").write_text(table.as_csv(rows), encoding="utf-8")
    (folder / "report.md").write_text(table.as_markdown(rows, HEADING), encoding="utf-8")
    return folder
