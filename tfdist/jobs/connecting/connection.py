"""Connections to host agents: the streams of a program such as ssh, or TCP."""

import contextlib
import shlex
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Protocol

from tfdist.errors import TfdistError
from tfdist.jobs.connecting.tcp_joining import Joined
from tfdist.jobs.connecting.wire import Wire
from tfdist.jobs.plan.host_plan import Host
from tfdist.waiting import end_process

_END_SECONDS = 10.0
_DRAIN_SECONDS = 1.0
_LINES = 20


class Connection(Protocol):
    """A connection to a host agent."""

    @property
    def wire(self) -> Wire:
        """The messages of the connection."""

    @property
    def drain_seconds(self) -> float:
        """The time in seconds for data under way to arrive after the end."""

    @property
    def shares_key(self) -> bool:
        """True if the host has the job's key, and nothing is encrypted."""

    @property
    def cure(self) -> str:
        """Advice to the user when nothing arrives."""

    def note(self, line: str) -> None:
        """Add a line to the reasons for the end of the connection."""

    def quoted(self) -> str:
        """Return the known reasons for its end, as the end of a sentence; may be empty."""

    def unreachable(self, said: str) -> str:
        """Describe the failure before the first message, given what came instead; follows "cannot be reached"."""

    def cut(self) -> None:
        """End the connection now."""

    def end(self) -> None:
        """Announce the end of this side's messages."""

    def close(self) -> None:
        """Release the connection's resources."""


class ByProgram:
    """A connection over the standard streams of a program that runs a command on the host."""

    shares_key = False
    drain_seconds = _DRAIN_SECONDS

    def __init__(self, host: Host, command: tuple[str, ...]) -> None:
        self._shell = shlex.join(command[:-1])
        self.cure = f"Try: {self._shell} true"
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise TfdistError(
                f"{command[0]} cannot be run ({error.strerror}), by which host {host.name} is reached. Install an "
                "OpenSSH client, or name another program with --ssh-command."
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.wire = Wire(self._process.stdout.fileno(), self._process.stdin.fileno())
        assert self._process.stderr is not None
        self._errors = Tail(self._process.stderr)

    def note(self, line: str) -> None:
        self._errors.add(line)

    def quoted(self) -> str:
        return self._errors.quoted()

    def unreachable(self, said: str) -> str:
        words = self._errors.quoted() or (f":\n{said}" if said.strip() else "")
        if "No module named" in words and "tfdist" in words:
            cure = "Install the same version of tfdist there, or name an interpreter that has it with --remote-python."
        elif "resolve hostname" in words:
            cure = "No such name is known here. Correct --hosts, or add the name to ~/.ssh/config or /etc/hosts."
        elif self._code() == 127:
            cure = "Name the interpreter there with --remote-python."
        else:
            cure = f"This has to work without a question: {self._shell} true"
        return f"by {self._shell}{words}\n{cure}"

    def _code(self) -> int | None:
        """Return the program's exit code; None if it does not end, as when a login script writes for ever."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_DRAIN_SECONDS)
        return None

    def cut(self) -> None:
        self._process.kill()  # no effect on an ended process

    def end(self) -> None:
        """Close the program's standard input, and wait until it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        end_process(self._process, _END_SECONDS)

    def close(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


class ByTcp:
    shares_key = True
    drain_seconds = _END_SECONDS

    def __init__(self, joined: Joined, complaints: Callable[[], str] = lambda: "") -> None:
        self.cure = "It has joined, and does not answer: check whether it is stopped."
        self.wire = joined.wire
        self._connection = joined.connection
        self._complaints = complaints
        self._notes: deque[str] = deque(maxlen=_LINES)

    def note(self, line: str) -> None:
        self._notes.append(line)

    def quoted(self) -> str:
        return "".join(f"\n  {line}" for line in (*self._notes, *self._complaints().splitlines()))

    def unreachable(self, said: str) -> str:
        return f"over the connection by which it has joined{self.quoted()}"

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Send no more. The other side ends its processes and then the connection, which the reader sees."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.cut()
        self._connection.close()


class Tail:
    """The last lines of a program's output."""

    def __init__(self, stream: IO[bytes], lines: int = _LINES) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._thread = threading.Thread(target=self._read, args=(stream,), name="last lines", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        self._lines.append(line)

    def quoted(self) -> str:
        return "".join(f"\n  {line}" for line in self.lines(_DRAIN_SECONDS))

    def lines(self, seconds: float) -> list[str]:
        """Return the lines so far, after a wait of at most this long for the end of the output."""
        self._thread.join(seconds)
        return list(self._lines)

    def close(self) -> None:
        self._thread.join(_DRAIN_SECONDS)

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line.decode(errors="replace").rstrip())
