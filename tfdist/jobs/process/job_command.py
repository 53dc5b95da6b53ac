"""The running of a `tfdist run` by another command, such as a trial of a batch, to its end or to a deadline."""

import contextlib
import resource
import subprocess
from collections.abc import Mapping, Sequence

from tfdist.waiting import end_process


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: int,
    *,
    seconds: float,
    grace_seconds: float,
    memory_limit: int | None = None,
) -> int | None:
    """Run a command to its end; return its exit code as a shell shows it, or None after the deadline.

    The command has ended when this returns. ``memory_limit`` is the limit in bytes on the data (heap, stacks, private
    memory) of each of its processes.
    """
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        if memory_limit is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (memory_limit, memory_limit))
        code = process.wait(timeout=seconds)
        return code if code >= 0 else 128 - code
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.terminate()  # no effect on an ended process; `tfdist run` ends its workers
        end_process(process, grace_seconds)
