"""Workers that are forked: they find everything as workers that are started, end alike, and outlive nobody."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.integration.agents import alive, environment, wait_until
from tfdist.errors import TfdistError
from tfdist.jobs.plan.job_plan import WORKER_FILE
from tfdist.processes import fork_server as module
from tfdist.processes import forking
from tfdist.processes.fork_server import ForkServer, adopting

pytestmark = pytest.mark.quick

GET_CHILD_SUBREAPER = 37
READY_SECONDS = 200.0

# what a process can see of how it was started
LOOK = """
import json, os, random, signal, sys
json.dump({
    "argv": sys.argv, "path": sys.path, "name": __name__, "file": __file__, "environ": dict(os.environ),
    "cwd": os.getcwd(), "parent": os.getppid(), "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "flags": list(sys.flags), "streams": [s.encoding + str(s.line_buffering) + str(s.write_through)
                                          for s in (sys.stdin, sys.stdout, sys.stderr)],
    "descriptors": sorted(f for f in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{f}")),
    "threads": len(os.listdir("/proc/self/task")), "input": sys.stdin.read(),
    "signals": [str(signal.getsignal(n)) for n in (2, 13, 15, 17)], "main": sys.modules["__main__"].__file__,
    "mask": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
}, sys.stdout)
"""


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a worker."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module", params=[forking.WHOLE, forking.FAST])
def lasting(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    """One process for tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("lasting")
    started = ForkServer.start(environment(folder), folder=folder, modules=["numpy"], ends=request.param)
    with contextlib.closing(started) as process:
        assert process.wait(READY_SECONDS)
        yield process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ForkServer]:
    """A process that has imported only what takes no time."""
    with contextlib.closing(ForkServer.start(environment(tmp_path), folder=tmp_path, modules=["numpy"])) as process:
        assert process.wait(READY_SECONDS)
        yield process


def saved(folder: Path, code: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(code))
    return path


def command(script: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(WORKER_FILE), "--parent", str(os.getpid()), "--script", str(script), *arguments]


def forked(server: ForkServer, argv: list[str], environ: Mapping[str, str], folder: Path) -> Ended:
    """Fork a worker and wait for its end."""
    (folder / "in").write_text("some input")
    with open(folder / "in") as given, open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        pid = server.spawn(argv, environ, stdin=given.fileno(), stdout=out.fileno(), stderr=err.fileno())
        result = os.waitid(os.P_PID, pid, os.WEXITED)
        assert result is not None
        code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        return Ended(code, (folder / "out").read_text(), (folder / "err").read_text())


def test_a_forked_worker_finds_what_a_started_one_finds(server: ForkServer, tmp_path: Path) -> None:
    environ = environment(tmp_path, LARGE="x" * 100_000, STRANGE="\udcff \n", PYTHONUNBUFFERED="1")
    argv = command(saved(tmp_path, LOOK), "-n", "", "x y")
    plain = subprocess.run(
        argv, env=environ, input="some input", capture_output=True, text=True, start_new_session=True
    )
    assert plain.returncode == 0, plain.stderr
    with contextlib.closing(ForkServer.start(environ, folder=tmp_path, modules=["json"])) as same:
        assert same.wait(READY_SECONDS)
        ours = forked(same, argv, environ, tmp_path)
    assert ours.code == 0, ours.err
    assert json.loads(ours.out) == json.loads(plain.stdout)


def test_a_worker_gets_the_environment_of_its_request_alone(lasting: ForkServer, tmp_path: Path) -> None:
    script = saved(tmp_path, "import os, subprocess; subprocess.run(['env'])")  # as C sees it
    result = forked(lasting, command(script), {"PATH": os.environ["PATH"], "ONLY": "this"}, tmp_path)
    assert set(result.out.split()) == {"PATH=" + os.environ["PATH"], "ONLY=this"}


