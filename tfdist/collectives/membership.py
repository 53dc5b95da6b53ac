"""Liveness of a job's workers: each writes to the store once a second, and silence means it is lost.

The first worker that finds the cause of a failure writes it too, so all workers name the same cause.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tfdist.collectives.rendezvous_store import Store

_BEAT_SECONDS = 1.0
# Longer than a beat can be late on a busy machine that still runs the worker.
_SILENT_SECONDS = 4.0
_POLL_SECONDS = 0.2
_BEATS, _LAST_WORDS, _CAUSE = "beats", "last-words", "cause"


class Membership:
    """The entry of this worker in the list of live workers."""

    def __init__(
        self, store: Store, *, index: int, count: int, addresses: Sequence[str], on_broken: Callable[[], None]
    ) -> None:
        self.cause: str | None = None
        self._store = store
        self._index = index
        self._count = count
        self._addresses = addresses
        self._on_broken = on_broken
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tfdist-beat", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Announce the end of this worker; in a broken job the store's holder stays until others know the cause."""
        if self.cause is not None and self._index == 0:
            time.sleep(2 * _BEAT_SECONDS)
        self._ended.set()
        with contextlib.suppress(OSError):
            self._store.put(_LAST_WORDS, str(self._index), b"has ended")

    def broken_by(self, cause: str) -> str:
        """Publish the cause that broke the job, unless another worker has; return the first cause."""
        with contextlib.suppress(OSError):
            known = self._store.get(_CAUSE, "first")
            cause = known.decode() if known else cause
            self._store.put(_CAUSE, "first", cause.encode())
        self.cause = self.cause or cause
        return self.cause

    def find_cause(self) -> str:
        """Find the missing workers, and tell all workers; takes a few seconds to be sure."""
        deadline = time.monotonic() + _SILENT_SECONDS + _BEAT_SECONDS
        while self.cause is None:
            try:
                missing = self._missing()
            except OSError:
                missing = {} if self._index == 0 else {0: "has ended, and the job's store with it"}
            if missing or time.monotonic() > deadline:
                return self.broken_by(sentence(missing, self._addresses))
            time.sleep(_POLL_SECONDS)
        return self.cause

    def _missing(self) -> dict[int, str]:
        known = self._store.get(_CAUSE, "first")
        if known:
            self.cause = known.decode()
        missing = silent(self._store.ages(_BEATS), self._count, _SILENT_SECONDS)
        for worker in range(self._count):
            words = self._store.get(_LAST_WORDS, str(worker))
            if words is not None and worker != self._index:
                missing[worker] = words.decode()
        return {worker: missing[worker] for worker in sorted(missing)}

    def _beat(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                self._store.put(_BEATS, str(self._index), b"")
                cause = self._store.get(_CAUSE, "first")
                if cause and self.cause is None:
                    self.cause = cause.decode()
                    self._on_broken()
            self._ended.wait(_BEAT_SECONDS)


def silent(ages: Mapping[str, float], count: int, limit_seconds: float) -> dict[int, str]:
    """Return the workers that have been silent for longer than the limit, with a clause for each."""
    told = {worker: ages.get(str(worker)) for worker in range(count)}
    return {
        worker: "has not been heard of" if age is None else f"has not been heard of for {age:.0f} s"
        for worker, age in told.items()
        if age is None or age > limit_seconds
    }


def sentence(missing: Mapping[int, str], addresses: Sequence[str]) -> str:
    """Return the missing workers as a clause for a message."""
    if not missing:
        return "a worker has gone"
    where = {worker: f" ({addresses[worker]})" if worker < len(addresses) else "" for worker in missing}
    return "; ".join(f"worker {worker}{where[worker]} {what}" for worker, what in missing.items())
