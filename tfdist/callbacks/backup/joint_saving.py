"""Joint saves of a state of which each worker has a part, on disk and in memory that outlives the process.

All workers take the same decisions at the same steps, so that they submit the same saves. Each writes its part to the
chief's directory. A worker that does not see this directory, because disks are not shared, sends its part to the chief.
"""

import contextlib
import json
import math
import secrets
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.checkpoint.background_writer import Writer
from tfdist.checkpoint.checkpoint_manifest import Joint, Part
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.errors import StorageError
from tfdist.monitor.process_clock import step_clock

_Arrays = Mapping[str, NDArray[Any]]
# The share of training time that may go into holding the state. What is lost is computed again, so this weighs the time
# of every step against that of a few steps after a failure.
_SHARE = 0.25
_PART_SECONDS = 30.0  # training waits as long if a worker cannot hold its part
_MOST = 10_000  # steps between two states that workers hold together
_ALWAYS = 10  # first steps after each of which the state is held: a job that fails early would else repeat them


def from_worker(index: int, workers: Workers, arrays: _Arrays, note: Any) -> tuple[dict[str, NDArray[Any]], Any]:
    """Return one worker's arrays and note, on every worker; all workers must call it.

    Arrays travel as bytes, whatever their dtypes, through the workers' sums.
    """
    head, content = b"", np.empty(0, np.uint8)
    if workers.index == index:
        about = [(name, array.dtype.name, array.shape) for name, array in arrays.items()]
        head = json.dumps([note, about]).encode()
        flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values()]
        content = np.concatenate([content, *flat])
    note, about = json.loads(_bytes_from(index, np.frombuffer(head, np.uint8), workers).tobytes())
    content = _bytes_from(index, content, workers)
    found, at = {}, 0
    for name, dtype, shape in about:
        kind = tf.as_dtype(dtype).as_numpy_dtype
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        found[name] = content[at : at + size].view(kind).reshape(shape)
        at += size
    return found, note


def _bytes_from(index: int, mine: NDArray[np.uint8], workers: Workers) -> NDArray[np.uint8]:
    size = int(workers.gather([mine.size])[index, 0])
    words = np.zeros(-(-size // 4), np.int32)
    if workers.index == index:
        words.view(np.uint8)[:size] = mine
    return np.asarray(workers.from_worker(index, tf.constant(words))).view(np.uint8)[:size]


class Together:
    """The saves of one training; `is_joint` is True if all workers take part in a save."""

    def __init__(self, workers: Workers, *, has_parts: bool) -> None:
        self._workers = workers
        self._has_parts = has_parts
        self.is_joint = has_parts and workers.count > 1
        self._count = 0
        self._run = f"{int(workers.gather([secrets.randbits(32)])[0, 0]):08x}" if self.is_joint else ""

    def share(self, store: Store) -> bool:
        """Return whether all workers see what the chief writes to a store; all workers must ask."""
        if not self.is_joint:
            return True
        with contextlib.suppress(StorageError):  # it is said when something is saved
            if self._workers.is_chief:
                store.leave_sign(self._run)
        self._workers.gather([0])  # now it is there
        found = bool(self._workers.gather([store.has_sign(self._run)]).all())
        if self._workers.is_chief:
            store.remove_sign(self._run)
        return found

    @property
    def takes_part(self) -> bool:
        """Whether this worker has something to do when a state is saved."""
        return self._workers.is_chief or self.is_joint

    def may_submit(self, writer: Writer) -> bool:
        """Return whether a state may be submitted now; all workers that take part must ask.

        A chief that saves alone always may: a waiting state is replaced. In joint saves no state may be replaced, or
        parts of two states would wait for each other. So a state is left out while a worker still saves the one before.
        """
        return not self.is_joint or not self._workers.gather([writer.is_busy]).any()

    def longest(self, value: int) -> int:
        """Return the largest value of all workers; all workers must ask."""
        return int(self._workers.gather([value]).max())

    def submit(
        self,
        writer: Writer,
        number: int,
        arrays: _Arrays,
        state: Mapping[str, Any],
        part: _Arrays,
        *,
        is_shared: bool,
        timeout_seconds: float = 120.0,
    ) -> None:
        """Save a state; all workers that take part call it with the same number. The chief's arrays and state count."""
        own = Part(index=self._workers.index, arrays=part)
        if not self.is_joint:
            writer.submit(number, arrays, state, parts=[own] if self._has_parts else ())
        elif not is_shared:
            parts = []
            for index in range(self._workers.count):
                arrived, _ = from_worker(index, self._workers, part, None)
                parts += [Part(index=index, arrays=arrived)] if self._workers.is_chief else []  # the chief keeps all
            if self._workers.is_chief:
                writer.submit(number, arrays, state, parts=parts)
        else:
            self._count += 1
            joint = Joint(run=self._run, number=self._count, count=self._workers.count, timeout_seconds=timeout_seconds)
            if self._workers.is_chief:
                writer.submit(number, arrays, state, parts=[own], joint=joint)
            else:
                writer.submit_part(number, own, joint)


class Memory:
    """A store in memory, and the schedule of writing to it."""

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
        """Return whether holding the state with this number keeps the cost below its share of the time."""
        if self._together.is_joint:
            return number >= self._next_number
        return self._held < _ALWAYS or time.perf_counter() >= self._next

    def submit(
        self, number: int, arrays: dict[str, Any], state: dict[str, Any], part: dict[str, Any], *, seconds: float
    ) -> None:
        """Hold a state, given the seconds that capturing it took; all workers that take part must call it."""
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
            before, self._last, self._next_number = self._last, (number, now), number + 1
            if self._held > _ALWAYS and before is not None:  # as many steps on as the slowest worker needs
                step = (now - before[1]) / max(1, number - before[0])
                steps = max(1, math.ceil(min(rest / max(step, 1e-9), _MOST)))
                self._next_number = number + self._together.longest(steps)

    def wait(self) -> None:
        self._writer.wait()

    def close(self, *, discard: bool) -> None:
        """Wait for the last save, and remove the store if it is not needed any more."""
        self._writer.wait()
        self._writer.close()
        if discard:
            self._store.discard()
            _tell_the_agent()


def _tell_the_agent() -> None:
    reporter = step_clock().reporter
    if reporter is not None:
        reporter.states_changed()
