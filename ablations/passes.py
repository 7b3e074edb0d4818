"""pass@k before the first and after the last step, with the counts that it comes from.

Every run is asked the same held-out problems, whatever its seed, so that the problems an arm gains and loses can be
counted; the draws belong to the run's seed.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from pyarrow import parquet

from ablations import evaluate, journal

FILE = "evaluation.parquet"  # in a run's folder: step, problem, level, samples, correct
PROBLEMS = "pass@k"  # the seed of the problems, the same for all runs


class Passes:
    """ks: of pass@k; none: nothing is measured. samples: answers to each of `problems` held-out problems. last: the
    step after which training ends.

    Raises ValueError for a k above `samples`.
    """

    def __init__(
        self, folder: Path, task, *, ks: Sequence[int], samples: int, problems: int, last: int, **sampling
    ) -> None:
        if ks and max(ks) > samples:
            raise ValueError(
                f"evaluate.pass_at.ks is {list(ks)} with {samples} answers to each problem; pass@k needs at least k. "
                f"Set evaluate.pass_at.samples={max(ks)} or ask for a smaller k."
            )
        self.file, self.task, self.ks, self.samples, self.last = Path(folder) / FILE, task, list(ks), samples, last
        self.sampling = sampling
        self.asked = list(dict.fromkeys(task.draw(problems, random.Random(PROBLEMS), "heldout"))) if ks else []

    def __call__(self, step: int, policy) -> dict[str, float]:
        """accuracy/heldout/pass_at_<k> at step 0 and at the last, nothing at the others; the counts go to the run's
        folder. Answers that could not be graded are left out of both."""
        if not self.ks or step not in (0, self.last):
            return {}
        rows = counted(policy, self.task, self.asked, samples=self.samples, **self.sampling)
        before = parquet.read_table(self.file).to_pylist() if self.file.is_file() else []
        kept = [row for row in before if row["step"] < step]  # of a run that goes on after an interruption
        journal.write_examples(self.file, [*kept, *({"step": step, **row} for row in rows)])
        enough = [row for row in rows if row["samples"] >= max(self.ks)]
        return {
            f"accuracy/heldout/pass_at_{k}": sum(
                evaluate.pass_at_k(row["samples"], row["correct"], k) for row in enough
            )
            / len(enough)
            for k in self.ks
            if enough
        }


def counted(policy, task, problems: Sequence, *, samples: int, **sampling) -> list[dict]:
    """One row per problem: its prompt, level, graded answers and right ones among them."""
    graded = evaluate.answers(policy, task, problems, samples=samples, greedy=False, **sampling)
    rows = {problem: [0, 0] for problem in problems}
    for answer in graded:
        if answer.grade.correct is not None:
            rows[answer.problem][0] += 1
            rows[answer.problem][1] += bool(answer.grade.correct)
    return [
        {"problem": problem.prompt, "level": problem.level, "samples": n, "correct": right}
        for problem, (n, right) in rows.items()
    ]
