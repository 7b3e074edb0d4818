"""What a search will cost, before it starts."""

from ablations import forecast
from ablations.search.plan import Plan


def sentence(plan: Plan, done: int, confirms: bool) -> str:
    """Trials x seeds x predicted seconds, and the runs on fresh seeds if it confirms; or why that cannot be said."""
    left, per, steps = plan.budget - done, len(plan.seeds), plan.example["steps"]
    extra = len(plan.fresh) * (1 + plan.compare_default) if confirms else 0
    also = f", and {extra} runs on fresh seeds" if extra else ""
    measured = forecast.step_seconds(plan.results, plan.example)
    if measured is None:
        return f"Budget: {left} trials x {per} seeds{also}, of {steps} steps; no run like them was measured yet."
    one = measured[0] * steps
    total = one * (left * per + extra)
    return (
        f"Budget: {left} trials x {per} seeds x {one:.3g} s{also}: {forecast.spoken(total)} of one core, about "
        f"{forecast.spoken(total / plan.workers)} with {plan.workers} workers (from {measured[1]} runs like these)."
    )
