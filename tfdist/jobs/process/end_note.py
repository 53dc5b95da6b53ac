"""The note in which a worker says that its script has ended, and when such a process stays too long.

`process.worker` writes it beside the record of a failure: first behind the script's last line, again when threads have
been joined and the functions of `atexit` have returned. From then on no code of the user's runs in that process.
"""

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tfdist.jobs.process.script_worker import END_NOTE

END_SECONDS = 30.0  # for Python and libraries to free what they hold; what takes longer before is told


@dataclass(frozen=True, kw_only=True)
class EndNote:
    """What a worker has noted.

    Attributes:
        exit_code: with which it ends.
        clock: time.monotonic() then; all processes of a host share this clock.
        runs_python: whether threads and functions of `atexit` may still run.
    """

    exit_code: int
    clock: float
    runs_python: bool


def read(error_file: Path) -> EndNote | None:
    """Return the note of the worker that records its failure in this file; None while there is none.

    Example:
        >>> read(Path("no such file"))
    """
    try:
        content = json.loads(Path(f"{error_file}{END_NOTE}").read_text(encoding="utf-8"))
        code, clock, runs_python = int(content["exit_code"]), float(content["clock"]), bool(content["runs_python"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return EndNote(exit_code=code, clock=clock, runs_python=runs_python) if math.isfinite(clock) else None


class Standing(Enum):
    """What the agent does about a process whose script has ended."""

    FINE = "fine"  # it waits
    SLOW = "slow"  # it tells, and waits
    STUCK = "stuck"  # it tells, and kills


def standing(note: EndNote, seconds: float, exit_seconds: float) -> Standing:
    """Return how it stands with a process.

    Example:
        >>> running = EndNote(exit_code=0, clock=5.0, runs_python=True)
        >>> done = EndNote(exit_code=0, clock=6.0, runs_python=False)
        >>> [standing(note, seconds, 300.0).name for note in (running, done) for seconds in (29.0, 31.0, 301.0)]
        ['FINE', 'SLOW', 'STUCK', 'FINE', 'STUCK', 'STUCK']
    """
    if seconds > (exit_seconds if note.runs_python else min(exit_seconds, END_SECONDS)):
        return Standing.STUCK
    return Standing.SLOW if seconds > END_SECONDS else Standing.FINE


def said(name: str, note: EndNote, now: float, exit_seconds: float, *, is_killed: bool) -> str:
    """Return what to tell of a process that stays.

    Example:
        >>> note = EndNote(exit_code=3, clock=10.0, runs_python=False)
        >>> said("worker 0", note, 41.0, 300.0, is_killed=True)[:64]
        'worker 0 does not end: its script ended 31 s ago, with exit code'
    """
    ended = f"its script ended {now - note.clock:.0f} s ago, with exit code {note.exit_code}"
    if note.runs_python:
        why = f"and threads or functions of atexit still run, for which --exit-seconds gives {exit_seconds:g} s"
    else:
        why = "and no code of it runs any more, but a library does not let the process go"
    follows = " The process is killed, and that exit code counts." if is_killed else ""
    return f"{name} does not end: {ended}, {why}.{follows}"
