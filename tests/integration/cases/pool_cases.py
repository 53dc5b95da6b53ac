"""Functions that the tests of pools call in workers."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANK = int(os.environ["RANK"])


def echo(value: Any) -> list[Any]:
    """Return this worker's index, its process and the value."""
    return [RANK, os.getpid(), value]


def fail_on(rank: int) -> str:
    """Raise on one worker."""
    if rank == RANK:
        raise KeyError("lost")
    return "fine"


def leave_on(rank: int, code: int) -> str:
    """End the process of one worker; print first."""
    if rank == RANK:
        print("last words", file=sys.stderr, flush=True)
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
    return "fine"


def wait_for_ever_on(rank: int) -> str:
    """Wait on one worker, deaf to polite requests."""
    if rank == RANK:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)
    return "fine"


def wait_for_ever_after(path: str) -> None:
    """Make a file, then wait."""
    Path(path).touch()
    wait_for_ever_on(RANK)


def wait_between(begun: str, may_end: str) -> str:
    """Make a file, and wait for another one."""
    Path(begun).touch()
    while not Path(may_end).exists():
        time.sleep(0.01)
    return "late"


def fail_and_leave_others_waiting(rank: int) -> str:
    """Raise on one worker, while the others wait for it."""
    fail_on(rank)
    return wait_for_ever_on(RANK)


def leave_a_temporary_file() -> str:
    """Make a temporary file and return where it is."""
    descriptor, path = tempfile.mkstemp()
    os.close(descriptor)
    return str(Path(path).parent)


def no_json() -> object:
    """Return what cannot travel."""
    return object()


def exit_politely() -> None:
    """Ask the interpreter to end."""
    sys.exit(3)
