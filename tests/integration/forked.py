"""The first program of a fork of `forks`.

python forked.py FOLDER SECONDS COMMAND ...     in FOLDER, for so many seconds at most (0: for as long as it takes)
"""

import atexit
import contextlib
import functools
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO

from tests.integration.forks import (
    HELD,
    KERNEL,
    OPTIMIZED,
    PATCHES,
    SERVER,
    TAKEN_APART,
    TASKS,
    Fork,
    Forks,
    Jobs,
    wait_for,
)
from tests.integration.light import python_path
from tfdist.processes import forking
from tfdist.processes.fork_server import ForkServer
from tfdist.processes.pool import pool_worker, task_worker


class Child:
    """A forked child, with the part of `Popen` that the agent needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def poll(self) -> int | None:
        if not self._ended:
            with contextlib.suppress(ChildProcessError):
                self._ended = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return 0 if self._ended else None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout)
            time.sleep(0.01)


class Tasks:
    """The part of `subprocess` that a chief needs to start its own tasks; it forks them."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def Popen(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **_: object) -> Fork:  # noqa: N802
        with open(os.devnull) as given:
            log = stdout.fileno()
            return Fork(self._server.spawn(command, env, stdin=given.fileno(), stdout=log, stderr=log))


class Probes(Tasks):
    """The part of `subprocess` that `tfdist parallel plan` needs; it forks the probes."""

    def Popen(self, command: list[str], *, env: dict[str, str], stdout: IO[bytes], **_: object) -> Fork:  # noqa: N802
        python, _, module, *arguments = command  # python -m tfdist.tune.layer_probe ...
        file = importlib.import_module(module).__file__
        assert file is not None
        return super().Popen([python, __file__, os.getcwd(), "0", file, *arguments], env=env, stdout=stdout)


