"""A process that waits until the agent is gone; if it died without a word, it ends the job and removes its files.

    python guardian.py JOB_ID [files and directories ...]

The agent holds the other end of standard input. It writes a line with the number of each worker's session, one with the
negative number when nothing is left of that session, and "done" when everything is in order; the end of input without
it means that the agent was killed. The job's processes, children and grandchildren, are recognised by their session, or
in another session by TFDIST_JOB_ID in their environment.
"""

import contextlib
import shutil
import sys
import time
from collections.abc import Collection, Sequence

DEADLINE_SECONDS = 30.0
DONE = b"done"


def main(job_id: str, *paths: str) -> None:
    """Wait for the end of standard input, then clean up unless it said that this is not needed."""
    said = sys.stdin.buffer.read().split()
    if DONE in said:
        return
    end_job(job_id, sessions=sessions_left([int(word) for word in said]))
    for path in paths:
        remove(path)


def sessions_left(said: Sequence[int]) -> set[int]:
    """Return the sessions that the agent has named and not taken back.

    Example:
        >>> sessions_left([41, 42, -41])
        {42}
    """
    left: set[int] = set()
    for number in said:
        if number > 0:
            left.add(number)
        else:
            left.discard(-number)
    return left


def end_job(job_id: str, *, sessions: Collection[int]) -> None:
    """Kill every process of the job, until none is left or the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := members(job_id, sessions=sessions)) and time.monotonic() < deadline:
        for pid in found:
            kill(pid)
        time.sleep(0.02)


def members(job_id: str, *, sessions: Collection[int]) -> list[int]:
    """Return the processes, other than this one, that are in one of the sessions or have the job's id.

    Example:
        >>> members("a job that nobody started", sessions=[])
        []
    """
    import os

    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and (os.getsid(process.pid) in sessions or process.environ().get("TFDIST_JOB_ID") == job_id):
                found.append(process.pid)
    return found


def remove(path: str) -> None:
    """Remove a file, or a directory with all that is in it; what is not there is no error."""
    import os

    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)


def kill(pid: int) -> None:
    """Kill one process; one that ended meanwhile is no error."""
    import os
    import signal

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
