"""What runs answered before and after training, problem by problem: pass@k, its gain, and what was gained and lost."""

from pathlib import Path

import pandas as pd

from analysis import kept, passk, stats
from analysis.files import parquet_of

COLUMNS = ["arm", "base", "seed", "step", "problem", "level", "samples", "correct"]
METRIC = "accuracy/heldout/pass_at_"


def read(results: Path, ablation: str, runs: pd.DataFrame) -> pd.DataFrame:
    """The counted answers of all complete runs, columns COLUMNS; from the run folders, else from what a report kept.
    Empty where pass@k was not measured."""
    found = []
    for run in runs[runs.state.eq("complete")].astype(object).itertuples():
        file = results / ablation / "runs" / Path(run.folder or run.run).name / kept.EVALUATION
        if file.is_file():
            counts = parquet_of(file, "no pass@k of this run")
            found.append(counts.assign(arm=run.arm, base=run.base, seed=run.seed))
    if found:
        return pd.concat(found, ignore_index=True)[COLUMNS]
    file = results / ablation / kept.FOLDER / kept.EVALUATION
    return parquet_of(file, "no pass@k") if file.is_file() else pd.DataFrame(columns=COLUMNS)


def keep(counted: pd.DataFrame, ablation: Path) -> None:
    """Beside the report, for clones without run folders."""
    if len(counted):
        counted.to_parquet(ablation / kept.FOLDER / kept.EVALUATION, index=False)


def asked_for(metrics: list[str]) -> list[int]:
    """The k of the logged metrics pass_at_k, by size."""
    return sorted(int(m.removeprefix(METRIC)) for m in metrics if m.startswith(METRIC))


def gains(counted: pd.DataFrame, ks: list[int]) -> pd.DataFrame:
    """One row per arm, base and k: columns arm, base, k, before, after, gain, low, high, n.

    Each run has its own evaluation of the base policy at step 0, and its gain is over that one, so that the spread of
    the gains holds the base's error; where all runs share one evaluation of the base, its error is added
    (`passk.gain`). Problems with fewer than k graded answers are left out of that k on both sides.
    """
    rows = []
    for (arm, base), own in counted.groupby(["arm", "base"], observed=True, sort=False):
        for k in ks:
            sides = [_sides(run, k) for _, run in own.groupby("seed", observed=True)]
            sides = [(before, after) for before, after in sides if len(before)]
            if not sides:
                continue
            means = [[_mean(side, k) for side in pair] for pair in sides]
            shared = len(sides) > 1 and all(_same(before, sides[0][0]) for before, _ in sides)
            found = (
                passk.gain([after for _, after in sides], sides[0][0], k)
                if shared
                else stats.t_interval([after - before for before, after in means])
            )
            before, after = (sum(side) / len(means) for side in zip(*means, strict=True))
            rows.append((arm, base, k, before, after, found.mean, found.low, found.high, found.n))
    return pd.DataFrame(rows, columns=["arm", "base", "k", "before", "after", "gain", "low", "high", "n"])


def changes(counted: pd.DataFrame) -> pd.DataFrame:
    """Per arm and base, the problems by what became of them between each run's own first and last evaluation
    (`passk.gained_and_lost`), and `runs`, how many have two. Ungraded answers are left out of their run on both sides;
    where all runs share one evaluation of the base, its answers are counted once."""
    found = []
    for (arm, base), own in counted.groupby(["arm", "base"], observed=True, sort=False):
        runs = [run for _, run in own.groupby("seed", observed=True) if run.step.nunique() > 1]
        sides = [(before, after) for before, after in (_sides(run, 1) for run in runs) if len(before)]
        if not sides:
            continue
        bases = [run[run.step.eq(run.step.min())].sort_values("problem", ignore_index=True) for run in runs]
        shared = len(runs) > 1 and all(_same(one, bases[0]) for one in bases)
        table = passk.gained_and_lost(*zip(*sides, strict=True), shared=shared)
        found.append(table.assign(arm=arm, base=base, runs=len(sides)))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["arm", "base", "runs", "change"])


def _sides(run: pd.DataFrame, k: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    before, after = (run[run.step.eq(step)] for step in (run.step.min(), run.step.max()))
    enough = set(before.problem[before.samples >= k]) & set(after.problem[after.samples >= k])
    if run.step.nunique() < 2:
        enough = set()
    return tuple(side[side.problem.isin(enough)].sort_values("problem", ignore_index=True) for side in (before, after))


def _mean(table: pd.DataFrame, k: int) -> float:
    return float(passk.pass_at_k(table.samples.to_numpy(), table.correct.to_numpy(), k).mean())


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    columns = ["problem", "samples", "correct"]
    return one[columns].equals(other[columns])
