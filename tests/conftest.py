"""Every test starts in an empty directory and leaves nothing behind; one that does fails, and what it left is named.

Watched: environment variables, the working directory and files in it, signal handlers, threads, processes (children,
and orphans of children, recognized by a variable that they inherit) and ports on which this process listens. What can
be put back is, so that the next test starts clean. What a fixture of a wider scope holds was there before the test and
is not its leak; it is looked at when the session ends.
"""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from tests.integration import light
from tests.integration.forks import UNPATCHED
from tests.readme import INTEGRATION, MARKS, Marks
from tfdist.variables import TRIALS

pytest_plugins = ["pytester", "tests.cpu_seconds"]

UNIT = Path(__file__).parent / "unit"
# what takes longest comes first, so that no process is left with it when the others have nothing to do any more
LONGEST = (
    "test_training_pipeline.py",
    "test_training_model_parallel.py",
    "test_training_multi_worker.py",
    "test_matrix_devices.py",
    "test_data_strategies.py",
    "test_sharded.py",
    "test_matrix.py",
    "test_benchmarks.py",
    "test_run_ray_autoscaler.py",
    "test_recipes.py",
    "test_synchronization.py",
    "test_recipes_applied.py",
    "test_training_mirrored.py",
    "test_run_recovers.py",
    "test_notebooks.py",
    "test_matrix_numbers.py",
    "test_training_ring.py",
    "test_sharded_weights.py",
    "test_training_parameter_server.py",
    "test_matrix_ring.py",
    "test_collectives.py",
    "test_matrix_workers.py",
    "test_training_whole_batch.py",
    "test_privacy.py",
    "test_federated.py",
    "test_search.py",
    "test_docs_site.py",
    "test_build.py",
    "test_training_pipeline_cuts.py",
    "test_backup_and_restore.py",
    "test_backup_cases.py",
    "test_run_kubernetes.py",
    "test_bench.py",
    "test_compression.py",
    "test_native_collectives.py",
    "test_unfinished_inputs.py",
    "test_data_reader.py",
    "test_verify_script.py",
    "test_compression_kernels.py",
    "test_federated_commands.py",
    "test_docker_compose.py",
    "test_data_pictures.py",
    "test_run_lingering.py",
    "test_parsing.py",
    "test_run_restarts.py",
    "test_plan_command.py",
    "test_kept_verdicts.py",
    "test_run_hosts_training.py",
    "test_parallel_partition.py",
    "test_run_ray.py",
    "test_docs_pages.py",
    "test_ring_failures.py",
    "test_run_chief.py",
    "test_monitoring.py",
    "test_reproducible.py",
    "test_large_batch.py",
    "test_tune.py",
)
MARK = "PYTEST_LEAK_GUARD"
# how often the processes of Horovod ask each other: by itself every millisecond, up to a third of what a ring takes
CYCLE, CYCLE_MILLISECONDS = "HOROVOD_CYCLE_TIME", "5"
KERNEL_THREADS = 2  # the process whose children they are
GRACE_SECONDS = 30.0  # what is about to end may end, on a busy machine too
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
# set once per process by libraries when they are imported
FOREIGN_VARIABLES = ("PYTEST_", "TF2_", "ENABLE_RUNTIME_UPTIME_TELEMETRY", "KMP_", "TPU_", "CUDA_MODULE_", "HDF5_")
# Dummy: how Python calls a thread of TensorFlow's pools that has written into a log; tfdist-at-exit: started once per
# process, for the inputs that end with it
FOREIGN_THREADS = ("pytest_timeout", "tqdm_monitor", "pymp-", "Dummy-", "tfdist-at-exit")
FOREIGN_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Snapshot:
    """The resources of this process at one moment."""

    directory: str
    environ: dict[str, str]
    handlers: dict[int, Any]
    threads: frozenset[int]
    pids: frozenset[int]
    ports: frozenset[tuple[str, int]]

    @classmethod
    def take(cls) -> "Snapshot":
        return cls(
            directory=os.getcwd(),
            environ=dict(os.environ),
            handlers={number: signal.getsignal(number) for number in SIGNALS},
            threads=frozenset(thread.ident or 0 for thread in threading.enumerate()),
            pids=frozenset(psutil.pids()),
            ports=frozenset(_listening()),
        )


