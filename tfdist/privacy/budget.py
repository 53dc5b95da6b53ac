"""The privacy budget of a model's training, and the part of it that is spent."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tfdist import validation
from tfdist.errors import TfdistError
from tfdist.privacy import accounting
from tfdist.privacy.accounting import NoisySteps

_HINT = "Train for fewer epochs, or say before the first fit how many there will be: make_private(model, steps=...)."


class PrivacyBudgetError(TfdistError, RuntimeError):
    """The error of a training that would spend more privacy than its budget has.

    Args:
        message: the text of the error.

    Attributes:
        epsilon: the epsilon of the budget.
        delta: the delta of the budget and of all that is spent.
        would_spend: the epsilon after the training that was asked for.
        spent: the epsilon that is spent so far.

    Example:
        >>> PrivacyBudgetError("too much", epsilon=3.0, delta=1e-5, would_spend=3.2, spent=2.9).would_spend
        3.2
    """

    def __init__(self, message: str, *, epsilon: float, delta: float, would_spend: float, spent: float) -> None:
        super().__init__(message, name="epsilon", received=would_spend)
        self.epsilon, self.delta, self.would_spend, self.spent = epsilon, delta, would_spend, spent

    def __reduce__(self) -> Any:
        fields = {"epsilon": self.epsilon, "delta": self.delta, "would_spend": self.would_spend, "spent": self.spent}
        return partial(PrivacyBudgetError, str(self), **fields), ()


@dataclass(frozen=True)
class Budget:
    """A privacy budget and the steps that have spent some of it; a value."""

    epsilon: float
    delta: float
    spent: tuple[NoisySteps, ...] = ()

    @property
    def steps(self) -> int:
        return sum(one.steps for one in self.spent)

    def after(self, taken: NoisySteps) -> "Budget":
        """Return the budget after these further steps; steps of one kind are kept as one number."""
        last = self.spent[-1] if self.spent else replace(taken, steps=0)
        if (last.noise_multiplier, last.rate) == (taken.noise_multiplier, taken.rate):
            together = replace(last, steps=last.steps + taken.steps)
            return replace(self, spent=(*self.spent[:-1], together))
        return replace(self, spent=(*self.spent, taken))

    @property
    def spent_epsilon(self) -> float:
        return accounting.epsilon(self.spent, self.delta)

    def noise_multiplier(self, rate: float, steps: int) -> float:
        """Return the noise multiplier with which this number of steps spends a whole budget."""
        return accounting.noise_multiplier_for(self.epsilon, self.delta, rate, steps)

    def require(self, planned: NoisySteps, *, what: str = "steps", hint: str = _HINT) -> None:
        """Raise `PrivacyBudgetError` if steps would spend more than is left; the message calls them ``what``."""
        after = self.after(planned).spent_epsilon
        if after > self.epsilon:
            spent = self.spent_epsilon
            raise PrivacyBudgetError(
                f"{planned.steps} more {what} would spend epsilon {after:.4g} of {self.epsilon:g} (delta "
                f"{self.delta:g}); {spent:.4g} is spent, and {self._left(planned)} {what} are left. {hint}",
                epsilon=self.epsilon,
                delta=self.delta,
                would_spend=after,
                spent=spent,
            )

    def _left(self, planned: NoisySteps) -> int:
        """Return the largest number of steps that the budget still allows."""
        low, high = 0, planned.steps
        while low + 1 < high:
            middle = (low + high) // 2
            fits = self.after(replace(planned, steps=middle)).spent_epsilon <= self.epsilon
            low, high = (middle, high) if fits else (low, middle)
        return low

    def state(self) -> dict[str, Any]:
        return {"spent": [[one.noise_multiplier, one.rate, one.steps] for one in self.spent]}

    def restored(self, state: Mapping[str, Any]) -> "Budget":
        found = [
            NoisySteps(
                validation.number("noise_multiplier of the state", noise, minimum=0.0),
                validation.number("rate of the state", rate, minimum=0.0, maximum=1.0),
                validation.integer("steps of the state", steps, minimum=0),
            )
            for noise, rate, steps in state["spent"]
        ]
        return replace(self, spent=tuple(found))
