"""Programs in child processes with a deadline that holds even if a driver or a resolver hangs."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_AFTER_KILL_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a program; `code` is None if it could not be started or ran into the deadline."""

    code: int | None
    output: str = ""
    errors: str = ""


def run(command: Sequence[str], *, timeout_seconds: float, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run a program; at the deadline kill it and all processes that it started."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environ is None else dict(environ),
            start_new_session=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return Outcome(code=None, errors=f"{command[0]} could not be started: {error}")
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
        return Outcome(code=process.returncode, output=output.strip(), errors=errors.strip())
    except subprocess.TimeoutExpired:
        return Outcome(code=None, errors=f"{command[0]} did not end within {timeout_seconds:g} s")
    finally:
        _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=_AFTER_KILL_SECONDS)
        except subprocess.TimeoutExpired:  # SIGKILL does not end a wait inside a driver; the kernel has to
            return
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
