"""A process that has imported TensorFlow, from which new workers are forked in milliseconds (Linux).

The process runs `forking`. Forked workers are children of this process, like workers that it starts.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import tfdist
from tfdist.errors import TfdistError
from tfdist.processes import forking
from tfdist.waiting import readable

REPLY_SECONDS = 10.0  # deadline for a fork, which usually takes hundredths of a second
_END_SECONDS = 5.0
_PR_SET_CHILD_SUBREAPER = 36
_adopts = threading.Lock()  # the end of one thread's block would be that of all others


@dataclass(frozen=True, kw_only=True)
class _Idle:
    """A forked worker that waits for a command."""

    pid: int
    channel: socket.socket

    def end(self) -> None:
        self.channel.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)  # safe: the child is not reaped, so its number is not reused
            os.waitpid(self.pid, 0)


@dataclass(frozen=True, kw_only=True)
class ForkServer:
    """The server process and its idle workers. For the guardian they belong to the job of their TFDIST_JOB_ID."""

    process: "subprocess.Popen[bytes]"
    channel: socket.socket
    idle: list[_Idle] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        environment: Mapping[str, str],
        *,
        folder: str | os.PathLike[str],
        modules: Sequence[str] = tfdist.PRELOADED,
        stderr: int = subprocess.DEVNULL,
        ends: str = forking.WHOLE,
    ) -> "ForkServer":
        """Start the process, which is ready some seconds later; `forking` explains ``ends``."""
        if sys.platform != "linux":
            raise TfdistError(f"this system is {sys.platform}; workers can be forked from a process on Linux only.")
        ours, theirs = socket.socketpair()
        command = [sys.executable, forking.__file__, str(theirs.fileno()), os.fspath(folder), ends, *modules]
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C on the keyboard does not reach it
            )
        except OSError as error:
            ours.close()
            raise TfdistError(f"no process can be started ({error}). Free memory or processes.") from error
        finally:
            theirs.close()
        return cls(process=process, channel=ours)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """The process numbers of the server and its idle workers, each of which leads a session."""
        return (self.pid, *(worker.pid for worker in self.idle))

    @property
    def is_ready(self) -> bool:
        """True if the server has imported everything and has not ended; the check takes microseconds."""
        try:  # MSG_PEEK leaves the byte that says that the server waits for a request
            self.channel.settimeout(0.0)  # MSG_DONTWAIT is not enough: Python first waits for the socket's timeout
            return bool(self.channel.recv(1, socket.MSG_PEEK)) and self.process.poll() is None
        except OSError:
            return False

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the server is ready; return whether it is."""
        readable(self.channel, timeout_seconds)
        return self.is_ready

    def spawn(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: int, stdout: int, stderr: int
    ) -> int:
        """Fork a worker that runs ``argv`` in its own session, as a child of this thread, which must outlive it."""
        while True:
            is_new = not self.idle
            worker = self._fork() if is_new else self.idle.pop()
            try:
                with worker.channel:
                    hand_over(worker.channel, argv, environment, (stdin, stdout, stderr))
            except OSError as error:  # the idle worker was killed, or a stream is closed
                worker.end()
                if is_new:
                    raise TfdistError(f"a forked worker cannot be told what to run ({error}).") from error
            else:
                return worker.pid

    def prepare(self, count: int) -> None:
        """Fork workers in advance, so that `spawn` takes only a millisecond."""
        while len(self.idle) < count:
            self.idle.append(self._fork())

    def _fork(self) -> _Idle:
        ours, theirs = socket.socketpair()
        try:
            with theirs, adopting():
                self.channel.settimeout(REPLY_SECONDS)
                self._read(len(forking.READY))
                socket.send_fds(self.channel, [forking.READY], [theirs.fileno()])
                (answer,) = forking.NUMBER.unpack(self._read(forking.NUMBER.size))
        except OSError as error:
            ours.close()
            self.close()
            raise TfdistError(f"the process that forks workers does not answer ({error}).") from error
        if answer < 0:
            ours.close()
            raise TfdistError(f"no worker can be forked ({os.strerror(-answer)}). Free memory or processes.")
        return _Idle(pid=int(answer), channel=ours)

    def _read(self, size: int) -> bytes:
        raw = b""
        while len(raw) < size:
            more = self.channel.recv(size - len(raw))
            if not more:
                raise ConnectionResetError("it has ended")
            raw += more
        return raw

    def close(self) -> None:
        """End the server and its idle workers; spawned workers continue."""
        while self.idle:
            self.idle.pop().end()
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()  # safe: the server has no state to save
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)


def hand_over(
    channel: socket.socket, argv: Sequence[str], environment: Mapping[str, str], streams: tuple[int, int, int]
) -> None:
    """Tell a forked worker what to run."""
    request = json.dumps({"argv": list(argv[1:]), "environment": dict(environment)}).encode()
    channel.settimeout(REPLY_SECONDS)
    socket.send_fds(channel, [forking.NUMBER.pack(len(request))], streams)
    channel.sendall(request)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Let this process adopt orphaned descendants within the block, for one thread at a time."""
    control = ctypes.CDLL(None, use_errno=True).prctl
    with _adopts:
        if control(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER is not possible")
        try:
            yield
        finally:
            control(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
