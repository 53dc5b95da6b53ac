"""The worker processes of a strategy, and how they agree: small vectors of integers, seen by all of them."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import tensorflow as tf

# Workers may wait for one that traces a large model or saves a checkpoint; beyond this it is taken for lost.
DEADLINE_SECONDS = 1800.0


class Workers:
    """The workers of one strategy.

    Args:
        count: number of workers.
        index: this worker's, 0 is the chief.
        sum_over_workers: sums an eager int64 tensor over the workers; None with a single worker.
    """

    def __init__(
        self, *, count: int = 1, index: int = 0, sum_over_workers: Callable[[tf.Tensor, float], tf.Tensor] | None = None
    ) -> None:
        self.count = count
        self.index = index
        self._sum = sum_over_workers
        self._numbers: Counter[str] = Counter()

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes files and shows progress."""
        return self.index == 0

    def next_number(self, name: str) -> int:
        """Return how often this worker has asked for this name: 1 at first."""
        self._numbers[name] += 1
        return self._numbers[name]

    def gather(self, values: list[int]) -> np.ndarray:
        """Return the vectors of all workers, shape (workers, len(values)), int64; every worker must call it.

        Example:
            >>> Workers().gather([3, 4]).tolist()
            [[3, 4]]
        """
        table = np.zeros((self.count, len(values)), dtype=np.int64)
        table[self.index] = values
        if self._sum is None:
            return table
        return np.asarray(self._sum(tf.constant(table), DEADLINE_SECONDS))

    def from_chief(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the chief's value of a tensor that has the same shape and dtype on every worker; all must call it."""
        if self._sum is None:
            return tensor
        return self._sum(tensor if self.is_chief else tf.zeros_like(tensor), DEADLINE_SECONDS)


def as_integer(value: float) -> int:
    """Return the bits of a float as an integer, so that it travels exactly among integers."""
    return int(np.float64(value).view(np.int64))


def as_float(value: int) -> float:
    """Return the float whose bits `as_integer` gave."""
    return float(np.int64(value).view(np.float64))
