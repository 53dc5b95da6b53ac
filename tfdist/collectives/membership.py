"""Who of a job's workers is still there: each writes into the store once a second, and who stops has gone."""

import contextlib
import json
import threading
import time
from collections.abc import Mapping, Sequence

from tfdist.collectives.store import Store

_BEAT_SECONDS = 1.0
# Longer than a beat can be late on a busy machine that still runs the worker.
_SILENT_SECONDS = 4.0
_POLL_SECONDS = 0.2
_SCOPE, _LAST_WORDS = "beats", "last-words"


class Membership:
    """This worker's entry in the list of those that are there.

    Args:
        store: shared by the workers.
        index: this worker's.
        count: number of workers.
    """

    def __init__(self, store: Store, *, index: int, count: int) -> None:
        self._store = store
        self._index = index
        self._count = count
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tfdist-beat", daemon=True)
        self._thread.start()

    def leave(self, reason: str) -> None:
        """Say why this worker takes part no longer; the first reason stays."""
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(OSError):
                self._store.put(_LAST_WORDS, str(self._index), json.dumps(reason).encode())

    def missing(self) -> dict[int, str]:
        """Return the workers that have left or fallen silent, with what is known of each; waits until that is sure."""
        deadline = time.monotonic() + _SILENT_SECONDS + _BEAT_SECONDS
        while True:
            try:
                gone = self._missing_now()
            except OSError:
                return {} if self._index == 0 else {0: "has ended, and the job's store with it"}
            if gone or time.monotonic() > deadline:
                return gone
            time.sleep(_POLL_SECONDS)

    def _missing_now(self) -> dict[int, str]:
        gone = silent(self._store.ages(_SCOPE), self._count, _SILENT_SECONDS)
        for worker in range(self._count):
            words = self._store.get(_LAST_WORDS, str(worker))
            if words is not None and worker != self._index:
                gone[worker] = str(json.loads(words))
        return {worker: gone[worker] for worker in sorted(gone)}

    def _beat(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                self._store.put(_SCOPE, str(self._index), b"")
            self._ended.wait(_BEAT_SECONDS)


def silent(ages: Mapping[str, float], count: int, limit_seconds: float) -> dict[int, str]:
    """Return the workers that have not been heard of for longer than the limit.

    Example:
        >>> silent({"0": 0.4, "1": 9.0}, 2, 4.0)
        {1: 'has not been heard of for 9 s'}
    """
    told = {worker: ages.get(str(worker)) for worker in range(count)}
    return {
        worker: "has not been heard of" if age is None else f"has not been heard of for {age:.0f} s"
        for worker, age in told.items()
        if age is None or age > limit_seconds
    }


def sentence(missing: Mapping[int, str], addresses: Sequence[str]) -> str:
    """Return the missing workers as a clause for a message.

    Example:
        >>> sentence({1: "has ended"}, ["a:1", "b:1"])
        'worker 1 (b:1) has ended'
        >>> sentence({}, [])
        'a worker has gone'
    """
    if not missing:
        return "a worker has gone"
    where = {worker: f" ({addresses[worker]})" if worker < len(addresses) else "" for worker in missing}
    return "; ".join(f"worker {worker}{where[worker]} {what}" for worker, what in missing.items())
