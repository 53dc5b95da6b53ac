"""The aggregation of a round's updates into one: the protocol of aggregators, and the weighted mean."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigError
from tfdist.federated.client_update import Arrays, Update, require_same_shapes


class Aggregation(Protocol):
    """The running aggregation of the updates of one round."""

    def add(self, update: Update, weight: float) -> None:
        """Take the next update, in the order in which the clients were selected.

        Args:
            update: the update of a client.
            weight: the weight of the update, above 0; weights need not add up to 1.
        """

    def result(self) -> Arrays:
        """Return the aggregate; called once, after at least one `add`."""


class Aggregator(Protocol):
    """A rule that combines many updates into one: a value, the same for all rounds."""

    def start(self) -> Aggregation:
        """Begin the aggregation of a round."""


class WholeRule(ABC):
    """An aggregator that looks at all updates of a round at once, such as a median.

    Example:
        >>> class Median(WholeRule):
        ...     def aggregate(self, updates, weights):
        ...         names = updates[0].arrays
        ...         return {name: np.median([one.arrays[name] for one in updates], axis=0) for name in names}
        >>> aggregation = Median().start()
        >>> for value in (1.0, 2.0, 90.0):
        ...     aggregation.add(Update({"bias": np.array([value])}, examples=1), 1.0)
        >>> aggregation.result()["bias"]
        array([2.])
    """

    @abstractmethod
    def aggregate(self, updates: Sequence[Update], weights: Sequence[float]) -> Arrays:
        """Return the aggregate of a round.

        Args:
            updates: the clients' updates, in the order of selection; at least one, all with the same names and shapes.
            weights: the weight of each update, above 0.
        Returns:
            An array for each name of the updates, of the same shape.
        """

    def clipped(self, updates: Sequence[Update]) -> int | None:
        """Return how many of these updates the rule scales down to a norm; None if it has no norm.

        Args:
            updates: the updates, as for `aggregate`.
        """
        del updates
        return None

    def start(self) -> Aggregation:
        """Begin the aggregation of a round."""
        return _Collected(self)


class _Collected:
    def __init__(self, rule: WholeRule) -> None:
        self._rule = rule
        self._updates = list[Update]()
        self._weights = list[float]()

    def add(self, update: Update, weight: float) -> None:
        if self._updates:
            require_same_shapes(update.arrays, self._updates[0].arrays)
        self._updates.append(update)
        self._weights.append(weight)

    def result(self) -> Arrays:
        return self._rule.aggregate(self._updates, self._weights)

    @property
    def clipped(self) -> int | None:
        return self._rule.clipped(self._updates)


def clipped_by(aggregation: Aggregation) -> int | None:
    """Return the number of updates that an aggregation has scaled down to a norm; None if it does not say."""
    found: int | None = getattr(aggregation, "clipped", None)
    return found


class Mean:
    """The weighted mean, summed in float64 in the order of selection, so that the same clients give the same bits.

    It keeps one sum, however many clients there are.

    Example:
        >>> aggregation = Mean().start()
        >>> aggregation.add(Update({"bias": np.array([1.0])}, examples=1), 1.0)
        >>> aggregation.add(Update({"bias": np.array([5.0])}, examples=3), 3.0)
        >>> aggregation.result()["bias"]
        array([4.])
    """

    def start(self) -> Aggregation:
        """Begin the aggregation of a round."""
        return _Sum()


class _Sum:
    def __init__(self) -> None:
        self._sums = dict[str, NDArray[Any]]()
        self._weight = 0.0

    def add(self, update: Update, weight: float) -> None:
        if self._sums:
            require_same_shapes(update.arrays, self._sums)
        for name, array in update.arrays.items():
            weighted = np.multiply(array, weight, dtype=np.float64)
            self._sums[name] = self._sums[name] + weighted if name in self._sums else weighted
        self._weight += weight

    def result(self) -> Arrays:
        if not self._weight > 0:
            raise ConfigError("the weights of a round's updates add up to 0; at least one must be above 0.")
        return {name: total / self._weight for name, total in self._sums.items()}
