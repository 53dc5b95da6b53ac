"""A process on another host, as the agent sees it."""

import contextlib
import os
import queue
import signal
import threading
from typing import Any, Protocol

from tfdist.jobs.plan.worker_spec import WorkerSpec


class Asks(Protocol):
    """Asks the host for something that has no answer."""

    def tell(self, do: str, **values: Any) -> None:
        """Ask for it."""

    def is_stopped(self, number: int) -> bool:
        """Whether a process stands still."""

    def forget(self, number: int) -> None:
        """Give back a process that has ended."""


class RemoteProcess:
    """A process on another host, as `placement.Handle`."""

    outputs_end_later = True  # it is on its way

    def __init__(self, link: Asks, number: int, spec: WorkerSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.link = link
        self.number = number
        self._returncode: int | None = None
        self._ended = threading.Event()
        self._ended_unasked = False
        self._closed = False
        self._streams = {stream: _Stream(link, number, stream) for stream in sorted(spec.piped)}
        self.outputs = {stream: one.descriptor for stream, one in self._streams.items()}

    @property
    def address(self) -> str:
        """Where the others reach it; empty where nobody has to."""
        return self.spec.address

    @property
    def is_stopped(self) -> bool:
        """Whether the process stands still, because of SIGSTOP or the like."""
        return self._returncode is None and self.link.is_stopped(self.number)

    @property
    def ended_unasked(self) -> bool:
        """Whether it had ended when the first signal came to its host, which may be before its end is heard here."""
        return self._ended_unasked

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait until it has ended; return its exit code, the negative number of a signal, or None if it goes on."""
        self._ended.wait(timeout_seconds)
        return self._returncode

    def signal(self, number: int) -> None:
        """Send a signal: SIGKILL to all processes of its group, any other to it alone."""
        if not self._closed and (self._returncode is None or number == signal.SIGKILL):
            self.link.tell("signal", handle=self.number, number=int(number))

    def close(self, timeout_seconds: float) -> None:
        """Give back what the ended process has held."""
        if not self._closed:
            self._closed = True
            self.link.forget(self.number)
            self.give_back()

    def give_back(self) -> None:
        """Close the descriptors."""
        for stream in self._streams.values():
            stream.close()

    # Called by the link, in its thread

    def take(self, stream: int, data: bytes) -> None:
        """Take what it has written to a stream; nothing when no more comes."""
        self._streams[stream].put(data)

    def record(self, content: str) -> None:
        """Keep the record of its failure where the agent looks for it; the first one counts."""
        path = self.spec.error_file
        if self._returncode is None and not path.exists():
            temporary = path.with_name(f"{path.name}.new")
            with contextlib.suppress(OSError):  # the disk is full: the exit code tells the failure then
                temporary.write_text(content, encoding="utf-8")
                temporary.replace(path)

    def end(self, returncode: int, *, unasked: bool = False) -> None:
        """Note that it has ended, and whether no signal had come to it before."""
        if self._returncode is None:
            self._ended_unasked = unasked
            self._returncode = returncode
            self._ended.set()

    def end_output(self) -> None:
        """Note that its host is lost: nothing more comes."""
        for stream in self._streams.values():
            stream.put(b"")


class _Stream:
    """A pipe to read here what a process writes there; the host learns what was taken, and sends no faster."""

    def __init__(self, link: Asks, number: int, stream: int) -> None:
        self.descriptor, self._write = os.pipe()
        self._told = {"handle": number, "stream": stream}
        self._link = link
        self._data: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, data: bytes) -> None:
        self._data.put(data)

    def close(self) -> None:
        os.close(self.descriptor)
        self.put(b"")

    def _run(self) -> None:
        try:
            while data := self._data.get():
                view = memoryview(data)
                while view:
                    view = view[os.write(self._write, view) :]
                self._link.tell("taken", bytes=len(data), **self._told)
        except OSError:  # nobody reads any more
            pass
        finally:
            os.close(self._write)
