"""The processes of this machine, with their parents and sessions.

On Linux they are read from /proc, which takes two thirds of the time of psutil, and not its import: an agent looks for
what its workers have left while a job waits to continue. Other systems need psutil.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

_PROC = "/proc"


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process, as it was when it was read."""

    pid: int
    parent: int
    session: int
    is_zombie: bool  # it has ended, and its parent has not collected it


def processes() -> Iterator[Process]:
    """Yield every process that can be looked at."""
    if not os.path.exists(f"{_PROC}/self/stat"):
        yield from _by_psutil()
        return
    for name in os.listdir(_PROC):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it is gone
                yield _parsed(int(name), _read(f"{_PROC}/{name}/stat"))


def environment(pid: int) -> dict[str, str]:
    """Return the variables with which a process began, or nothing if they cannot be read."""
    try:
        content = _read(f"{_PROC}/{pid}/environ")
    except OSError:
        return _environment_by_psutil(pid) if not os.path.exists(f"{_PROC}/self/stat") else {}
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _parsed(pid: int, stat: bytes) -> Process:
    state, parent, _, session, *_ = stat.rpartition(b")")[2].split()
    return Process(pid=pid, parent=int(parent), session=int(session), is_zombie=state in (b"Z", b"X"))


def _by_psutil() -> Iterator[Process]:
    import psutil

    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_zombie = one.status() == psutil.STATUS_ZOMBIE
            yield Process(pid=one.pid, parent=one.ppid() or 0, session=os.getsid(one.pid), is_zombie=is_zombie)


def _environment_by_psutil(pid: int) -> dict[str, str]:
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return dict(psutil.Process(pid).environ())
    return {}
