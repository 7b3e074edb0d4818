"""The entropy bonus: the loss subtracts `coefficient` times the aggregated entropy of the whole distribution (nats)."""


class Constant:
    """The same coefficient throughout; 0 is no bonus, and then no entropy is differentiated.

    A small constant often either does nothing or lets entropy explode (Skywork-OR1, arXiv:2505.22312, sec. 4.5): the
    effect depends on how large the policy gradient is beside it.
    """

    def __init__(self, coefficient: float):
        self.coefficient = coefficient

    def update(self, measured: float) -> None:
        """Nothing follows from the measured entropy."""


class Adaptive:
    """A coefficient moved toward a target entropy by fixed steps, and switched off above the target.

    Skywork-OR1's adaptive entropy control (arXiv:2505.22312, sec. 3.2.4): with e_k the entropy of step k's samples,
    alpha_k = c_k if e_k <= target else 0, then c_(k+1) = c_k + step if e_k < target, c_k - step if e_k > target, kept
    in [low, high]. TRL use_adaptive_entropy. Call `update(e_k)` once per rollout, before its updates; `coefficient`
    is then alpha_k.

    target: nats per token, above 0; step, low, high: coefficient units. Raises ValueError unless low <= coefficient
    <= high and step >= 0.
    """

    def __init__(self, coefficient: float, target: float, step: float, low: float, high: float):
        if not low <= coefficient <= high or step < 0:
            raise ValueError(
                f"The adaptive entropy bonus has coefficient {coefficient}, bounds [{low}, {high}] and step {step}; "
                "it needs low <= coefficient <= high and step >= 0. Widen the bounds or move the coefficient."
            )
        self.target, self.step, self.low, self.high = target, step, low, high
        self._next = coefficient
        self.coefficient = 0.0  # nothing is applied before the first measurement

    def update(self, measured: float) -> None:
        """Set alpha for this step from the entropy just measured (nats per token), and move c for the next."""
        self.coefficient = self._next if measured <= self.target else 0.0
        direction = (measured < self.target) - (measured > self.target)
        self._next = min(max(self._next + direction * self.step, self.low), self.high)

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self.coefficient, "next": self._next}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coefficient, self._next = state["coefficient"], state["next"]
