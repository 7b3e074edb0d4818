"""Hard nulls: arms that cannot differ are compared bit by bit, not by a test.

A clip with one update per rollout binds nowhere, so every setting of it gives the same run to the last bit; a p value
would only say that nothing was seen.
"""

import numpy as np
import pandas as pd

from analysis.load import Stored
from analysis.question import Claim
from analysis.raw import Absent

TIMED = "seconds/"


def apart(stored: Stored, claim: Claim) -> str:
    """Where the two arms of a claim first differ, in words; empty if every metric but timings agrees bit by bit at
    every step of every pair of complete runs (NaN with NaN)."""
    x, y = (_arm(stored, {**claim.where, **{k: pair[side] for k, pair in claim.compare.items()}}) for side in (0, 1))
    return first_difference(x, y, [key for key in ("seed", "base", *stored.knobs) if key not in claim.compare])


def arms_apart(stored: Stored, one: str, other: str) -> str:
    """The same for two arms by name, paired by seed and base. Raises Absent for an arm without complete runs."""
    for arm in (one, other):
        if arm not in set(stored.runs.arm.astype(object)):
            raise Absent(f"no run has the arm {arm}; there are {', '.join(map(str, stored.runs.arm.cat.categories))}.")
    return first_difference(*(_arm(stored, {"arm": arm}) for arm in (one, other)), ["seed", "base"])


def first_difference(x: pd.DataFrame, y: pd.DataFrame, keys: list[str]) -> str:
    at = [*keys, "step", "metric"]
    both = x[[*at, "value"]].merge(y[[*at, "value"]], on=at, how="outer", suffixes=("", "_other"), indicator=True)
    pairs = x[keys].drop_duplicates().merge(y[keys].drop_duplicates(), on=keys)
    both = both.merge(pairs, on=keys)  # a run without partner is no difference
    bits = [both[column].to_numpy(dtype=float).view(np.int64) for column in ("value", "value_other")]
    nan = both.value.isna() & both.value_other.isna()
    differs = both[((bits[0] != bits[1]) & ~nan) | both._merge.ne("both")]
    if not len(differs):
        return ""
    first = differs.sort_values(["step", *keys, "metric"]).iloc[0]
    where = ", ".join(f"{key} {first[key]}" for key in keys if both[key].nunique() > 1)
    what = f"{first.value!r} and {first.value_other!r}" if first._merge == "both" else "logged in one of them only"
    return (
        f"the arms are not identical: {len(differs)} of {len(both)} numbers differ, first {first.metric} at step "
        f"{first.step}{' of ' + where if where else ''} ({what})"
    )


def _arm(stored: Stored, where: dict) -> pd.DataFrame:
    complete = stored.runs.run[stored.runs.state.eq("complete")].astype(object)
    rows = stored.rows[stored.rows.run.isin(complete)]
    for key, wanted in where.items():
        rows = rows[rows[key].eq(wanted).fillna(False).astype(bool)]
    rows = rows[~rows.metric.astype(str).str.startswith(TIMED)]
    return rows.assign(**{column: rows[column].astype(object) for column in rows.select_dtypes("category")})
