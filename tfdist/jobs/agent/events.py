"""The event file of a job, one JSON object per line: `tfdist run --event-file PATH`.

docs/run-events.md describes all events and their keys.
"""

import contextlib
import json
import os
import time
from typing import Any

from tfdist.errors import StorageError

VERSION = 1


class EventFile:
    """The file, which is appended to; without a path nothing is written.

    Example:
        >>> EventFile(None, "a1").write("started", start=0, workers=2)
    """

    def __init__(self, path: str | None, job_id: str, *, copy: str | None = None) -> None:
        self._job_id = job_id
        self._descriptors: list[int] = []
        try:
            for one in (path, copy):
                if one is not None:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                    self._descriptors.append(os.open(one, flags, 0o644))
        except OSError as error:
            self.close()
            raise StorageError(
                error.errno,
                f"the event file {path} (--event-file) cannot be written ({error.strerror}). Name another.",
                name="--event-file",
                path=path,
            ) from error

    def write(self, event: str, *, start: int, clock: float | None = None, **content: Any) -> None:
        """Append a line, in one piece; a disk that is full loses it, and the job goes on."""
        if not self._descriptors:
            return
        now = time.monotonic()
        clock = now if clock is None else clock
        moment = {"time": round(time.time() - (now - clock), 6), "clock": round(clock, 6)}
        line = {"version": VERSION, **moment, "job": self._job_id, "start": start, "event": event, **content}
        for descriptor in self._descriptors:
            with contextlib.suppress(OSError):
                os.write(descriptor, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the files."""
        while self._descriptors:
            os.close(self._descriptors.pop())
