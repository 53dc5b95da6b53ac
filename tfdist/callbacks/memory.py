"""The newest state of training in memory that outlives the process, for workers that are started again."""

import time
from typing import Any

from tfdist.checkpoint.store import Store
from tfdist.checkpoint.writer import Writer

# Of the time that training takes, what may go into holding its state. What is lost is computed again, so this weighs
# the time of every step against that of a few after a failure.
_SHARE = 0.25
_ALWAYS = 10  # of the first steps each state is held: what fails soon after a start would else repeat them every time


class Memory:
    """A store in memory, and when to write to it.

    Args:
        store: in a directory in memory.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writer = Writer(store, warn=lambda _: None)  # what cannot be held is on disk, or computed again
        self._next = 0.0
        self._held = 0

    def is_due(self) -> bool:
        """Return whether to hold the state now: whether that keeps below its share of the time."""
        return self._held < _ALWAYS or time.perf_counter() >= self._next

    def submit(self, number: int, arrays: dict[str, Any], state: dict[str, Any], *, seconds: float) -> None:
        """Hold a state, which it took so long to take."""
        now = time.perf_counter()
        self._writer.submit(number, arrays, state)
        self._held += 1
        self._next = now + (seconds + time.perf_counter() - now) / _SHARE

    def wait(self) -> None:
        """Wait until it is held."""
        self._writer.wait()

    def close(self, *, discard: bool) -> None:
        """Let go of it; remove it if nobody needs it any more."""
        self._writer.wait()
        self._writer.close()
        if discard:
            self._store.discard()