# how long an example takes is the machine's
hypothesis.settings.register_profile("any machine", hypothesis.settings.default, deadline=None)
hypothesis.settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK] = uuid.uuid4().hex
    os.environ[TRIALS.name] = "again"  # else what is tried would depend on the tests before
    if UNPATCHED not in os.environ:
        os.environ[CYCLE] = CYCLE_MILLISECONDS
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [light.STARTING, os.environ.get("PYTHONPATH")]))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process would compile what all import
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; processes would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before items are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all of tests/unit as quick; where several processes share the files, put the longest first."""
    asked = [Path(config.invocation_params.dir, argument).resolve() for argument in config.args]
    config.stash[MARKS] = Marks(
        {command: item.nodeid for item in items for mark in item.iter_markers("readme") for command in mark.args},
        complete=any(path in (INTEGRATION, *INTEGRATION.parents) for path in asked),
    )
    for item in items:
        if UNIT in item.path.parents:
            item.add_marker(pytest.mark.quick)
    if hasattr(config, "workerinput"):  # this is a process of pytest-xdist
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Return the turn of an item's file: the longest, the other integration tests, the unit tests."""
    if UNIT in item.path.parents:
        return len(LONGEST) + 1
    return LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let Keras be imported without scikit-learn and matplotlib, which it does not need here; it saves a second."""
    sys.path.insert(0, light.FOLDER)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude imported modules and collected tests from garbage collection, which takes a second each time."""
    sys.path.remove(light.FOLDER)  # tests may draw plots, and load the digits
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    for name in (MARK, TRIALS.name, CYCLE):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True, scope="session")
def _session_leaves_nothing() -> Iterator[None]:
    before = Snapshot.take()
    yield
    _fail_on(_put_back(before), who="the session (a fixture of a wide scope)")


