"""Run the programs of a build: each line goes to the log and to the progress display; nothing outlives the build.

A program and all that it starts end when the build is interrupted, when the deadline passes, and when this process is
killed: then the guardian of the build ends them.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tfdist.errors import DeadlineError, TfdistError
from tfdist.processes import guardian
from tfdist.processes.job_resources import Guard
from tfdist.variables import JOB_ID

_GRACE_SECONDS = 3.0


class ProgramError(TfdistError):
    """A program of the build ended with another code than 0."""


@dataclass(frozen=True, kw_only=True)
class Runner:
    """A runner of the programs of one build, with their common guard and log.

    Attributes:
        guard: the temporary folder of the build, and who cleans up after this process if it is killed.
        log: where every line goes.
    """

    guard: Guard
    log: TextIO

    def run(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        cwd: Path,
        timeout_seconds: float,
        on_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Run a program to its end."""
        self.log.write(f"$ {shlex.join(command).splitlines()[0]}\n")
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environ, JOB_ID.name: self.guard.job_id},
                cwd=cwd,
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self.log.write(f"{error}\n")
            raise ProgramError(f"{command[0]} cannot be started ({error.strerror})") from error
        passed = threading.Event()
        with self._ended_afterwards(process), self._timer(timeout_seconds, process.pid, passed):
            self.guard.watch(process.pid)
            assert process.stdout is not None
            for line in process.stdout:
                self.log.write(line)
                self.log.flush()
                on_line(line.rstrip("\n"))
            code = process.wait()
        if passed.is_set():
            self.log.write(f"killed: the deadline of {timeout_seconds:g} s passed\n")
            raise DeadlineError(f"{Path(command[0]).name} did not end within {timeout_seconds:g} s")
        if code:
            raise ProgramError(f"{Path(command[0]).name} ended with code {code}")

    @contextlib.contextmanager
    def _ended_afterwards(self, process: "subprocess.Popen[str]") -> Iterator[None]:
        try:
            yield
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGTERM)  # make removes what is half written
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_GRACE_SECONDS)
                guardian.end_job(self.guard.job_id, sessions=[process.pid])
                process.wait(timeout=guardian.DEADLINE_SECONDS)
            if process.stdout is not None:
                process.stdout.close()

    @contextlib.contextmanager
    def _timer(self, seconds: float, session: int, passed: threading.Event) -> Iterator[None]:
        """Kill a program and all that it started, also in sessions of their own, whose output is waited for."""

        def kill() -> None:
            passed.set()
            guardian.end_job(self.guard.job_id, sessions=[session])

        timer = threading.Timer(seconds, kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
