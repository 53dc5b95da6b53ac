"""An end to waits for other workers: one thread that looks at the clock, for all waits of a strategy.

TensorFlow notices workers that have died, not workers that live and do something else; and its own timeout for a
collective starts a thread for each, which sleeps until the time is up.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist.errors import DeadlineError, cause_of
from tfdist.monitor.stacks.waits import WaitNote

_LOOK_SECONDS = 1.0


class Watchdog:
    """Ends a wait that lasts too long, by breaking off this process's collectives."""

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
                self._thread = threading.Thread(target=self._watch, name="tfdist-watchdog", daemon=True)
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
        """Let the wait that is watched last as long from now on: what it waits for has gone on, and comes again."""
        with self._lock:
            if self._deadline is not None:
                self._since = time.monotonic()
                self._deadline = self._since + self._timeout

    def _watch(self) -> None:
        note = WaitNote.from_environment()
        while not self._expired:
            time.sleep(min(_LOOK_SECONDS, self._timeout / 4))
            note.tell(self._long_wait())
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

    def _long_wait(self) -> str:
        """Return in what this worker has waited for longer than a look lasts, where the engine knows.

        Where it does not, a step may wait or compute, and nothing is said of it.
        """
        with self._lock:
            if self._waits_for is None or self._deadline is None or time.monotonic() - self._since <= _LOOK_SECONDS:
                return ""
            return self._waits_for()
