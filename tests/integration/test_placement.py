"""The promises of every placement of processes: one battery, run for each entry of PLACEMENTS.

A new placement (ssh, Ray, Slurm) gets a line in PLACEMENTS, and no test of its own for any of this.
"""

import contextlib
import functools
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from tests.integration.agents import alive, another_host, wait_until
from tfdist.cluster import TaskId, job_key
from tfdist.cluster.job_files import job_of
from tfdist.errors import TfdistError
from tfdist.jobs.agent.worker_group import started
from tfdist.jobs.output.output_forwarder import screen
from tfdist.jobs.placement import local_placement
from tfdist.jobs.placement.local_placement import Child, LocalPlacement, free_addresses
from tfdist.jobs.placement.placement_protocol import Handle, Placement
from tfdist.jobs.placement.warm_workers import warm_environment
from tfdist.jobs.placement.worker_factory import forked
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import BOTH, WorkerSpec
from tfdist.jobs.process.script_worker import END_NOTE
from tfdist.jobs.remote.remote_placement import RemotePlacement
from tfdist.processes import warm_client
from tfdist.processes.fork_server import ForkServer, adopting
from tfdist.processes.job_resources import Guard, guarded
from tfdist.variables import CACHE_DIR, ERROR_FILE, JOB_ID, JOB_KEY

pytestmark = pytest.mark.quick

SECONDS = 200.0
CHILD = "subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL{})"


@contextlib.contextmanager
def started_anew(guard: Guard, folder: Path) -> Iterator[Placement]:
    yield LocalPlacement(guard)


@contextlib.contextmanager
def from_a_fork_server(guard: Guard, folder: Path) -> Iterator[Placement]:
    with contextlib.closing(ForkServer.start(os.environ, folder=folder, modules=["json"])) as server:
        assert server.wait(SECONDS)
        yield LocalPlacement(guard, starter=functools.partial(forked, server))


