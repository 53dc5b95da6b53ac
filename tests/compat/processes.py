"""One process at a time, with a deadline, and what it prints in a file."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_ORDERLY_SECONDS = 20.0  # `tfdist verify` ends its workers when it is asked to end


def run(command: Sequence[str], log: Path, *, seconds: float, environment: Mapping[str, str] | None = None) -> int:
    """Run a command in the repository until it ends, and return its exit code; 124 after its deadline.

    Args:
        command: program and arguments.
        log: the file for what it prints.
        seconds: the deadline; what runs longer is ended, with all processes of its group.
        environment: this process' own by default.
    """
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that has reached its deadline, and all that it has started."""
    if process.poll() is not None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ORDERLY_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
