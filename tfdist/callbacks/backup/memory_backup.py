"""The newest state of training in memory that outlives the process, for workers that are started again."""

import math
import time
from typing import Any

from tfdist.callbacks.backup.joint_saving import Together
from tfdist.checkpoint.background_writer import Writer
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.monitor.process_clock import step_clock

# Of the time that training takes, what may go into holding its state. What is lost is computed again, so this weighs
# the time of every step against that of a few after a failure.
_SHARE = 0.25
_PART_SECONDS = 30.0  # training waits as long if a worker cannot hold its part
_MOST = 10_000  # steps between two states that workers hold together
_ALWAYS = 10  # of the first steps each state is held: what fails soon after a start would else repeat them every time


class Memory:
    """A store in memory, and when to write to it."""

    def __init__(self, store: Store, together: Together) -> None:
        self._store = store
        self._together = together
        self._is_shared = together.share(store)
        # what cannot be held is on disk, or computed again
        self._writer = Writer(store, warn=lambda _: None, on_written=lambda _: _tell_the_agent())
        self._next = 0.0
        self._next_number = 0
        self._last: tuple[int, float] | None = None  # number and time of the state that was held last
        self._held = 0

    def is_due(self, number: int) -> bool:
        """Return whether to hold the state with this number: whether that keeps below its share of the time."""
        if self._together.is_joint:
            return number >= self._next_number
        return self._held < _ALWAYS or time.perf_counter() >= self._next

    def submit(
        self, number: int, arrays: dict[str, Any], state: dict[str, Any], part: dict[str, Any], *, seconds: float
    ) -> None:
        """Hold a state, which it took so long to take; all who take part must call it."""
        now = time.perf_counter()
        if self._together.is_joint:
            self._writer.wait()
        self._together.submit(
            self._writer, number, arrays, state, part, is_shared=self._is_shared, timeout_seconds=_PART_SECONDS
        )
        self._held += 1
        rest = (seconds + time.perf_counter() - now) / _SHARE
        self._next = now + rest
        if self._together.is_joint:
            self._next_number = number + self._numbers_until(number, now, rest)

    def _numbers_until(self, number: int, now: float, rest: float) -> int:
        """After how many numbers the next state is due: the same on all workers, as many as the slowest needs."""
        before, self._last = self._last, (number, now)
        if self._held <= _ALWAYS or before is None:
            return 1
        step = (now - before[1]) / max(1, number - before[0])
        return self._together.longest(max(1, math.ceil(min(rest / max(step, 1e-9), _MOST))))

    def wait(self) -> None:
        """Wait until it is held."""
        self._writer.wait()

    def close(self, *, discard: bool) -> None:
        """Let go of it; remove it if nobody needs it any more."""
        self._writer.wait()
        self._writer.close()
        if discard:
            self._store.discard()
            _tell_the_agent()


def _tell_the_agent() -> None:
    reporter = step_clock().reporter
    if reporter is not None:
        reporter.states_changed()
