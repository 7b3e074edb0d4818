"""Sampled answers for people to read, chosen by a rule and not by hand: the first of each kind in the file."""

from pathlib import Path

import pandas as pd

from analysis import kept
from analysis.files import parquet_of

COLUMNS = ["arm", "base", "seed", "step", "prompt", "gold", "reward", "length", "text"]
PER_ARM = 2  # right ones and wrong ones each, at the first and at the last step


def chosen(results: Path, ablation: str, runs: pd.DataFrame) -> pd.DataFrame:
    """For every arm and base the complete run with the lowest seed, at its first and last stored step the first
    answers that earned the most and the least; columns COLUMNS. From the run folders, else from what a report kept."""
    found = []
    complete = runs[runs.state.eq("complete")]
    for _, own in complete.groupby(["arm", "base"], observed=True):
        run = own.sort_values("seed").iloc[0]
        file = results / ablation / "runs" / Path(run.folder or run.run).name / "rollouts.parquet"
        if file.is_file():
            sampled = parquet_of(file, "no answers of this run")
            found.append(_of_run(sampled).assign(arm=run.arm, base=run.base, seed=run.seed))
    if found:
        return pd.concat(found, ignore_index=True)[COLUMNS]
    file = results / ablation / kept.FOLDER / kept.ANSWERS
    return pd.read_csv(file, keep_default_na=False) if file.is_file() else pd.DataFrame(columns=COLUMNS)


def _of_run(sampled: pd.DataFrame) -> pd.DataFrame:
    parts = []
    for step in dict.fromkeys([sampled.step.min(), sampled.step.max()]):
        at = sampled[sampled.step.eq(step)].dropna(subset="reward")
        best, worst = at.reward.max(), at.reward.min()
        for reward in dict.fromkeys([best, worst]):
            parts.append(at[at.reward.eq(reward)].drop_duplicates("prompt").head(PER_ARM))
    return pd.concat(parts) if parts else sampled.head(0)


def keep(answers: pd.DataFrame, ablation: Path) -> None:
    """Beside the report, for clones without run folders."""
    if len(answers):
        answers.to_csv(ablation / kept.FOLDER / kept.ANSWERS, index=False, lineterminator="\n")
