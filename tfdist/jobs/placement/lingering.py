"""Ends a process that stays after its script has ended, and reports its native stack.

`script_worker` writes a note after the script's last line, and again once threads and functions of `atexit` have ended;
from then on no user code runs. The report goes to the process's own standard error, and so reaches the user from any
host.
"""

import contextlib
import json
import math
import os
import select
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.process.script_worker import END_NOTE
from tfdist.monitor.stacks.stack_requests import native_lines
from tfdist.variables import ERROR_FILE

LOOK_SECONDS = 1.0
_GAP_SECONDS = 5.0  # a longer gap between looks means that the agent was stopped
END_SECONDS = 30.0  # for Python and libraries to shut down


class Lingering:
    """Checks whether a process stays after its script has ended."""

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
    """What the agent does about a process whose script has ended."""

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
    """The report of a process that stays."""
    ended = f"its script ended {now - note.clock:.0f} s ago, with exit code {note.exit_code}"
    if note.runs_python:
        why = f"and threads or functions of atexit still run, for which --exit-seconds gives {exit_seconds:g} s"
    else:
        why = "and no code of it runs any more, but a library does not let the process go"
    follows = " The process is killed, and that exit code counts." if is_killed else ""
    return f"{name} does not end: {ended}, {why}.{follows}"
