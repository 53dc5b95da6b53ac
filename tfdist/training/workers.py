"""The worker processes of a strategy, and how they agree: small vectors of integers, seen by all of them."""

import contextlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfdist.errors import DisagreementError
from tfdist.training.watchdog import Watchdog


class Notes(Protocol):
    """What workers can tell each other without a collective that all must join."""

    def leave_note(self, key: str, text: str) -> None:
        """Leave a note for whoever waits for it now or later."""

    def wait_for_note(self, key: str, timeout_seconds: float) -> str | None:
        """Return the note's text once it was left; None if it was not left in time."""


class Workers:
    """The workers of one strategy.

    Args:
        count: number of workers.
        index: this worker's, 0 is the chief.
        timeout_seconds: how long a worker waits for the others before it takes them for lost.
        sum_over_workers: sums an eager tensor over the workers; None with a single worker.
        abort: breaks off this process's collectives, with a message.
        explain: returns what an error of TensorFlow's means, given the error and what was being done, or None.
        notes: how a worker tells the others of what it alone has done; None with a single worker.
    """

    def __init__(
        self,
        *,
        count: int = 1,
        index: int = 0,
        timeout_seconds: float = 0.0,
        sum_over_workers: Callable[[tf.Tensor], tf.Tensor] | None = None,
        abort: Callable[[str], None] | None = None,
        explain: Callable[[BaseException, str], Exception | None] | None = None,
        notes: Notes | None = None,
    ) -> None:
        self.count = count
        self.index = index
        self.timeout_seconds = timeout_seconds
        self._sum = sum_over_workers
        self.notes = notes
        self._watchdog = (
            None if abort is None else Watchdog(timeout_seconds=timeout_seconds, abort=abort, explain=explain)
        )
        self._numbers: Counter[str] = Counter()

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes files and shows progress."""
        return self.index == 0

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Return a context for code that may wait for the other workers; it ends with a `DeadlineError` in time."""
        return contextlib.nullcontext() if self._watchdog is None else self._watchdog.waiting(what)

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
        with self.waiting("an agreement between workers"):
            try:
                return np.asarray(self._sum(tf.constant(table)))
            except (tf.errors.InternalError, tf.errors.InvalidArgumentError) as error:
                raise DisagreementError(
                    f"worker {self.index} wanted to agree with the others, which are in another call. Every worker "
                    "must call fit, evaluate and predict in the same order; let the chief alone do only what involves "
                    "no model."
                ) from error

    def from_chief(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the chief's value of a tensor that has the same shape and dtype on every worker; all must call it."""
        if self._sum is None:
            return tensor
        with self.waiting("the chief's values"):
            return self._sum(tensor if self.is_chief else tf.zeros_like(tensor))


def as_integer(value: float) -> int:
    """Return the bits of a float as an integer, so that it travels exactly among integers."""
    return int(np.float64(value).view(np.int64))


def as_float(value: int) -> float:
    """Return the float whose bits `as_integer` gave."""
    return float(np.int64(value).view(np.float64))
