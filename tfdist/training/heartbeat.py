"""Signs of life of a graph that runs several steps: Python hears nothing of it until it has ended.

The graph counts in a variable, before it asks for a batch and when it has it. A thread reads that variable while such a
graph runs, and tells whoever judges how long a step takes.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident

import tensorflow as tf

from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock

_LOOK_SECONDS = 0.2


class Progress:
    """Counts what a graph does: odd while it waits for a batch, even while it computes a step."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._count = tf.Variable(0, trainable=False, dtype=tf.int64)

    def reset(self) -> tf.Operation:
        """Return the operation with which a graph begins to count."""
        return self._count.assign(0, read_value=False)

    def beat(self) -> tf.Operation:
        """Return the operation that counts one more."""
        return self._count.assign_add(1, read_value=False)

    def count(self) -> int:
        """Return how far the graph has counted, from any thread."""
        return int(self._count.numpy())


@dataclass
class _UnderWay:
    progress: Progress
    renew: Callable[[], None]
    seen: int = 0


class Heartbeat:
    """The thread that looks at the progresss of this process; there is none before there is something to look at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[int, _UnderWay] = {}  # by the thread that steps
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def of(self, progress: Progress, renew: Callable[[], None]) -> Iterator[None]:
        """Tell the step clock, and whoever else is to know, while the graph in the block goes on."""
        with self._lock:
            self._under_way[get_ident()] = _UnderWay(progress, renew)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="tfdist-heartbeat", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._under_way[get_ident()]

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._lock:  # so that nothing is told of a graph that has ended
                for thread, one in self._under_way.items():
                    count = one.progress.count()
                    if count != one.seen:
                        one.seen = count
                        one.renew()
                        step_clock().goes_on(thread, Phase.INPUT if count % 2 else Phase.EXECUTE)


@functools.cache
def heartbeat() -> Heartbeat:
    """Return the one of this process."""
    return Heartbeat()
