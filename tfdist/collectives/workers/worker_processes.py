"""The worker processes of a strategy, and how they agree: small vectors of integers, seen by all of them."""

import contextlib
from collections import Counter
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfdist.collectives import keys
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.collective import Collective
from tfdist.collectives.workers.watchdog import Watchdog
from tfdist.errors import DisagreementError
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock


class Notes(Protocol):
    """What workers can tell each other without a collective that all must join."""

    def leave_note(self, key: str, text: str) -> None:
        """Leave a note for whoever waits for it now or later."""

    def wait_for_note(self, key: str, timeout_seconds: float) -> str | None:
        """Return the note's text once it was left; None if it was not left in time."""


class Workers:
    """The workers of one strategy."""

    def __init__(
        self, collective: Collective | None = None, *, timeout_seconds: float = 0.0, notes: Notes | None = None
    ) -> None:
        self.collective = LocalCollective() if collective is None else collective
        self.count = self.collective.size
        self.index = self.collective.rank
        self.timeout_seconds = timeout_seconds
        self.notes = notes
        self._watchdog = (
            None
            if self.count == 1
            else Watchdog(
                timeout_seconds=timeout_seconds,
                abort=self.collective.abort,
                explain=self.collective.explain,
                waits_for=self.collective.waits_for,
                ends_with_a_step=self.collective.matches_by_count,
            )
        )
        self._numbers: Counter[str] = Counter()

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes files and shows progress."""
        return self.index == 0

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Return a context for code that may wait for the other workers; it ends with a `DeadlineError` in time."""
        return contextlib.nullcontext() if self._watchdog is None else self._watchdog.waiting(what)

    def renew(self) -> None:
        """Say, from any thread, that what is watched by `waiting` has gone on: it may last as long again."""
        if self._watchdog is not None:
            self._watchdog.renew()

    def next_number(self, name: str) -> int:
        """Return how often this worker has asked for this name: 1 at first."""
        self._numbers[name] += 1
        return self._numbers[name]

    def first_absent(self, place: str, timeout_seconds: float) -> int | None:
        """Return the first of the other workers that has not come to a place in time; None when all are there.

        They meet by notes, so nothing breaks when somebody does not come.
        """
        if self.count == 1:
            return None
        assert self.notes is not None
        key = f"{place}/{self.next_number(place)}"
        self.notes.leave_note(f"{key}/{self.index}", "")
        others = (index for index in range(self.count) if index != self.index)
        return next((one for one in others if self.notes.wait_for_note(f"{key}/{one}", timeout_seconds) is None), None)

    def gather(self, values: list[int]) -> np.ndarray:
        """Return the vectors of all workers, shape (workers, len(values)), int64; every worker must call it.

        Example:
            >>> Workers().gather([3, 4]).tolist()
            [[3, 4]]
        """
        table = np.zeros((self.count, len(values)), dtype=np.int64)
        table[self.index] = values
        if self.count == 1:
            return table
        with step_clock().during(Phase.AGREE), self.waiting("an agreement between workers"):
            try:
                with tf.device("/device:CPU:0"):
                    return np.asarray(self.collective.all_reduce([tf.constant(table)], key=keys.EAGER)[0])
            except (tf.errors.InternalError, tf.errors.InvalidArgumentError) as error:
                raise DisagreementError(
                    f"worker {self.index} wanted to agree with the others, which are in another call. Every worker "
                    "must call fit, evaluate and predict in the same order; let the chief alone do only what involves "
                    "no model."
                ) from error

    def from_chief(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the chief's value of a tensor that has the same shape and dtype on every worker; all must call it."""
        return self.from_worker(0, tensor)

    def from_worker(self, index: int, tensor: tf.Tensor) -> tf.Tensor:
        """Return a worker's value of a tensor that has the same shape and dtype on every worker; all must call it."""
        if self.count == 1:
            return tensor
        what = "the chief's values" if index == 0 else f"the values of worker {index}"
        with self.waiting(what), tf.device("/device:CPU:0"):
            return self.collective.broadcast(tensor, key=keys.EAGER, root=index)


def as_integer(value: float) -> int:
    """Return the bits of a float as an integer, so that it travels exactly among integers."""
    return int(np.float64(value).view(np.int64))


def as_float(value: int) -> float:
    """Return the float whose bits `as_integer` gave."""
    return float(np.int64(value).view(np.float64))