@contextlib.contextmanager
def from_a_warm_process(guard: Guard, folder: Path) -> Iterator[Placement]:
    """By a keeper, which is the parent of the processes."""
    environ = {**os.environ, CACHE_DIR.name: str(folder / "cache")}
    warm, _ = warm_client.start(environ, warm_environment(environ), idle_seconds=SECONDS, modules=[])
    keeper = warm_client.keeper(environ, warm_environment(environ), str(folder))
    assert keeper is not None

    def starter(spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
        kept = keeper.spawn(spec.argv, environment, stdin=streams[0], stdout=streams[1], stderr=streams[2])
        return Child(pid=kept.pid, collect=kept.collect, ended=kept.ended)

    with contextlib.closing(keeper):
        warm_client.stop(warm)  # the processes need it no more
        yield LocalPlacement(guard, starter=starter)


@contextlib.contextmanager
def on_another_host(guard: Guard, folder: Path) -> Iterator[Placement]:
    """Place processes through a stand-in for ssh, which runs the command here."""
    shell = another_host(folder)
    hosts = (Host(name="n1", address="127.0.0.1", slots=3),)
    config = LaunchConfig(target="json", is_module=True)
    remote = Remote(hosts=hosts, shell=(str(shell),))
    with contextlib.closing(RemotePlacement(config, remote, job_id=guard.job_id, say=pytest.fail)) as placement:
        placement.addresses(1)  # with which a start begins
        yield placement


@contextlib.contextmanager
def ended_after_an_error(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.terminate()
        raise


@contextlib.contextmanager
def on_a_host_that_joins(guard: Guard, folder: Path) -> Iterator[Placement]:
    """Over TCP, by an agent that somebody else has started."""
    ports = free_addresses(1)
    key, address = job_key.drawn(), f"127.0.0.1:{ports[0][1]}"
    hosts = (Host(name="n1", address="127.0.0.1", slots=3),)
    command = [sys.executable, "-m", "tfdist", "agent", address, "--name", "n1"]
    environ = {**os.environ, JOB_KEY.name: key}
    with (
        subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
        ended_after_an_error(process),
        contextlib.closing(
            RemotePlacement(
                LaunchConfig(target="json", is_module=True),
                Remote(hosts=hosts, launcher="agent", shell=("",), rendezvous=address),
                job_id=guard.job_id,
                key=key,
                say=lambda text: None,
                interrupted=lambda: process.poll() is not None,
            )
        ) as placement,
    ):
        placement.addresses(1)
        yield placement
    assert process.returncode == 0


PLACEMENTS = {
    "started anew": started_anew,
    "from a fork server": from_a_fork_server,
    "from a warm process": from_a_warm_process,
    "on another host": on_another_host,
    "on a host that joins": on_a_host_that_joins,
}


@pytest.fixture(params=PLACEMENTS)
def placement(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Placement]:
    with (
        guarded(f"placement{secrets.token_hex(4)}", parent=tmp_path) as guard,
        PLACEMENTS[request.param](guard, tmp_path) as made,
    ):
        yield made


Make = Callable[..., Handle]


@pytest.fixture
def make(placement: Placement, tmp_path: Path) -> Iterator[Make]:
    """Start a process that runs this code; it is gone after the test."""
    handles: list[Handle] = []

    def maker(code: str, **changes: object) -> Handle:
        path = tmp_path / f"code ü {len(handles)}.py"
        path.write_text("import os, signal, subprocess, sys, time\n" + textwrap.dedent(code), encoding="utf-8")
        values: dict[str, object] = {"argv": (sys.executable, str(path)), "index": len(handles), **changes}
        task = TaskId(type="worker", index=len(handles))
        spec = WorkerSpec(task=task, error_file=tmp_path / "no record", **values)  # type: ignore[arg-type]
        handles.append(placement.start(spec))
        return handles[-1]

    yield maker
    for handle in handles:
        handle.signal(signal.SIGKILL)
    placement.end_leftovers(handles, grace_seconds=0.0)
    for handle in handles:
        assert handle.wait(SECONDS) is not None
        handle.close(SECONDS)


def line(handle: Handle, stream: int = 1) -> str:
    """Read a line that the process writes."""
    with os.fdopen(os.dup(handle.outputs[stream]), "rb", buffering=0) as file:
        return file.readline().decode().strip()


def test_a_process_gets_what_its_spec_says_and_its_end_is_known(make: Make) -> None:
    handle = make(
        """
        print(os.environ["MINE"], "HOME" in os.environ, sys.stdin.read() == "", flush=True)
        print("complaint", file=sys.stderr, flush=True)
        sys.exit(3)
        """,
        environment={"MINE": "ö"},
        removed=("HOME",),
        host="n1",
        port=4001,
    )
    assert line(handle) == "ö False True"
    assert line(handle, 2) == "complaint"
    assert [handle.wait(SECONDS), handle.wait(), handle.wait(0.0)] == [3, 3, 3]
    assert (handle.spec.address, handle.outputs.keys()) == ("n1:4001", BOTH)


def test_a_death_by_the_agent_is_told_from_one_of_its_own(make: Make) -> None:
    alone, asked = make("os.kill(os.getpid(), signal.SIGKILL)"), make("time.sleep(1000)")
    asked.signal(signal.SIGKILL)
    assert [alone.wait(SECONDS), asked.wait(SECONDS)] == [-signal.SIGKILL] * 2
    alone.signal(signal.SIGKILL)
    assert [alone.ended_unasked, asked.ended_unasked] == [True, False]


@pytest.mark.parametrize(
    ("code", "returncode"),
    [("", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", -9), ("raise ValueError", 1)],
)
def test_a_process_that_ends_at_once(make: Make, code: str, returncode: int, tmp_path: Path) -> None:
    note = tmp_path / f"record{END_NOTE}"
    note.write_text("{}")
    handle = make(code, environment={ERROR_FILE.name: str(tmp_path / "record")})
    assert handle.wait(SECONDS) == returncode
    handle.signal(signal.SIGTERM)  # to nobody
    handle.close(SECONDS)
    handle.signal(signal.SIGKILL)
    handle.close(SECONDS)
    assert (handle.wait(), handle.is_stopped) == (returncode, False)
    wait_until(lambda: not note.exists(), "the next process with this error file would be taken for ended")


def test_a_command_that_is_not_there(make: Make, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    refused, returncode = "", None
    try:
        returncode = make("", argv=(missing, missing)).wait(SECONDS)
    except TfdistError as error:
        refused = str(error)
    assert "worker 0 cannot be started" in refused or returncode not in (0, None)


def test_one_that_goes_on_is_waited_for_by_everybody(make: Make) -> None:
    handle = make("print('here', flush=True); time.sleep(1000)")
    assert line(handle) == "here"
    assert handle.wait(0.0) is None
    assert handle.wait(0.05) is None
    seen: list[int | None] = []
    threads = [threading.Thread(target=lambda: seen.append(handle.wait())) for _ in range(2)]
    for thread in threads:
        thread.start()
    handle.signal(signal.SIGTERM)
    for thread in threads:
        thread.join(SECONDS)
    assert seen == [-signal.SIGTERM] * 2


def test_one_that_ignores_sigterm_is_killed(make: Make) -> None:
    handle = make("""
        signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
        print("ready", flush=True)
        while True:
            time.sleep(1000)
    """)
    assert line(handle) == "ready"
    handle.signal(signal.SIGTERM)
    assert line(handle) == "no"
    assert handle.wait(0.0) is None
    handle.signal(signal.SIGKILL)
    assert handle.wait(SECONDS) == -signal.SIGKILL


def test_sigkill_reaches_the_children_also_when_the_process_has_ended(make: Make) -> None:
    running = make(f"print({CHILD.format('')}.pid, flush=True); time.sleep(1000)")
    ended = make(f"print({CHILD.format('')}.pid, flush=True)")
    children = [int(line(handle)) for handle in (running, ended)]
    assert ended.wait(SECONDS) == 0
    assert all(map(alive, children))
    for handle in (running, ended):
        handle.signal(signal.SIGKILL)
    wait_until(lambda: not any(map(alive, children)), "a child is left")


def test_what_ended_processes_have_left_is_ended(placement: Placement, make: Make) -> None:
    handles = [make(f"print({CHILD.format('')}.pid, flush=True)"), make("")]
    child = int(line(handles[0]))
    assert [handle.wait(SECONDS) for handle in handles] == [0, 0]
    assert placement.end_leftovers(handles, grace_seconds=SECONDS) == 1
    assert not alive(child)
    assert placement.end_leftovers(handles, grace_seconds=SECONDS) == 0


def test_what_others_have_started_goes_on(placement: Placement, make: Make) -> None:
    of_the_job = {JOB_ID.name: job_of(placement.site("127.0.0.1").directory)}
    code = f"print({CHILD.format('')}.pid, flush=True)"
    ended, running = make(code), make(f"{code}; time.sleep(1000)", environment=of_the_job)
    left, child = int(line(ended)), int(line(running))
    assert ended.wait(SECONDS) == 0
    assert placement.end_leftovers([ended], grace_seconds=SECONDS) == 1
    assert (alive(left), alive(child), running.wait(0.0)) == (False, True, None)
    running.signal(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_lost_its_parent_while_a_worker_was_forked_is_waited_for(tmp_path: Path, number: int) -> None:
    with (
        guarded(f"placement-{secrets.token_hex(4)}", parent=tmp_path) as guard,
        from_a_fork_server(guard, tmp_path) as placement,
    ):
        code = tmp_path / "code.py"
        code.write_text(f"import subprocess, time\nprint({CHILD.format('')}.pid, flush=True)\ntime.sleep(1000)")
        task = TaskId(type="worker", index=0)
        argv = (sys.executable, str(code))
        handle = placement.start(WorkerSpec(index=0, task=task, argv=argv, error_file=tmp_path / "no record"))
        child = int(line(handle))
        with adopting():  # as in the moment in which another worker is forked
            handle.signal(number)
            assert handle.wait(SECONDS) == -number
            assert psutil.Process(child).ppid() == os.getpid()
        left = placement.end_leftovers([handle], grace_seconds=SECONDS)
        assert left == 1 or (left == 0 and number == signal.SIGKILL)  # which goes to all of the group
        assert not psutil.pid_exists(child)
        handle.close(SECONDS)


def test_one_that_is_stopped_is_seen(make: Make) -> None:
    handle = make("print('here', flush=True); time.sleep(1000)")
    assert line(handle) == "here"
    assert not handle.is_stopped
    handle.signal(signal.SIGSTOP)
    wait_until(lambda: handle.is_stopped, "it is not seen")
    assert handle.wait(0.0) is None
    handle.signal(signal.SIGCONT)
    wait_until(lambda: not handle.is_stopped, "it is still seen")


def test_each_leads_a_session_of_its_own(make: Make) -> None:
    handles = [make("time.sleep(1000)") for _ in range(3)]
    assert len({handle.pid for handle in handles}) == 3
    assert all(psutil.pid_exists(handle.pid) and os.getsid(handle.pid) == handle.pid for handle in handles)


def test_addresses_differ_and_are_none_of_before(placement: Placement) -> None:
    first = placement.addresses(3)
    assert placement.site(first[0][0]).agent_pid > 0
    known = [f"{host}:{port}" for host, port in first]
    second = placement.addresses(3, but=known)
    assert len({*first, *second}) == 6
    assert placement.addresses(0) == []


def test_a_group_of_which_one_cannot_be_started_leaves_nobody(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("import time\ntime.sleep(1000)")
    argv = ((sys.executable, str(code)), (str(tmp_path / "missing"),))
    specs = [
        WorkerSpec(index=i, task=TaskId(type="worker", index=i), argv=argv[i], error_file=tmp_path / f"{i}.json")
        for i in range(2)
    ]
    events: SimpleQueue[Any] = SimpleQueue()
    pids: list[int] = []

    def starter(*arguments: Any) -> local_placement.Child:
        child = local_placement.started_anew(*arguments)
        pids.append(child.pid)
        return child

    with guarded(f"group-{secrets.token_hex(4)}", parent=tmp_path) as guard:
        running = started(specs, LocalPlacement(guard, starter=starter), screen([]), events, verbose=False)
        with pytest.raises(TfdistError, match="worker 1 cannot be started"), running:
            pass
    end = events.get(timeout=SECONDS)
    assert (end.worker, end.returncode) == (0, -signal.SIGKILL)
    (pid,) = pids
    with pytest.raises(ChildProcessError):  # it has been waited for, whatever other children this process has
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
