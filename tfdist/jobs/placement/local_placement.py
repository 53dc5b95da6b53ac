"""The placement on this host.

Every process leads its own session, so that its children can be reached, and Ctrl-C in a terminal reaches only the
agent. An ended process stays a zombie until `close`: its group keeps its number, and no signal goes astray. A process
that stays after its script has ended is reported with its native stack on its own standard error, and ended:
`script_worker` writes a note after the script's last line, and again when no user code can run any more.
"""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tfdist.cluster.ports import free_ports
from tfdist.errors import TfdistError
from tfdist.jobs.placement.placement_protocol import Handle, Site
from tfdist.jobs.plan import worker_spec
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.process.script_worker import END_NOTE
from tfdist.monitor.stacks.stack_requests import native_lines
from tfdist.processes import guardian, process_table
from tfdist.processes.job_resources import Guard
from tfdist.variables import ERROR_FILE

LOOK_SECONDS = 1.0
_GAP_SECONDS = 5.0  # a longer gap between looks means that the agent was stopped
END_SECONDS = 30.0  # for Python and libraries to shut down


class Lingering:
    def __init__(self, spec: WorkerSpec) -> None:
        self._name = str(spec.task)
        path = ERROR_FILE.read(spec.environment)  # as this host has it; none: it runs no script
        self._error_file = Path(path) if path else None
        self._exit_seconds = spec.exit_seconds
        self._looked = self._awake = time.monotonic()
        self._is_told = False

    def look(self) -> tuple[str, int | None]:
        """The report to make, if any, and the script's exit code if the process is to be killed."""
        now = time.monotonic()
        if now - self._looked > _GAP_SECONDS:
            self._awake = now  # the process may have been stopped too
        self._looked = now
        note = None if self._error_file is None else read_note(self._error_file)
        if note is None:
            return "", None
        stands = judge(note, now - max(note.clock, self._awake), self._exit_seconds)
        is_killed = stands is Stay.STUCK
        if stands is Stay.FINE or (self._is_told and not is_killed):
            return "", None
        self._is_told = True
        text = complaint(self._name, note, now, self._exit_seconds, is_killed=is_killed)
        return text, note.exit_code if is_killed else None

    def close(self) -> None:
        """Remove the note of the ended process: one that follows workers in reserve has the same error file."""
        if self._error_file is not None:
            with contextlib.suppress(OSError):
                Path(f"{self._error_file}{END_NOTE}").unlink()


def tell(pid: int, text: str) -> None:
    """Report on a process, with its native frames, on its standard error or else on that of this process."""
    frames = native_lines(pid)
    shown = "".join(f"{line}\n" for line in (f"tfdist: {text}", *(f"    {frame}" for frame in frames))).encode()
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    try:
        descriptor = os.open(f"/proc/{pid}/fd/2", flags)
    except OSError:  # it is a socket, or closed
        descriptor = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ is not None else -1
    with contextlib.suppress(OSError):  # the reader is gone
        try:
            os.write(descriptor, shown)
        finally:
            os.close(descriptor)


def wait_for_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended or time is up; only for a moment where the system cannot wait."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        time.sleep(min(seconds, 0.01))
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * seconds)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class EndNote:
    """A worker's note: exit code, clock (shared by all processes of a host), and whether user code may still run."""

    exit_code: int
    clock: float
    runs_python: bool


