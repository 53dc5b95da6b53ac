"""Processes that have TensorFlow already: forks of one that has imported it, a tenth of a second each instead of four.

A script runs in a fork as `python SCRIPT ARGUMENTS` would. So does `tfdist`: the workers of a job are forks from their
first start on, as are those of pools, and no process imports TensorFlow again.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import tfdist
from tests.integration.light import python_path
from tfdist.processes.fork_server import ForkServer
from tfdist.processes.pool import forked_workers, task_pool, task_worker, worker_pool

ROOT = Path(__file__).parents[2]
ENTRY = str(Path(__file__).with_name("forked.py"))
DEADLINE_SECONDS = 800  # after which a fork is killed, for a machine that does other things
READY_SECONDS = 600
# In the environment of a fork: TensorFlow optimizes graphs, as it does for users. In others they run as they were
# traced: to optimize them takes an eighth of a training of a few steps, and changes numbers in their last bits alone.
# The matrix trains rows under every strategy with it, and the recipes run with it. To leave oneDNN out too would save a
# little more, but convolutions cost twice as much without it, and TensorFlow does not count memory.
OPTIMIZED = "TESTS_OPTIMIZE_GRAPHS"
# In the environment of a fork: Python ends as it does for users, and frees every object.
TAKEN_APART = "TESTS_TAKE_ALL_APART"
# In the environment of a job that begins when its standard input ends: who starts it may set limits before.
HELD = "TESTS_HELD"
# A command of a fork: be a kernel of Jupyter.
KERNEL = "kernel"
# A command of a fork: import modules, and fork from then on.
SERVER = "server"
# A command of a fork: run as a process of a task pool.
TASKS = "task worker"
MODULES = (
    *tfdist.PRELOADED,
    "tfdist.strategies.mirrored",
    "tfdist.data.reading.reader",
    "tfdist.data.writing.dataset_writer",
    "tfdist.optimizers",
    "tfdist.jobs.agent.run_job",
    "tfdist.cli.run_command",
    # what processes import later otherwise, each for itself
    "tfdist.cli.chaos_command",
    "tfdist.cli.main",
    "tfdist.compression.registry",
    "tfdist.data.sources.array_source",
    "tfdist.data.writing.foreign_tfrecords",
    "tfdist.optimizers.distributed_optimizer",
    "tfdist.strategies.pipeline_strategy",
)
# They change how TensorFlow traces and finds kernels, in all forks, the first of them before TensorFlow is imported;
# `make test-unpatched` sets the variable and leaves them out.
_OMITTED = ("searches", "protocols", "names", "lookups", "constants", "slices", "gathers", "cuts", "rewrites", "stacks")
PATCHES = tuple(f"tests.integration.without_{what}" for what in _OMITTED)
UNPATCHED = "TESTS_UNPATCHED"


@dataclass
class Fork:
    """A process that runs, with what `subprocess.Popen` has for it."""

    pid: int
    folder: Path | None = None
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it has ended, as `returncode` does; None if it has not."""
        try:
            if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
                self.returncode = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:  # it was waited for elsewhere, so how it has ended is not known
            self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float = DEADLINE_SECONDS) -> int:
        """Wait until it has ended."""
        if self.poll() is None:
            with contextlib.closing(_Process(self.pid)) as process:
                select.select([process], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout, *self._streams())
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = DEADLINE_SECONDS) -> tuple[bytes, bytes]:
        """Wait until it has ended; return what it wrote."""
        self.wait(timeout)
        return self._streams()

    @property
    def written(self) -> str:
        """The output so far."""
        return b"".join(self._streams()).decode(errors="replace")

    def _streams(self) -> tuple[bytes, bytes]:
        if self.folder is None:
            return b"", b""
        return (self.folder / "out").read_bytes(), (self.folder / "err").read_bytes()

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, if it has not ended."""
        self.send_signal(signal.SIGKILL)


@dataclass
class Heard(Fork):
    """A process whose output, errors among it, a test reads line by line while it runs."""

    stdout: IO[str] | None = None

    def communicate(self, timeout: float = DEADLINE_SECONDS) -> tuple[str, None]:  # type: ignore[override]
        """Read what is left of its output, and wait until it has ended."""
        left = ""
        if self.stdout is not None and not self.stdout.closed:
            with self.stdout:
                left = self.stdout.read()
        self.wait(timeout)
        return left, None


class _Process:
    """A descriptor that can be read when the process has ended."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass
