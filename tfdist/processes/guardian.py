"""A process that waits for the end of the agent; if the agent was killed, it ends the job and removes its files.

`python guardian.py JOB_ID [files and directories ...]`. The agent holds the other end of standard input. It writes a
worker's session, the negative number once nothing of that session is left, and "done" when everything is in order. The
job's processes are found by session, or by TFDIST_JOB_ID or TFDIST_JOB_PART in their environment. Signals that ask a
job to end are ignored: service managers send them to every process.
"""

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Collection, Sequence

from tfdist.processes import process_table
from tfdist.variables import JOB_ID, JOB_PART

DEADLINE_SECONDS = 30.0
DONE = b"done"
LISTING, GENERATED = ".generated", "__autograph_generated_file"  # as `worker` has them


def main(job_id: str, *paths: str) -> None:
    """Wait for the end of standard input; clean up unless it said "done"."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    said = sys.stdin.buffer.read().split()
    if DONE in said:
        return
    end_job(job_id, sessions=sessions_left([int(word) for word in said]))
    for path in paths:
        remove(path)


def sessions_left(said: Sequence[int]) -> set[int]:
    """Return the sessions that the agent has named and not taken back."""
    left: set[int] = set()
    for number in said:
        if number > 0:
            left.add(number)
        else:
            left.discard(-number)
    return left


def end_job(job_id: str, *, sessions: Collection[int], but: Collection[int] = ()) -> None:
    """Kill every process of the job until none is left, or the deadline has passed; `members` explains ``but``."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := members(job_id, sessions=sessions, but=but)) and time.monotonic() < deadline:
        for pid in found:
            kill(pid)
        time.sleep(0.02)


def members(job_id: str, *, sessions: Collection[int], but: Collection[int] = ()) -> list[int]:
    """Return the processes in one of the sessions or with the job's id, except this one.

    Of those with the id, ``but`` and their descendants are spared.
    """
    import os

    own, found = os.getpid(), list(process_table.processes())
    spared, more = set[int](), set(but)
    while more:
        spared |= more
        more = {one.pid for one in found if one.parent in more} - spared

    def is_member(one: process_table.Process) -> bool:
        return one.session in sessions or (one.pid not in spared and _has_id(one.pid, job_id))

    return [one.pid for one in found if one.pid != own and not one.is_zombie and is_member(one)]


def _has_id(pid: int, job_id: str) -> bool:
    """Return whether a process belongs to the job, or to the part of a job on this host."""
    environ = process_table.environment(pid)
    return job_id in (JOB_ID.read(environ), JOB_PART.read(environ))


def remove(path: str) -> None:
    """Remove a file, or a folder after the files listed in it; missing ones are no error."""
    import glob
    import os

    for listing in glob.glob(os.path.join(glob.escape(path), f"*{LISTING}")):
        remove_listed(listing)
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)


def remove_listed(listing: str) -> None:
    """Remove AutoGraph's files that a worker has listed, their compiled forms, and the list."""
    import importlib.util
    import os

    with contextlib.suppress(OSError), open(listing, "rb") as file:
        for path in map(os.fsdecode, file.read().split(b"\0")):
            if os.path.basename(path).startswith(GENERATED):
                compiled = importlib.util.cache_from_source(path)
                for one in (path, compiled):
                    with contextlib.suppress(OSError):
                        os.unlink(one)
                with contextlib.suppress(OSError):  # others are in it
                    os.rmdir(os.path.dirname(compiled))
    with contextlib.suppress(OSError):
        os.unlink(listing)


def kill(pid: int) -> None:
    """Kill a process; do nothing if it has ended."""
    import os

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
