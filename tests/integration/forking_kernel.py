"""What a kernel of the tests runs at its start: workers of its jobs and pools are then forks, as those of tests are.

How a notebook starts them otherwise is what `test_notebook.py` looks at.
"""

import functools
import os
import threading
from pathlib import Path
from typing import Any

from tests.integration.forks import MODULES, READY_SECONDS, ROOT, Fork, Forks
from tests.integration.light import python_path
from tfdist.launch.agent import run
from tfdist.launch.placement.fork_server import ForkServer
from tfdist.launch.placement.worker_factory import WorkerFactory
from tfdist.launch.pool import pool

STARTUP = "from tests.integration.forking_kernel import fork_workers\n\nfork_workers()\ndel fork_workers\n"


def install(ipython: Path) -> None:
    """Have every kernel with this IPYTHONDIR fork its workers."""
    folder = ipython / "profile_default" / "startup"
    folder.mkdir(parents=True)
    (folder / "fork_workers.py").write_text(STARTUP)


@functools.cache
def server() -> ForkServer:
    """Return the process that forks, which imports TensorFlow when the first worker is needed."""
    found = ForkServer.start({**os.environ, "PYTHONPATH": python_path(ROOT)}, folder=ROOT, modules=MODULES)
    assert found.wait(READY_SECONDS), "TensorFlow is not imported"
    return found


class Prepared(WorkerFactory):
    """Forks the workers of a job from the first start on; what forks them serves the next job too."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._server, self._tried = server(), True
        self._watch()

    def close(self) -> None:
        for pid in server().pids:
            self._guard.forget(pid)
        self._server = None


def fork_workers() -> None:
    """Fork all workers that this process starts from now on."""
    run.WorkerFactory = Prepared  # type: ignore[misc]
    lock = threading.Lock()  # several threads may have pools

    def started(*given: Any) -> Fork:
        with lock:
            return Forks(server(), {}, Path()).worker(*given)

    pool.started = started  # type: ignore[assignment]
