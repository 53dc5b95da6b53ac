"""Jobs of the same script, on one host and elsewhere, whose results are compared."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.soak.machines import LAUNCHER, Machines

ROOT = Path(__file__).parents[2]
RESUMABLE = ROOT / "tests" / "integration" / "cases" / "resumable.py"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "TF_NUM_INTRAOP_THREADS": "1"}
RUN = (sys.executable, "-m", "tfdist", "run")
SECONDS = 500.0


@contextlib.contextmanager
def started(command: Sequence[str], *, cwd: Path, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a command, whose output and errors are one stream; it ends with the block."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT), **variables},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(process: "subprocess.Popen[str]", code: int) -> str:
    """Wait for the end of a command, with this exit code; return what it has written."""
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code, (process.returncode, out[-6000:])
    return out


class Trial:
    """Runs jobs, and keeps what came of them.

    Args:
        folder: in which they run.
        found: machines, in whose launcher's network they do.
    """

    def __init__(self, folder: Path, found: Machines | None = None) -> None:
        self.folder = folder
        self.count = 0
        self._machines = found

    @contextlib.contextmanager
    def started(self, *arguments: object, **variables: str) -> Iterator["subprocess.Popen[str]"]:
        """Start a job, which ends with the block."""
        command = [*RUN, *map(str, arguments)]
        if self._machines is not None:
            command = self._machines.inside(LAUNCHER, command)
            variables = {**self._machines.variables, **variables}
        with started(command, cwd=self.folder, **variables) as process:
            yield process

    def run(self, *arguments: object, code: int = 0, **variables: str) -> str:
        """Run a job to its end; return what it has written."""
        with self.started(*arguments, **variables) as process:
            return ended(process, code)

    def trained(
        self, *options: object, before: tuple[object, ...] = (), **variables: str
    ) -> tuple[str, list[dict[str, Any]]]:
        """Train; return all that must be equal to the bit, and the events.

        Args:
            options: of `tfdist run`.
            before: words before those of the script.
            variables: of the environment.
        """
        self.count += 1
        result, events = self.folder / f"result{self.count}", self.folder / f"events{self.count}"
        script = (*before, RESUMABLE, result, self.folder / f"backup{self.count}", "tfdist", "1")
        self.run("--event-file", events, *options, *script, **variables)
        return result.read_text(), [json.loads(line) for line in events.read_text().splitlines()]


def wait_until(test: Callable[[], object], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.05)