@pytest.mark.parametrize(
    ("code", "ending", "said"),
    [
        ("print('done')", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('a reason')", 1, "a reason"),
        ("raise ValueError('of the script')", 1, "ValueError: of the script"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'at the end')", 0, "at the end"),
        ("import atexit; atexit.register(print, 'in a buffer', file=open(2, 'w', closefd=False))", 0, "in a buffer"),
        ("file = open(2, 'w', closefd=False)\nfile.write('of a module')", 0, "of a module"),
        ("import threading, sys; threading.Thread(target=sys.stderr.write, args=['joined']).start()", 0, "joined"),
    ],
)
def test_a_worker_ends_as_it_would(lasting: ForkServer, tmp_path: Path, code: str, ending: int, said: str) -> None:
    record = tmp_path / "error.json"
    script = saved(tmp_path, code)
    result = forked(lasting, command(script), {"TFDIST_ERROR_FILE": str(record)}, tmp_path)
    assert result.code == ending
    assert said in result.err
    assert "forking.py" not in result.err
    assert record.exists() == (ending > 0)


def test_random_numbers_are_fresh_in_every_worker(lasting: ForkServer, tmp_path: Path) -> None:
    script = saved(tmp_path, "import numpy, os, random\nprint(random.random(), numpy.random.rand(), os.urandom(8))")
    seen = [forked(lasting, command(script), {}, tmp_path).out.split(maxsplit=2) for _ in range(3)]
    assert all(len(set(numbers)) == 3 for numbers in zip(*seen, strict=True))


def test_workers_that_wait_are_taken_first_and_end_with_it(tmp_path: Path) -> None:
    argv = command(saved(tmp_path, "import os; print(os.getpid())"))
    before = set(psutil.Process().children())
    with contextlib.closing(ForkServer.start(environment(tmp_path), folder=tmp_path, modules=["numpy"])) as it:
        assert it.wait(READY_SECONDS)
        it.prepare(3)
        waiting = it.pids[1:]
        assert len(set(waiting)) == 3
        seen = [int(forked(it, argv, {}, tmp_path).out)]
        os.kill(waiting[1], signal.SIGKILL)  # is passed over
        wait_until(lambda: not alive(waiting[1]), "it does not end")
        seen += [int(forked(it, argv, {}, tmp_path).out) for _ in range(2)]
        assert seen[:2] == [waiting[2], waiting[0]]
        assert seen[2] not in waiting
        it.prepare(1)
        (last,) = it.pids[1:]
    assert not any(alive(pid) for pid in (*waiting, last))
    assert set(psutil.Process().children()) <= before


def adopts() -> int:
    answer = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return answer.value


def test_only_for_the_moment_of_a_fork_are_orphans_adopted(server: ForkServer, tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    assert forked(server, command(saved(tmp_path, "")), {}, tmp_path).code == 0
    assert adopts() == 0
    assert set(psutil.Process().children()) == before


def test_no_thread_ends_the_moment_of_another() -> None:
    def fork() -> None:
        with adopting():
            begun.set()
            assert is_over.wait(60)
            seen.append(adopts())

    begun, is_over, seen = threading.Event(), threading.Event(), list[int]()
    thread = threading.Thread(target=fork)
    with adopting():
        thread.start()
        begun.wait(0.1)  # it has to wait
    is_over.set()
    thread.join()
    assert (seen, adopts()) == ([1], 0)


def test_without_the_process_there_is_an_error_and_the_workers_stay(server: ForkServer, tmp_path: Path) -> None:
    argv = command(saved(tmp_path, "import sys; sys.exit(len(sys.stdin.read()))"))
    read, write = os.pipe()
    worker = server.spawn(argv, {}, stdin=read, stdout=1, stderr=2)
    os.close(read)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not alive(server.pid), "it does not end")
    assert not server.is_ready
    with pytest.raises(TfdistError, match="does not answer"):
        server.spawn(argv, {}, stdin=0, stdout=1, stderr=2)
    os.write(write, b"12345")
    os.close(write)
    result = os.waitid(os.P_PID, worker, os.WEXITED)
    assert result is not None
    assert (result.si_code, result.si_status) == (os.CLD_EXITED, 5)


def test_it_is_ready_for_the_next_once_it_has_answered_and_asking_waits_for_nothing(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPLY_SECONDS", 100_000.0)
    argv = command(saved(tmp_path, ""))
    for _ in range(10):
        worker = server.spawn(argv, {}, stdin=0, stdout=1, stderr=2)
        assert server.is_ready
        os.waitpid(worker, 0)
    server.channel.recv(1)  # its word
    assert not server.is_ready


def test_a_process_that_cannot_be_forked_is_an_error_each_time(server: ForkServer, tmp_path: Path) -> None:
    import resource

    argv = command(saved(tmp_path, ""))
    before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    with pytest.raises(TfdistError):
        server.spawn(argv, {}, stdin=0, stdout=1, stderr=2)


def test_a_closed_stream_is_an_error_and_the_next_worker_runs(server: ForkServer, tmp_path: Path) -> None:
    argv = command(saved(tmp_path, ""))
    server.prepare(1)
    with pytest.raises(TfdistError):
        server.spawn(argv, {}, stdin=-1, stdout=1, stderr=2)
    assert forked(server, argv, {}, tmp_path).code == 0


def test_it_is_not_ready_before_it_has_imported(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text("import sys\nsys.stdin = open('gate')\nsys.stdin.read()")
    os.mkfifo(tmp_path / "gate")
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        with contextlib.closing(
            ForkServer.start(environment(tmp_path), folder=tmp_path, modules=["slow_module"])
        ) as it:
            with open("gate", "w"):  # the other end is open: it is about to read
                assert not it.is_ready
            assert it.wait(READY_SECONDS)
    finally:
        os.chdir(before)


def test_a_module_that_is_missing_or_broken_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError")
    with contextlib.closing(
        ForkServer.start(environment(tmp_path), folder=tmp_path, modules=["broken", "no.such", "json"])
    ) as it:
        assert it.wait(READY_SECONDS)
        assert forked(it, command(saved(tmp_path, "")), {}, tmp_path).code == 0


def test_on_another_system_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(TfdistError, match="darwin"):
        ForkServer.start({}, folder="/")


AGENT = """
import os, signal, sys, time
from tfdist.processes.fork_server import ForkServer
it = ForkServer.start(os.environ, folder=".", modules=[])
assert it.wait(200)
it.prepare(2)
argv = ["python", {worker!r}, "--parent", str(os.getpid()), "--script", {script!r}]
pids = " ".join(map(str, [*it.pids, it.spawn(argv, os.environ, stdin=0, stdout=1, stderr=2)]))
os.write(1, f"{{pids}}\\n".encode())
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nobody_outlives_the_agent(tmp_path: Path) -> None:
    script = saved(tmp_path, "import os, signal; os.write(1, b'running\\n'); signal.pause()")
    code = AGENT.format(worker=str(WORKER_FILE), script=str(script))
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as agent:
        assert agent.stdout is not None
        lines = [agent.stdout.readline() for _ in range(2)]
        pids = [int(word) for word in " ".join(lines).split() if word.isdigit()]
        assert len(set(pids)) == 3, lines
        assert all(alive(pid) for pid in pids)
        agent.communicate("now\n", timeout=200)
    wait_until(lambda: not any(alive(pid) for pid in pids), "they outlive the agent")


TRAIN = """
import os, sys
import tensorflow as tf
from tensorflow.python.client import device_lib
value = tf.function(lambda x: tf.reduce_sum(x @ x))(tf.ones([64, 64]))
print(float(value), float(tf.random.uniform([])), device_lib.list_local_devices()[0].incarnation)
"""


def test_tensorflow_works_in_a_fork_and_has_not_begun_before(tmp_path: Path) -> None:
    environ = environment(tmp_path, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    with contextlib.closing(ForkServer.start(environ, folder=tmp_path)) as it:
        assert it.wait(READY_SECONDS)
        script = saved(tmp_path, TRAIN)
        seen = []
        for _ in range(2):
            result = forked(it, command(script), environ, tmp_path)
            assert result.code == 0, result.err
            seen.append(result.out.split())
        # NumPy's and SciPy's pools end before a fork; a thread that stayed would be missing in the workers
        assert len(os.listdir(f"/proc/{it.pid}/task")) == 1
    assert [words[0] for words in seen] == [str(64.0**3)] * 2
    assert all(len(set(words)) == 2 for words in list(zip(*seen, strict=True))[1:])
