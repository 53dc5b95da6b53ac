"""The worker processes of a strategy, which agree by exchanging small vectors of integers."""

import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import tensorflow as tf

from tfdist.collectives import traced
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.collective import Collective, Notes
from tfdist.errors import DeadlineError, DisagreementError, cause_of
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.stacks.waits import WaitNote

_LOOK_SECONDS = 1.0


class Watchdog:
    """A watchdog that ends a wait of too long by ending this process's collectives; one thread for a strategy's waits.

    TensorFlow notices dead workers, not live ones that do something else. Its own timeout starts a thread per
    collective. The thread ends with the strategy, which it does not keep alive.
    """

    def __init__(
        self,
        *,
        timeout_seconds: float,
        abort: Callable[[str], None],
        explain: Callable[[BaseException, str], Exception | None] | None = None,
        waits_for: Callable[[], str] | None = None,
        ends_with_a_step: bool = False,
    ) -> None:
        self._timeout = timeout_seconds
        self._abort = abort
        self._explain = explain
        self._waits_for = waits_for
        self._ends_with_a_step = ends_with_a_step
        self._lock = threading.Lock()
        self._deadline: float | None = None
        self._since = 0.0
        self._what = ""
        self._expired = ""
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Watch the code inside, which may wait for other workers."""
        with self._lock:
            around = self._deadline, self._since, self._what
            self._since, self._what = time.monotonic(), what
            self._deadline = self._since + self._timeout
            if self._thread is None:
                pause, own = min(_LOOK_SECONDS, self._timeout / 4), weakref.ref(self)
                self._thread = threading.Thread(target=_watch, args=(own, pause), name="tfdist-watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        except tf.errors.OpError as error:
            if self._expired:
                raise DeadlineError(self._expired) from error
            explained = None if self._explain is None else self._explain(error, what)
            if explained is not None:
                raise explained from error
            if self._ends_with_a_step and not isinstance(error, tf.errors.OutOfRangeError):
                self._abort(f"a worker has failed in {what}: {cause_of(str(error))}")
            raise
        finally:
            with self._lock:
                self._deadline, self._since, self._what = around

    def renew(self) -> None:
        """Restart the deadline of the current wait, because the work has progressed."""
        with self._lock:
            if self._deadline is not None:
                self._since = time.monotonic()
                self._deadline = self._since + self._timeout

    def look(self) -> bool:
        """End the wait if it has taken too long; return whether that happened."""
        with self._lock:
            late = self._deadline is not None and time.monotonic() > self._deadline
            if late:
                who = "" if self._waits_for is None else self._waits_for()
                self._expired = (
                    f"this worker has waited {self._timeout:g} s in {self._what} for the others"
                    f"{f' ({who})' if who else ''}. Every worker must "
                    "call fit, evaluate and predict alike; see in the others' output what they do. If steps take "
                    "that long, pass a larger timeout_seconds to the strategy."
                )
        if late:
            self._abort(self._expired)
        return late

    def long_wait(self) -> str:
        """Describe a wait of this worker that is longer than a look, if the backend knows what it waits for."""
        with self._lock:
            if self._waits_for is None or self._deadline is None or time.monotonic() - self._since <= _LOOK_SECONDS:
                return ""
            return self._waits_for()


def _watch(of: "weakref.ref[Watchdog]", pause: float) -> None:
    note, is_over = WaitNote.from_environment(), False
    while not is_over:
        time.sleep(pause)
        watchdog = of()
        note.tell("" if watchdog is None else watchdog.long_wait())
        is_over = watchdog is None or watchdog.look()
        del watchdog


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
        """Restart, from any thread, the deadline of `waiting`, because the work has progressed."""
        if self._watchdog is not None:
            self._watchdog.renew()

    def next_number(self, name: str) -> int:
        """Return the number of this worker's calls with this name, from 1."""
        self._numbers[name] += 1
        return self._numbers[name]

    def first_absent(self, place: str, timeout_seconds: float) -> int | None:
        """Return the first other worker that has not reached a place in time, or None; notes break nothing."""
        if self.count == 1:
            return None
        assert self.notes is not None
        key = f"{place}/{self.next_number(place)}"
        self.notes.leave_note(f"{key}/{self.index}", "")
        others = (index for index in range(self.count) if index != self.index)
        return next((one for one in others if self.notes.wait_for_note(f"{key}/{one}", timeout_seconds) is None), None)

    def gather(self, values: list[int]) -> np.ndarray:
        """Return the vectors of all workers, int64 of shape (workers, len(values)); every worker must call this."""
        table = np.zeros((self.count, len(values)), dtype=np.int64)
        table[self.index] = values
        if self.count == 1:
            return table
        with step_clock().during(Phase.AGREE), self.waiting("an agreement between workers"):
            try:
                with tf.device("/device:CPU:0"):
                    return np.asarray(self.collective.all_reduce([tf.constant(table)], key=traced.EAGER)[0])
            except (tf.errors.InternalError, tf.errors.InvalidArgumentError) as error:
                raise DisagreementError(
                    f"worker {self.index} wanted to agree with the others, which are in another call. Every worker "
                    "must call fit, evaluate and predict in the same order; let the chief alone do only what involves "
                    "no model."
                ) from error

    def from_chief(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the chief's value of a tensor with the same shape and dtype on every worker; all must call this."""
        return self.from_worker(0, tensor)

    def from_worker(self, index: int, tensor: tf.Tensor) -> tf.Tensor:
        """Return one worker's value of a tensor with the same shape and dtype on every worker; all must call this."""
        if self.count == 1:
            return tensor
        what = "the chief's values" if index == 0 else f"the values of worker {index}"
        with self.waiting(what), tf.device("/device:CPU:0"):
            return self.collective.broadcast(tensor, key=traced.EAGER, root=index)


def as_integer(value: float) -> int:
    """Return the bits of a float as an integer, so that it travels exactly among integers."""
    return int(np.float64(value).view(np.int64))


def as_float(value: int) -> float:
    """Return the float whose bits `as_integer` returned."""
    return float(np.int64(value).view(np.float64))