class Trials:
    """The part of `ForkServer` that `tfdist search` needs for trials that are no jobs."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def start(self, environment: Mapping[str, str], *, folder: str, modules: Sequence[str], ends: str) -> ForkServer:
        return self._server


def replace_subprocess(replacement: object, *modules: ModuleType) -> None:
    """Let modules start their processes otherwise; one that starts none any more would cost minutes, unseen."""
    for module in modules:
        assert hasattr(module, "subprocess"), f"{module.__name__} starts no process: what has taken that over?"
        vars(module)["subprocess"] = replacement


def forked_server(*, leads: bool = True) -> ForkServer | None:
    """Fork a server of forks for the processes that this one starts; return None in those.

    It leads a session, as do its forks, unless this process may be killed while another one forks, which then adopts
    them all: the guard of the tests takes the session of such an orphan for the sign that no test has started it.
    """
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        ours.close()
        if leads:
            os.setsid()
        else:
            vars(os)["setsid"] = lambda: None  # for what it forks
        forking.fork_workers(theirs)
        return None
    theirs.close()
    return ForkServer(process=Child(pid), channel=ours)  # type: ignore[arg-type]


def let_all_be_imported() -> None:
    """Undo here what `tests.integration.light` is for: who draws, or loads the digits, may."""
    sys.path[:] = [folder for folder in sys.path if folder not in python_path().split(os.pathsep)]


def is_patched() -> bool:
    """Tell whether the process that forks has imported the speed-ups, which its forks inherit."""
    return PATCHES[-1] in sys.modules


def leave_graphs_as_traced() -> None:
    """Let TensorFlow not optimize the graphs of this process and of its forks; no operation is run for it."""
    if not is_patched():
        return
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@contextlib.contextmanager
def with_workers_in_forks(server: ForkServer) -> Iterator[None]:
    """Let this server fork the workers of all jobs and pools of this process."""
    from tfdist.jobs.agent import run_job as run
    from tfdist.jobs.placement.worker_factory import WorkerFactory

    class Prepared(WorkerFactory):
        """Has the process that forks before the first start, not before the second, and for jobs without restarts."""

        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            wait_for(server)  # a worker that is started anew, since it is not ready yet, is no fork
            self._server, self._tried = server, True
            self._watch()

        def close(self) -> None:
            """Leave the server to the next job."""
            for pid in server.pids:
                self._guard.forget(pid)
            self._server = None

    run.WorkerFactory = Prepared  # type: ignore[misc]
    try:
        with Forks(server, {}, Path()).for_pools():
            yield
    finally:
        server.close()


def fork_with(modules: list[str]) -> None:
    """Import modules, and fork what is asked for over standard input; return in what is forked."""
    let_all_be_imported()
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # as `forking` does
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    forking.fork_workers(channel)


def run_kernel(arguments: list[str]) -> None:
    """Be a kernel of Jupyter, to be found by these arguments; it may draw and load the digits, its workers need not."""
    let_all_be_imported()
    if (server := forked_server()) is None:
        return
    from ipykernel import kernelapp

    if "matplotlib" in sys.modules:  # which would have taken it from the environment, had it been imported here
        sys.modules["matplotlib"].rcParams["backend"] = "module://matplotlib_inline.backend_inline"

    sys.argv = ["ipykernel_launcher", *arguments]
    with with_workers_in_forks(server):
        kernelapp.launch_new_instance()


def measure_shortly() -> None:
    """Let a calibration measure for a tenth of the time, here and in forks; no test needs its precision."""
    from tfdist.tune import calibrating

    for name in ("_LINK_SECONDS", "_ENOUGH_SECONDS"):
        vars(calibrating)[name] /= 10


def run_tfdist(arguments: list[str]) -> None:
    """Run `tfdist` with these arguments; all workers that it starts are forked from a fork of this process."""
    from tfdist.cli.main import main

    if os.environ.pop(HELD, ""):
        os.read(0, 1)  # who has started this sets limits first, which are those of all that is forked from here
    let_all_be_imported()  # the recipes draw, and load the digits
    if arguments[:2] == ["plan", "calibrate"]:
        measure_shortly()
    if (server := forked_server()) is None:
        return

    if arguments[0] in ("chaos", "tune", "verify"):  # which start `tfdist run`
        from tfdist.cli import chaos_command
        from tfdist.jobs.process import job_command

        replace_subprocess(Jobs(server), chaos_command, job_command)
    if arguments[0] == "search":
        from tfdist.tune.search import trial_slots

        vars(trial_slots)["ForkServer"] = Trials(server)
    if "plan" in arguments[:2]:  # `plan` and `parallel plan` profile a script in processes
        from tfdist.tune import profiling

        replace_subprocess(Probes(server), profiling)

    with with_workers_in_forks(server):
        main(arguments, prog_name="tfdist")


def work_for_a_pool() -> None:
    """Be a worker of a pool, whose requests come from standard input, and whose replies go where errors would."""
    if is_patched():
        import tests.integration.built_first  # noqa: F401

    requests, replies = os.dup(0), os.dup(2)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(1, 2)
    folders = os.environ["PYTHONPATH"].split(os.pathsep)
    let_all_be_imported()  # unless its environment says otherwise
    # what a strategy is compared with has graphs as they were traced: so it is seen that to optimize changes no number
    if not (os.environ.pop(OPTIMIZED, "") and "TFDIST_STRATEGY" in os.environ):
        leave_graphs_as_traced()
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    sys.argv = ["worker", str(requests), str(replies)]
    if os.environ.get("TFDIST_STRATEGY", "parameter-server") != "parameter-server":
        pool_worker.main()
        return
    with_tasks_in_forks(pool_worker.main)


def work_for_a_task_pool() -> None:
    """Run as a process of a task pool, whose connection is standard input."""
    let_all_be_imported()
    connection = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.argv = ["task worker", str(connection)]
    task_worker.main()


def with_tasks_in_forks(run: Callable[[], None]) -> None:
    """Run something whose chief starts its own tasks."""
    from tfdist.jobs.placement import local_tasks

    if (server := forked_server(leads=False)) is None:
        return
    replace_subprocess(Tasks(server), local_tasks)
    try:
        run()
    finally:
        server.close()


def enter(folder: str, seconds: str, command: list[str]) -> None:
    os.chdir(folder)
    signal.alarm(int(seconds))
    if is_patched():
        gc.set_threshold(10_000, 10, 10)  # else Python looks for garbage after each 700 objects
    if command[0] not in ("pool worker", SERVER) and not os.environ.pop(OPTIMIZED, ""):
        leave_graphs_as_traced()
    if command[0] == "tfdist":
        run_tfdist(command[1:])
    elif command[0] == SERVER:
        fork_with(command[1:])
    elif command[0] == KERNEL:
        run_kernel(command[1:])
    elif command[0] == "pool worker":
        work_for_a_pool()
    elif command[0] == TASKS:
        work_for_a_task_pool()
    elif command[0] == "chief":  # a script that starts the tasks of its cluster itself, and may draw
        let_all_be_imported()
        with_tasks_in_forks(functools.partial(forking.become, command[1:]))
    else:
        forking.become(command)


@contextlib.contextmanager
def without_taking_all_apart() -> Iterator[None]:
    """End the process after the block as Python does, but leave its objects where they are.

    To take them apart copies every page that is shared with the process that forks: a fifth of a second, as much as a
    short training. What has failed is left to Python, and so are the forks of the block's process and what asks for it.
    """
    try:
        yield
        code: object = None
    except SystemExit as end:
        code = end.code
    if TAKEN_APART in os.environ:
        atexit.unregister(gc.freeze)  # which `light.starting` has registered
        sys.exit(code)  # type: ignore[arg-type]
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    with without_taking_all_apart():
        enter(sys.argv[1], sys.argv[2], sys.argv[3:])