class Forks:
    """Forks processes.

    Attributes:
        server: has imported TensorFlow.
        environment: what every fork has.
        folder: where forks run, if nothing else is said, and what they write is kept.
        output: what the last script wrote that `run` has run.
    """

    server: ForkServer
    environment: Mapping[str, str]
    folder: Path
    output: str = ""
    _count: int = field(default=0, repr=False)

    @contextlib.contextmanager
    def start(self, *command: str, cwd: Path | None = None, **environment: str) -> Iterator[Fork]:
        """Run "tfdist", a script, or "chief" and a script that starts the tasks of its cluster itself, with arguments.

        Or `KERNEL`, with arguments of ipykernel. After the block it has ended.
        """
        self._count += 1
        kept = self.folder / str(self._count)
        kept.mkdir()
        argv = ["python", ENTRY, str(cwd or self.folder), str(DEADLINE_SECONDS), *command]
        with open(os.devnull) as given, open(kept / "out", "wb") as out, open(kept / "err", "wb") as err:
            streams = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
            process = Fork(self.server.spawn(argv, {**self.environment, **environment}, **streams), kept)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # an agent ends its workers
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
                process.kill()
                process.wait()

    def heard(self, *command: str, cwd: Path, **environment: str) -> Heard:
        """Start what `start` starts; the test ends it, and hears what it writes."""
        argv = ["python", ENTRY, str(cwd), str(DEADLINE_SECONDS), *command]
        ours, theirs = os.pipe()
        with open(os.devnull) as given, open(theirs, "wb") as out:
            streams = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": out.fileno()}
            pid = self.server.spawn(argv, {**self.environment, **environment}, **streams)
        return Heard(pid, stdout=open(ours))

    def worker(self, environment: Mapping[str, str], requests: int, replies: int, log: IO[bytes]) -> Fork:
        """Start a worker of a pool: `WorkerPool(environments, start=forks.worker)`."""
        argv = ["python", ENTRY, os.getcwd(), "0", "pool worker"]
        return Fork(self.server.spawn(argv, environment, stdin=requests, stdout=log.fileno(), stderr=replies))

    @contextlib.contextmanager
    def for_pools(self) -> Iterator[None]:
        """Let every pool of this process fork its workers in the block, from several threads too."""
        own, lock = worker_pool.started, threading.Lock()
        others = forked_workers.forked_workers  # which would import TensorFlow once more

        def started(*arguments: Any) -> Fork:
            with lock:
                return self.worker(*arguments)

        worker_pool.started = started  # type: ignore[assignment]
        forked_workers.forked_workers = lambda *_: contextlib.nullcontext()  # type: ignore[assignment]
        try:
            yield
        finally:
            worker_pool.started, forked_workers.forked_workers = own, others

    @contextlib.contextmanager
    def for_task_pools(self) -> Iterator[None]:
        """Let every task pool of this process fork its processes inside the block."""
        of_the_module = vars(task_pool)
        own, of_the_module["subprocess"] = of_the_module["subprocess"], TaskProcesses(self.server)
        try:
            yield
        finally:
            of_the_module["subprocess"] = own

    @contextlib.contextmanager
    def with_more(self, *modules: str) -> Iterator["Forks"]:
        """Yield a server whose forks have imported these modules too, also modules that `light` leaves out."""
        folder = self.folder / "more"
        folder.mkdir()
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b") as nothing:
            streams = {"stdin": theirs.fileno(), "stdout": nothing.fileno(), "stderr": nothing.fileno()}
            pid = self.server.spawn(["python", ENTRY, str(folder), "0", SERVER, *modules], self.environment, **streams)
        with contextlib.closing(ForkServer(process=Fork(pid), channel=ours)) as server:  # type: ignore[arg-type]
            wait_for(server)
            yield Forks(server, self.environment, folder)

    def run(self, *script: str, **environment: str) -> int:
        """Run a script to its end; return its exit code, negative for a signal. What it wrote is in `output`."""
        with self.start(*script, **environment) as process:
            process.wait()
        self.output = process.written
        assert process.returncode is not None
        return process.returncode


class TaskProcesses:
    """The part of `subprocess` that task pools need. It forks their processes, whose standard input is the connection.

    These processes optimize graphs, like the process of the pool.
    """

    DEVNULL = subprocess.DEVNULL

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def Popen(self, command: list[str], *, env: Mapping[str, str], pass_fds: list[int], **_: object) -> Fork:  # noqa: N802
        assert command[2] == task_worker.__name__, command
        (connection,) = pass_fds
        argv = [sys.executable, ENTRY, os.getcwd(), "0", TASKS]
        return Fork(self._server.spawn(argv, {**env, OPTIMIZED: "1"}, stdin=connection, stdout=1, stderr=2))


class Job(Fork):
    """A job, with what those need of it that start one; it begins when it is first waited for."""

    begins: int = -1  # what it waits for the end of

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def poll(self) -> int | None:
        if self.begins >= 0:
            os.close(self.begins)
            self.begins = -1
        return super().poll()

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Jobs:
    """The part of `subprocess` that `tfdist chaos`, `tfdist tune` and the benchmark of recoveries need for jobs."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def Popen(  # noqa: N802
        self,
        command: list[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: int | IO[bytes] = 1,
        stderr: int | IO[bytes] = 2,
        **_: object,
    ) -> Job:
        assert command[:4] == [sys.executable, "-m", "tfdist", "run"], command
        argv = [sys.executable, ENTRY, str(cwd or os.getcwd()), "0", *command[2:]]
        out, err = (one if isinstance(one, int) else one.fileno() for one in (stdout, stderr))
        given, begins = os.pipe()
        try:
            job = Job(self._server.spawn(argv, {**env, HELD: "1"}, stdin=given, stdout=out, stderr=err))
        finally:
            os.close(given)
        job.begins = begins
        return job


@contextlib.contextmanager
def forks(folder: Path, environment: Mapping[str, str]) -> Iterator[Forks]:
    """Yield a process that forks; it is ended after the block.

    Args:
        folder: where the forks run; what they write is kept there.
        environment: of all forks, and of the process while it imports.
    """
    complete = {**environment, "PYTHONPATH": python_path(ROOT)}
    patches = () if UNPATCHED in environment else PATCHES
    with contextlib.closing(ForkServer.start(complete, folder=ROOT, modules=(*patches, *MODULES))) as server:
        wait_for(server)
        yield Forks(server, complete, folder)


def wait_for(server: ForkServer) -> None:
    """Wait until a server has imported everything."""
    deadline = time.monotonic() + READY_SECONDS
    while not server.wait(1.0):
        assert server.process.poll() is None, "the process that forks has ended"
        assert time.monotonic() < deadline, "its modules are not imported"