@pytest.fixture(scope="session")
def _empty(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Working directories of tests, of which the last is empty: to remove one after each test takes milliseconds."""
    return [tmp_path_factory.mktemp("cwd")]


@pytest.fixture(autouse=True)
def _leaves_nothing(_empty: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home, empty = os.getcwd(), _empty[-1]
    empty.mkdir(exist_ok=True)  # a test may have removed it
    os.chdir(empty)
    before = Snapshot.take()
    yield
    leaks = _put_back(before)
    left = sorted(empty.iterdir())
    os.chdir(home)
    if left:
        _empty.append(tmp_path_factory.mktemp("cwd"))
    _fail_on([*leaks, *(f"file in the working directory: {path.name}" for path in left)], who="this test")


def _fail_on(leaks: list[str], *, who: str) -> None:
    if leaks:
        pytest.fail(f"{who} left behind (put back where that is possible):\n  " + "\n  ".join(leaks), pytrace=False)


def _put_back(before: Snapshot) -> list[str]:
    return [
        *_restore_directory(before),
        *_restore_environ(before),
        *_restore_handlers(before),
        *_end_processes(before),
        *_remaining_threads(before),
        *_remaining_ports(before),
    ]


def _restore_directory(before: Snapshot) -> list[str]:
    try:
        now = os.getcwd()
    except FileNotFoundError:  # pytest removes the directories of a test that has passed before it comes to this
        now = "(deleted)"
    os.chdir(before.directory)
    return [] if now == before.directory else [f"working directory: changed to {now}"]


def _restore_environ(before: Snapshot) -> list[str]:
    now, leaks = dict(os.environ), []
    for name in sorted(now.keys() | before.environ.keys()):
        if name.startswith(FOREIGN_VARIABLES) or now.get(name) == before.environ.get(name):
            continue
        leaks.append(f"environment variable: {name} is {now.get(name)!r}, was {before.environ.get(name)!r}")
        if name in before.environ:
            os.environ[name] = before.environ[name]
        else:
            del os.environ[name]
    return leaks


def _restore_handlers(before: Snapshot) -> list[str]:
    leaks = []
    for number, handler in before.handlers.items():
        if signal.getsignal(number) is not handler and handler is not None:
            leaks.append(f"signal handler: {signal.Signals(number).name} is {signal.getsignal(number)!r}")
            signal.signal(number, handler)
    return leaks


def _end_processes(before: Snapshot) -> list[str]:
    left = _until_empty(lambda: _processes_of_ours(before))
    described = [f"process: {process.pid} {_command(process)}" for process in left]
    for process in left:
        _end(process)
    return described


def _processes_of_ours(before: Snapshot) -> list[psutil.Process]:
    """New processes that descend from this one, without those that belong to a process that was there before.

    By the kernel's files: psutil reads those of all processes to find children, which takes longer than most tests.
    """
    me, mark, found = os.getpid(), f"{MARK}={os.environ[MARK]}".encode(), []
    for pid in set(psutil.pids()) - before.pids:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it has ended meanwhile, or is another user's
            above = _ancestors(pid)
            ours = me in above or mark in _environ(pid, above).split(b"\0")
            below_me = above[: above.index(me)] if me in above else []  # none of an orphan
            if ours and before.pids.isdisjoint(below_me) and not _is_adopted_and_ended(pid, above):
                process = psutil.Process(pid)
                if not any(name in _command(process) for name in FOREIGN_PROCESSES):
                    found.append(process)
    return found


def _is_adopted_and_ended(pid: int, ancestors: list[int]) -> bool:
    """Whether it is an ended child of another's session: its parent was killed while this process adopted orphans."""
    state, _, _, session = _stat(pid)[:4]
    if state != "Z" or ancestors[0] != os.getpid() or int(session) in (pid, os.getsid(0)):
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return True


def _environ(pid: int, ancestors: list[int]) -> bytes:
    """The environment that a process was started with.

    It is empty while the kernel starts a program, when whoever asked for that may have ended already.
    """
    deadline = time.monotonic() + 1.0
    while True:
        found = Path(f"/proc/{pid}/environ").read_bytes()
        has_none = KERNEL_THREADS in ancestors or _stat(pid)[0] in "ZX" or time.monotonic() > deadline
        if found or has_none:
            return found
        time.sleep(0.001)


def _ancestors(pid: int) -> list[int]:
    """The parent of a process, its parent, and so on."""
    found: list[int] = []
    while pid > 1:
        pid = int(_stat(pid)[1])
        found.append(pid)
    return found


def _stat(pid: int) -> list[str]:
    """Return the kernel's fields about a process after its name: state, parent, and so on."""
    # its name, in brackets, may have spaces and brackets in it
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _command(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"{process.name()} (ended, never waited for)"
        return " ".join(process.cmdline())[:200]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return "(gone)"


def _end(process: psutil.Process) -> None:
    for act in (process.terminate, process.kill):
        try:
            act()
            process.wait(timeout=GRACE_SECONDS)
            return
        except psutil.TimeoutExpired:
            continue
        except psutil.NoSuchProcess:
            return


def _remaining_threads(before: Snapshot) -> list[str]:
    def new() -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if (thread.ident or 0) not in before.threads and not thread.name.startswith(FOREIGN_THREADS)
        ]

    return [f"thread: {thread.name}{' (daemon)' if thread.daemon else ''}" for thread in _until_empty(new)]


def _remaining_ports(before: Snapshot) -> list[str]:
    def new() -> list[tuple[str, int]]:
        return sorted(_listening() - before.ports)

    return [f"listening port: {host}:{port}" for host, port in _until_empty(new)]


def _listening() -> set[tuple[str, int]]:
    """Return the addresses on which this process listens, by its own sockets: the kernel's table is slow to read."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed meanwhile, or is not of this kind
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    internet = one.family in (socket.AF_INET, socket.AF_INET6)
                    if internet and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        host, port = one.getsockname()[:2]
                        found.add((host, port))
    return found


def _until_empty(look: Callable[[], list[Any]]) -> list[Any]:
    """Return what `look` still finds after the grace time, or nothing as soon as it finds nothing."""
    deadline = time.monotonic() + GRACE_SECONDS
    while found := look():
        if time.monotonic() > deadline:
            return found
        subprocess._cleanup()  # collects children whose Popen is gone
        time.sleep(0.02)
    return []
