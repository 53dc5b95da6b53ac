"""The resource usage of a process, now and over the last interval."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a process uses.

    Attributes:
        memory: resident bytes; None when it is gone.
        cpu: processors that it keeps busy; None when it is not known.
        others: by the name of the metric without ``tfdist_``, unit last.
    """

    memory: int | None = None
    cpu: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)


class Process:
    """A process that is looked at again and again; what it does in a second is since its begin at first.

    Example:
        >>> import os
        >>> sorted(Process(os.getpid()).look().others)
        ['preemptions_per_second', 'read_bytes_per_second', 'threads', 'written_bytes_per_second']
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        # ages and rates are taken on the clock that nobody sets
        self._when = time.monotonic() - max(0.0, time.time() - self._process.create_time())
        self._before: dict[str, float] = {}

    def look(self) -> Usage:
        """Return what it uses now; nothing when it is gone."""
        try:
            with self._process.oneshot():
                memory = int(self._process.memory_info().rss)
                threads = float(self._process.num_threads())
                done = self._done()
        except psutil.Error:
            return Usage()
        now = time.monotonic()
        seconds = max(now - self._when, 1e-9)
        rates = {name: max(0.0, value - self._before.get(name, 0.0)) / seconds for name, value in done.items()}
        self._when, self._before = now, done
        return Usage(memory=memory, cpu=rates.pop("cpu"), others={"threads": threads, **rates})

    def _done(self) -> dict[str, float]:
        """Return what it has done since it began."""
        times, switches = self._process.cpu_times(), self._process.num_ctx_switches()
        done = {"cpu": times.user + times.system, "preemptions_per_second": float(switches.involuntary)}
        try:
            disk = self._process.io_counters()
        except psutil.AccessDenied:  # another user's
            return done
        return {**done, "read_bytes_per_second": disk.read_bytes, "written_bytes_per_second": disk.write_bytes}