def read_note(error_file: Path) -> EndNote | None:
    """The note of the worker with this error file; None while there is none."""
    try:
        content = json.loads(Path(f"{error_file}{END_NOTE}").read_text(encoding="utf-8"))
        code, clock, runs_python = int(content["exit_code"]), float(content["clock"]), bool(content["runs_python"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return EndNote(exit_code=code, clock=clock, runs_python=runs_python) if math.isfinite(clock) else None


class Stay(Enum):
    """The agent's reaction to a process whose script has ended."""

    FINE = "fine"  # it waits
    SLOW = "slow"  # it reports, and waits
    STUCK = "stuck"  # it reports, and kills


def judge(note: EndNote, seconds: float, exit_seconds: float) -> Stay:
    """The verdict on a process that stays for so many seconds.

    Example:
        >>> running = EndNote(exit_code=0, clock=5.0, runs_python=True)
        >>> done = EndNote(exit_code=0, clock=6.0, runs_python=False)
        >>> [judge(note, seconds, 300.0).name for note in (running, done) for seconds in (29.0, 31.0, 301.0)]
        ['FINE', 'SLOW', 'STUCK', 'FINE', 'STUCK', 'STUCK']
    """
    if seconds > (exit_seconds if note.runs_python else min(exit_seconds, END_SECONDS)):
        return Stay.STUCK
    return Stay.SLOW if seconds > END_SECONDS else Stay.FINE


def complaint(name: str, note: EndNote, now: float, exit_seconds: float, *, is_killed: bool) -> str:
    ended = f"its script ended {now - note.clock:.0f} s ago, with exit code {note.exit_code}"
    if note.runs_python:
        why = f"and threads or functions of atexit still run, for which --exit-seconds gives {exit_seconds:g} s"
    else:
        why = "and no code of it runs any more, but a library does not let the process go"
    follows = " The process is killed, and that exit code counts." if is_killed else ""
    return f"{name} does not end: {ended}, {why}.{follows}"


LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.01
_EXITING = 0x4  # PF_EXITING of Linux, among the flags of /proc/PID/stat


def streams_of_one(*, all_logs: bool) -> frozenset[int]:
    """The streams of a single worker that go through the agent: standard error, unless everything is shown."""
    if all_logs:
        return frozenset()
    try:
        os.fstat(2)
    except OSError:  # it is closed: nothing can be shown there
        return frozenset()
    return frozenset({2})


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process that leads a session, a child unless it has an `ended` of its own."""

    pid: int  # its own until `collect`
    collect: Callable[[float], None]  # waits for it
    ended: Callable[[], int | None] | None = None  # as `subprocess.Popen.returncode` says it; None: it runs


# (what to start, its complete environment, descriptors of its standard input, output and error) -> the process
Starter = Callable[[WorkerSpec, Mapping[str, str], tuple[int, int, int]], Child]


def started_anew(spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
    stdin, stdout, stderr = streams
    process = subprocess.Popen(
        spec.argv, env=dict(environment), stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )

    def collect(seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)

    return Child(pid=process.pid, collect=collect)


class LocalProcess:
    outputs_end_later = False  # it is in the pipes, which a child that lives on may hold open

    def __init__(self, spec: WorkerSpec, child: Child, outputs: Mapping[int, int], guard: Guard) -> None:
        self.spec = spec
        self.pid = child.pid
        self.outputs = outputs
        self._child = child
        self._guard = guard
        self._returncode: int | None = None
        self._was_asked = False
        self._lock = threading.Lock()  # held while the number of the process is used, or given back
        self._closed = False
        self._lingering = Lingering(spec)
        self._code_of_script: int | None = None  # of a process that was killed because it did not end
        guard.watch(self.pid)

    @property
    def is_stopped(self) -> bool:
        return self._stat()[:1] == [b"T"]

    @property
    def ended_unasked(self) -> bool:
        """True if it had ended, or was being ended by the system, before the agent's first signal."""
        return self._returncode is not None and not self._was_asked

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        while timeout_seconds is None and not self._has_ended():
            self._end_if_it_lingers()
            wait_for_end(self.pid, LOOK_SECONDS)
        deadline = time.monotonic() + (timeout_seconds or 0.0)
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return self._returncode

    def signal(self, number: int) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._closed:
                return
            self._was_asked = self._was_asked or not self._is_exiting()
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    def close(self, timeout_seconds: float) -> None:
        """Collect the ended process, and close the descriptors; one that does not end is left to the system."""
        if self._closed:
            return
        self._has_ended()
        self._guard.forget(self.pid)
        with self._lock:
            self._closed = True
            self._child.collect(timeout_seconds)
        self._lingering.close()
        for descriptor in self.outputs.values():
            os.close(descriptor)

    def _end_if_it_lingers(self) -> None:
        """Kill a process that stays after its script has ended; the script's exit code becomes its own."""
        text, code = ("", None) if self._code_of_script is not None else self._lingering.look()
        if text:
            tell(self.pid, text)
        if code is None:
            return
        with self._lock, contextlib.suppress(ProcessLookupError):
            if not self._closed:
                self._code_of_script = code
                os.kill(self.pid, signal.SIGKILL)

    def _is_exiting(self) -> bool:
        """True if it runs no more: a killed process closes its connections before it has ended."""
        words = self._stat()
        return not words or words[0] in (b"Z", b"X") or bool(int(words[6]) & _EXITING)

    def _stat(self) -> list[bytes]:
        """Return what the kernel says of it, from its state on; nothing once it is gone."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()
        except OSError:
            return []

    def _has_ended(self) -> bool:
        with self._lock:
            if self._returncode is None and not self._closed:
                self._returncode = _end_of(self.pid) if self._child.ended is None else self._child.ended()
                if self._code_of_script is not None and self._returncode == -signal.SIGKILL:
                    self._returncode = self._code_of_script
            return self._returncode is not None or self._closed


def _end_of(child: int) -> int | None:
    """Return the exit code of a child, which stays a zombie; None if it runs."""
    with contextlib.suppress(ChildProcessError):
        result = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if result is not None:
            return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
    return None


class LocalPlacement:
    def __init__(self, guard: Guard, *, starter: Starter = started_anew, host: str = LOOPBACK) -> None:
        self._guard = guard
        self._starter = starter
        self._host = host

    def addresses(self, count: int, *, but: Collection[str] = ()) -> list[tuple[str, int]]:
        return free_addresses(count, self._host, but=but)

    def site(self, host: str) -> Site:
        return Site(
            directory=self._guard.directory, memory=self._guard.memory, python=sys.executable, agent_pid=os.getpid()
        )

    def start(self, spec: WorkerSpec) -> Handle:
        """Start a process from a thread that outlives it: Linux ends it with that thread."""
        outputs: dict[int, int] = {}
        given: dict[int, int] = {}  # to the process; closed here
        try:
            if 1 in spec.piped:
                given[0] = os.open(os.devnull, os.O_RDONLY)
            for stream in sorted(spec.piped):
                is_terminal = 1 not in spec.piped and os.isatty(stream)
                outputs[stream], given[stream] = _terminal() if is_terminal else os.pipe()
            streams = {0: 0, 1: 1, 2: 2} | given
            environ = spec.environ(os.environ)
            if spec.gpus is not None:
                environ[worker_spec.VISIBLE] = worker_spec.visible_gpus(spec.gpus, os.environ)
            child = self._starter(spec, environ, (streams[0], streams[1], streams[2]))
        except (OSError, TfdistError) as error:
            for descriptor in outputs.values():
                os.close(descriptor)
            if isinstance(error, TfdistError):
                raise
            raise TfdistError(
                f"{spec.task} cannot be started ({error}). The command is {list(spec.argv)}; free memory or "
                "processes, or start fewer workers."
            ) from error
        finally:
            for descriptor in given.values():
                os.close(descriptor)
        return LocalProcess(spec, child, outputs, self._guard)

    def end_leftovers(self, handles: Sequence[Handle], *, grace_seconds: float) -> int:
        job, sessions = self._guard.job_id, {handle.pid for handle in handles}
        others = self._guard.watched - sessions  # workers in reserve, or those that they wait for
        left = guardian.members(job, sessions=sessions, but=others)
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + (grace_seconds if left else 0.0)
        while time.monotonic() < deadline and guardian.members(job, sessions=sessions, but=others):
            time.sleep(0.02)
        guardian.end_job(job, sessions=sessions, but=others)
        _collect_orphans(left, sessions)
        return len(left)


def _collect_orphans(pids: Collection[int], sessions: Collection[int]) -> None:
    """Collect ended processes that became children of this one when a fork server lost their parent."""
    own = os.getpid()
    for one in process_table.processes():
        is_theirs = one.pid not in sessions and (one.pid in pids or one.session in sessions)
        if one.parent == own and is_theirs and one.is_zombie:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(one.pid, os.WNOHANG)


def free_addresses(count: int, host: str = LOOPBACK, *, but: Collection[str] = ()) -> list[tuple[str, int]]:
    """Free ports of this host, with the host's name."""
    ports = free_ports(count + len(but), host)
    return [(host, port) for port in ports if f"{host}:{port}" not in but][:count]


def _terminal() -> tuple[int, int]:
    """Both ends of a pseudo-terminal of the same size as standard error."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    with contextlib.suppress(OSError):
        termios.tcsetwinsize(theirs, termios.tcgetwinsize(2))
    return ours, theirs
