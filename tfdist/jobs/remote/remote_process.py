"""A process on another host, as the agent sees it."""

import contextlib
import os
import queue
import signal
import threading
from typing import TYPE_CHECKING

from tfdist.errors import TfdistError
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.storage.files import write_whole

if TYPE_CHECKING:
    from tfdist.jobs.remote.host_link import HostLink


class RemoteProcess:
    """A process on another host, as `placement_protocol.Handle`."""

    outputs_end_later = True  # it is on its way

    def __init__(self, link: "HostLink", number: int, spec: WorkerSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.link = link
        self.number = number
        self._returncode: int | None = None
        self._ended = threading.Event()
        self._ended_unasked = False
        self._closed = False
        self._streams: dict[int, _Stream] = {}
        try:
            for stream in sorted(spec.piped):
                self._streams[stream] = _Stream(link, number, stream)
        except OSError as error:
            self.give_back()
            raise TfdistError(f"{spec.task} cannot be started ({error}). Raise the limit: ulimit -n") from error
        self.outputs = {stream: one.descriptor for stream, one in self._streams.items()}

    @property
    def is_stopped(self) -> bool:
        return self._returncode is None and self.link.is_stopped(self.number)

    @property
    def ended_unasked(self) -> bool:
        """Whether the process had ended when the first signal reached its host, even if the report came later."""
        return self._ended_unasked

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        self._ended.wait(timeout_seconds)
        return self._returncode

    def signal(self, number: int) -> None:
        if not self._closed and (self._returncode is None or number == signal.SIGKILL):
            self.link.tell("signal", handle=self.number, number=int(number))

    def close(self, timeout_seconds: float) -> None:
        if not self._closed:
            self._closed = True
            self.link.forget(self.number)
            self.give_back()

    def give_back(self) -> None:
        for stream in self._streams.values():
            stream.close()

    # Called by the link, in its thread

    def take(self, stream: int, data: bytes) -> None:
        """Take output; empty data ends the stream."""
        self._streams[stream].put(data)

    def record(self, content: str) -> None:
        """Store the failure record where the agent looks for it; the first one counts."""
        path = self.spec.error_file
        if self._returncode is None and not path.exists():
            with contextlib.suppress(OSError):  # the disk is full: the exit code has to do
                write_whole(path, content)

    def end(self, returncode: int, *, unasked: bool = False) -> None:
        if self._returncode is None:
            self._ended_unasked = unasked
            self._returncode = returncode
            self._ended.set()

    def end_output(self) -> None:
        for stream in self._streams.values():
            stream.put(b"")


class _Stream:
    """A local pipe with a remote process's output; the host sends no faster than it is read."""

    def __init__(self, link: "HostLink", number: int, stream: int) -> None:
        self.descriptor, self._write = os.pipe()
        self._told = {"handle": number, "stream": stream}
        self._link = link
        self._data: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"output {stream} of {number}", daemon=True).start()

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
        except OSError:  # the reader is gone
            pass
        finally:
            os.close(self._write)
