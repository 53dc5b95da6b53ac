"""Restarts workers quickly by forking them from a process that has already imported TensorFlow.

It is prepared when workers with TensorFlow first step, with the variables that they have set. If it fails, workers are
started normally, which costs seconds.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.cluster.job_files import environment_file
from tfdist.errors import TfdistError
from tfdist.jobs.placement.local_placement import Child, Starter, started_anew
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.processes.job_resources import Guard
from tfdist.variables import JOB_ID

if TYPE_CHECKING:
    from tfdist.processes.fork_server import ForkServer

_PREPARE_SECONDS = 60.0  # within which TensorFlow is imported, or never
_LOOK_SECONDS = 0.05

_LIBRARY = b"_pywrap_tensorflow"


class WorkerFactory:
    def __init__(self, config: LaunchConfig, guard: Guard, anew: Starter = started_anew) -> None:
        self._config = config
        self._anew = anew
        self._guard = guard
        self._server: ForkServer | None = None
        self._tried = False

    def prepare(self, pid: int) -> None:
        if self._tried or not self._config.is_elastic or sys.platform != "linux":
            return
        maps = _maps(pid)
        self._tried = maps is not None  # else it has just died, and the next start may do
        if maps is None or _LIBRARY not in maps:
            return
        from tfdist.processes.fork_server import ForkServer  # most jobs need none

        environment = {name: value for name, value in os.environ.items() if name != JOB_ID.name}
        environment |= self._config.environment
        environment |= _published(environment_file(self._guard.directory))
        environment.pop("TF_CONFIG", None)
        target = self._config.target
        folder = os.getcwd() if self._config.is_module else os.path.dirname(os.path.realpath(target))
        with contextlib.suppress(TfdistError):
            self._server = ForkServer.start(environment, folder=folder)
            self._watch()

    def tend(self, workers: int) -> None:
        if self._server is None or len(self._server.idle) >= workers or not self._server.is_ready:
            return
        try:
            self._server.prepare(workers)
        except TfdistError:
            self.close()
        else:
            self._watch()

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait for what is being prepared: nothing else would be ready earlier."""
        deadline = time.monotonic() + _PREPARE_SECONDS
        while self._server is not None and not self._server.idle and not self._server.wait(_LOOK_SECONDS):
            if interrupted():
                return
            if time.monotonic() > deadline or self._server.process.poll() is not None:
                self.close()

    @property
    def waiting(self) -> int:
        return 0 if self._server is None else len(self._server.idle)

    def start(self, spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
        """Start a worker by a fork, or else anew."""
        with contextlib.suppress(TfdistError):
            return self.fork(spec, environment, streams)
        return self._anew(spec, environment, streams)

    def fork(self, spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
        if self._server is None or not (self._server.idle or self._server.is_ready):
            raise TfdistError("there is no process that workers can be forked from.")
        try:
            return forked(self._server, spec, environment, streams)
        except TfdistError:
            self.close()
            raise

    def close(self) -> None:
        if self._server is not None:
            pids = self._server.pids
            self._server.close()
            for pid in pids:
                self._guard.forget(pid)
            self._server = None

    def _watch(self) -> None:
        for pid in self._server.pids if self._server is not None else ():
            self._guard.watch(pid)


def forked(
    server: "ForkServer", spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]
) -> Child:
    stdin, stdout, stderr = streams
    pid = server.spawn(spec.argv, environment, stdin=stdin, stdout=stdout, stderr=stderr)
    return Child(pid=pid, collect=lambda seconds: _collect(pid, seconds))


def _maps(pid: int) -> bytes | None:
    """The files that a process has mapped; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/maps").read_bytes() or None  # of a process that ends it is empty
    except OSError:
        return None


def _published(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in content.items()} if isinstance(content, dict) else {}


def _collect(pid: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
