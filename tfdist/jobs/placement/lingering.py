"""End a process that stays after its script has ended, and report its native stack.

What is told goes into the process's own standard error, so it comes to the user as its lines do, from whatever host.
"""

import contextlib
import os
import select
import sys
import time
from pathlib import Path

from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.process import end_note
from tfdist.monitor.stacks.stack_requests import native_lines
from tfdist.variables import ERROR_FILE

LOOK_SECONDS = 1.0
_GAP_SECONDS = 5.0  # between two looks of an agent that was stopped, or whose machine was


class Lingering:
    """Looks whether one process stays after its script has ended."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._name = str(spec.task)
        path = ERROR_FILE.read(spec.environment)  # as this host has it; none: it runs no script
        self._error_file = Path(path) if path else None
        self._exit_seconds = spec.exit_seconds
        self._looked = self._awake = time.monotonic()
        self._is_told = False

    def look(self) -> tuple[str, int | None]:
        """Return what to tell of the process, if anything, and its script's exit code if it is to be killed."""
        now = time.monotonic()
        if now - self._looked > _GAP_SECONDS:
            self._awake = now  # the process may have been stopped too
        self._looked = now
        note = None if self._error_file is None else end_note.read(self._error_file)
        if note is None:
            return "", None
        stands = end_note.standing(note, now - max(note.clock, self._awake), self._exit_seconds)
        is_killed = stands is end_note.Standing.STUCK
        if stands is end_note.Standing.FINE or (self._is_told and not is_killed):
            return "", None
        self._is_told = True
        text = end_note.said(self._name, note, now, self._exit_seconds, is_killed=is_killed)
        return text, note.exit_code if is_killed else None


def tell(pid: int, text: str) -> None:
    """Tell what is known of a process, and where it stands, on its own standard error; else on that of this process."""
    frames = native_lines(pid)
    shown = "".join(f"{line}\n" for line in (f"tfdist: {text}", *(f"    {frame}" for frame in frames))).encode()
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK
    try:
        descriptor = os.open(f"/proc/{pid}/fd/2", flags)
    except OSError:  # it is a socket, or closed
        descriptor = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ is not None else -1
    with contextlib.suppress(OSError):  # nobody reads it
        try:
            os.write(descriptor, shown)
        finally:
            os.close(descriptor)


def wait_for_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended, for so many seconds at most; a moment, where the system has no way to wait."""
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
