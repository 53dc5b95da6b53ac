"""Tasks of a parameter-server cluster that a chief starts for itself on this host, for instance in notebooks."""

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping

from tfdist.cluster.cluster_values import TaskId
from tfdist.errors import TfdistError
from tfdist.jobs.placement.local_placement import free_addresses
from tfdist.jobs.plan.job_plan import task_command, tf_config
from tfdist.jobs.plan.worker_spec import around_the_proxy

# A worker that ends again and again would end for ever.
_REVIVALS = 3
_LINES = 20


class LocalTasks:
    """The worker and parameter-server processes on this host, which end with this process."""

    def __init__(self, *, workers: int, servers: int) -> None:
        free = free_addresses(1 + workers + servers)
        addresses = [f"{host}:{port}" for host, port in free]
        self._hosts = [host for host, _ in free]
        #: "host:port" of every task, by task type
        self.cluster: dict[str, list[str]] = {
            "chief": addresses[:1],
            "worker": addresses[1 : 1 + workers],
            "ps": addresses[1 + workers :],
        }
        self._processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._revivals = 0
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - the processes write to it as long as they live
        self._ended = False
        self._lock = threading.Lock()  # an ended cluster starts no process, whichever thread revives one
        try:
            for job in ("ps", "worker"):
                for index in range(len(self.cluster[job])):
                    self._start(job, index)
        except BaseException:
            self.end()
            raise
        if not sys.platform.startswith("linux"):
            atexit.register(self.end)  # on Linux the kernel ends them, after TensorFlow has disconnected

    def pid(self, job: str, index: int) -> int:
        return self._processes[job, index].pid

    def ended(self) -> list[str]:
        return [f"{job} {index}" for (job, index), process in self._processes.items() if process.poll() is not None]

    def revive(self, job: str, index: int) -> None:
        """Start an ended task again, a few times at most."""
        with self._lock:
            if self._ended or self._processes[job, index].poll() is None or self._revivals >= _REVIVALS:
                return
            self._revivals += 1
            self._start(job, index)

    def printed(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 8192))
        return "\n".join(self._log.read().decode(errors="backslashreplace").splitlines()[-_LINES:])

    def require_running(self) -> None:
        gone = self.ended()
        if gone:
            raise TfdistError(f"{', '.join(gone)} ended when it was started. The tasks printed:\n{self.printed()}")

    def end(self) -> None:
        with self._lock:
            self._ended = True
        atexit.unregister(self.end)
        for process in self._processes.values():
            process.kill()
        deadline = time.monotonic() + 10
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
                process.wait(max(0.1, deadline - time.monotonic()))
        self._log.close()

    def _start(self, job: str, index: int) -> None:
        environment: Mapping[str, str] = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **os.environ,
            **around_the_proxy(os.environ, self._hosts),
            "TF_CONFIG": tf_config(self.cluster, TaskId(type=job, index=index)),
        }
        self._processes[job, index] = subprocess.Popen(
            task_command(python=sys.executable, agent_pid=os.getpid()),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C in a terminal is for the chief, which ends its tasks in order
        )
