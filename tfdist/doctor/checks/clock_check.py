"""The clock: events of several hosts are ordered by it, so the first failure is found by it.

Example:
    >>> judge(Clock(now=2e9, installed=1e9, synchronised=True))[0].level.name
    'OK'
"""

import ctypes
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import tfdist
from tfdist.doctor.finding import Finding, note, ok, problem

_TIMEX_BYTES = 512  # more than any kernel's struct timex; all zero asks and changes nothing
_TIME_ERROR = 5
_TOLERATED_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The wall clock.

    Attributes:
        now: seconds since 1970.
        installed: when this package was written to the disk, seconds since 1970.
        synchronised: whether the kernel knows that a time service keeps the clock; None when it cannot be asked.
    """

    now: float
    installed: float
    synchronised: bool | None = None


def observe() -> Clock:
    """Read the clock."""
    installed = Path(tfdist.__file__).stat().st_mtime
    return Clock(now=time.time(), installed=installed, synchronised=_synchronised())


def _synchronised() -> bool | None:
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (AttributeError, OSError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def judge(clock: Clock) -> list[Finding]:
    """Say whether the clock can be trusted."""
    seen = datetime.fromtimestamp(clock.now, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if clock.now < clock.installed - _TOLERATED_SECONDS:
        why = "it is behind the time at which tfdist was installed: certificates, make and event times go wrong"
        return [problem("clock", seen, why, "timedatectl set-ntp true")]
    if clock.synchronised is False:
        why = "no time service keeps it; with several hosts the order of their events is not certain"
        return [note("clock", f"{seen}, not synchronised", why, "timedatectl set-ntp true")]
    return [ok("clock", seen)]
