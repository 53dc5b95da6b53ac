"""The failure of a job's workers: which one failed first, and how. Reading a record is the only effect.

Other workers fail after it, because their collectives break, so the first failure by time is the cause. The time of an
exception is the time at which the worker recorded it. The time of a death without a record is that at which the agent
saw it, perhaps a moment after the others noticed the closed connection.
"""

import json
import math
import signal
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import cause_of

HOST_LOST = "HostLostError"  # the type in the record of a worker with a lost host
SEEN_LATE_SECONDS = 1.0  # by which a death may be seen after the failures that follow from it

# By these a process dies for a reason of its own; SIGABRT is missing, with which TensorFlow ends the peers of the dead.
_NEVER_A_CONSEQUENCE = frozenset(
    -number for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
)
_BY_REQUEST = (-signal.SIGTERM, -signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Record:
    """A worker's record of its own failure.

    Attributes:
        clock: the value of time.monotonic() at the failure, in seconds; all processes of a host share this clock.
        type: the name of the exception's class.
        message: the text of the exception.
        traceback: the traceback as Python prints it.
        exit_code: the exit code with which the process was going to end.
    """

    clock: float
    type: str
    message: str
    traceback: str
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that failed.

    Attributes:
        worker: the index of the worker.
        time: the time of the failure, on the agent's monotonic clock in seconds.
        returncode: the return code of its process; negative for a signal.
        record: the record that it wrote, or None if it could not.
        name: its name in a job whose processes are not all workers, such as "ps 0".
    """

    worker: int
    time: float
    returncode: int
    record: Record | None = None
    name: str | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of this failure: that of the process, or 128 + the number of the signal.

        Example:
            >>> Failure(worker=0, time=0.0, returncode=-9).exit_code
            137
        """
        if self.returncode >= 0:
            return self.returncode
        return self.record.exit_code if self.record is not None else 128 - self.returncode


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        exit_code: 0; or the exit code of the first failure; or 128 + the number of the signal that ended the job.
        failures: the workers that failed on their own, the root cause first.
        received: the signal to the agent that ended the job, if no worker did.
    """

    exit_code: int
    failures: tuple[Failure, ...] = ()
    received: int | None = None

    @classmethod
    def interrupted(cls, received: int) -> "Outcome":
        """Return the outcome of a job that a signal has ended.

        Example:
            >>> Outcome.interrupted(15).exit_code
            143
        """
        return cls(exit_code=128 + received, received=received)


def read_record(path: Path) -> Record | None:
    """Return the record in a file; None if there is no valid one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        clock, exit_code = float(content["clock"]), int(content["exit_code"])
        texts = [content[key] for key in ("type", "message", "traceback")]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if not all(isinstance(text, str) for text in texts) or not math.isfinite(clock) or not 0 < exit_code < 256:
        return None
    return Record(clock=clock, type=texts[0], message=texts[1], traceback=texts[2], exit_code=exit_code)


def own_failures(ended: Iterable[Failure], *, stopped_at: float, received: int | None) -> tuple[Failure, ...]:
    """Return the workers that failed on their own, the root cause first.

    Success does not count, nor does death without a record after the agent's request. If a signal ended the job, only
    failures before it count; workers may have received it up to SEEN_LATE_SECONDS earlier. A killed or crashed process
    did not die of others' exceptions, so its death comes first if it was at most SEEN_LATE_SECONDS before. The same
    holds for a lost host, which no worker causes and which the agent may notice late.
    """
    ended = tuple(ended)
    heard = [one for one in ended if received is not None and is_end_by(one.returncode, received)]
    if any(stopped_at - one.time <= SEEN_LATE_SECONDS for one in heard):
        stopped_at -= SEEN_LATE_SECONDS
    failed = [
        failure
        for failure in ended
        if failure.returncode != 0
        and (
            failure.time <= stopped_at
            or (received is None and not (failure.record is None and failure.returncode in _BY_REQUEST))
        )
    ]
    first = min((failure.time for failure in failed), default=0.0)

    def place(failure: Failure) -> tuple[bool, float, int]:
        is_cause = failure.returncode in _NEVER_A_CONSEQUENCE and failure.record is None
        is_cause = is_cause and failure.time <= first + SEEN_LATE_SECONDS
        is_lost = failure.record is not None and failure.record.type == HOST_LOST
        return not (is_cause or is_lost), failure.time, failure.worker

    return tuple(sorted(failed, key=place))


def when_it_ended(heard: float, *, stopped_at: float, was_seen: bool) -> float:
    """Return the time at which a worker has ended, as far as the agent knows.

    On a busy machine another worker's exception may arrive before the death that caused it. A worker that ended before
    the agent's first signal did not end by request, however late the agent learns of it.
    """
    return min(heard, stopped_at) if was_seen else heard


def is_end_by(returncode: int, number: int) -> bool:
    """Return whether a process has ended by this signal, directly or through Python's handler."""
    return returncode in (-number, 128 + number)


def how_it_ended(returncode: int) -> str:
    """Return "exit code 3", or the name of the signal."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "a signal"
    return f"killed by {name} (signal {-returncode})"


def format_report(failures: Sequence[Failure], *, workers: int, started: float, shown: bool = True) -> str:
    """Return the report that ends a failed run: the root cause with its traceback, then the failures that followed."""
    root, *later = failures
    ended = how_it_ended(root.returncode if root.record is None else root.exit_code)
    alone = workers == 1
    name = "the script" if alone and shown else root.name or f"worker {root.worker} of {workers}"
    place = f"{name} failed{'' if alone else ' first'}"
    lines = [f"{place}, {root.time - started:.1f} s after the start: {ended}"]
    if root.record is None:
        lines.append(f"  {_advice(root.returncode)}")
    elif not (alone and shown) or root.record.type == HOST_LOST:  # which the worker has not written
        lines.append(textwrap.indent(root.record.traceback.rstrip("\n"), "  "))
    lines += [
        f"  {max(one.time - root.time, 0.0):.1f} s later {one.name or f'worker {one.worker}'}: {in_short(one)}"
        for one in later
    ]
    return "\n".join(lines)


def in_short(failure: Failure) -> str:
    """Return a worker's failure as one line."""
    if failure.record is None:
        return how_it_ended(failure.returncode)
    kind = f"{failure.record.type}: "
    said = cause_of(failure.record.message) if failure.record.message.strip() else ""
    return textwrap.shorten(kind + said.removeprefix(kind), 160, placeholder=" ...")


def _advice(returncode: int) -> str:
    if returncode == -signal.SIGKILL:
        return (
            "SIGKILL cannot be caught. The kernel sends it when memory runs out: look at `dmesg`, or use less memory."
        )
    if returncode in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL):
        return (
            "Native code crashed. To see the Python line: set PYTHONFAULTHANDLER=1 and run again. If "
            "TF_ENABLE_ONEDNN_OPTS=0 avoids it, a kernel of oneDNN crashed."
        )
    return "It left no traceback: look at its last lines of output above."
