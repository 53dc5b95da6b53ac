"""Forward the output of a host's process to the agent of the job."""

import base64
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

CREDIT_BYTES = 1 << 18  # of a stream that the agent has not written yet
_CHUNK = 1 << 15
_POLL_MILLISECONDS = 500


class Forward:
    """Passes on what a process writes to a stream, no faster than the agent takes it."""

    def __init__(self, descriptor: int, handle: int, stream: int, send: Callable[[dict[str, Any]], None]) -> None:
        self._descriptor = descriptor
        self._handle = handle
        self._stream = stream
        self._send = send
        self._credit = CREDIT_BYTES
        self._given = threading.Condition()
        self._finishing = threading.Event()

    def give(self, count: int) -> None:
        """Let so many bytes more be sent."""
        with self._given:
            self._credit += count
            self._given.notify()

    def finish(self) -> None:
        """Pass on what the processes, which have ended, have written; who still holds the stream is not waited for."""
        self._finishing.set()

    def run(self) -> None:
        """Pass on until the stream ends."""
        for data in self._read():
            with self._given:
                self._given.wait_for(lambda: self._credit > 0)
                self._credit -= len(data)
            self._send({"output": self._handle, "stream": self._stream, "data": base64.b64encode(data).decode()})
        self._send({"output": self._handle, "stream": self._stream, "data": ""})

    def _read(self) -> Iterator[bytes]:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        try:
            while True:
                is_last = self._finishing.is_set()
                if poll.poll(0 if is_last else _POLL_MILLISECONDS):
                    if not (data := os.read(self._descriptor, _CHUNK)):
                        return
                    yield data
                elif is_last:
                    return
        except OSError:
            return
        finally:
            os.close(self._descriptor)
