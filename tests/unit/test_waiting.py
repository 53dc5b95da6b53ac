"""A signal is heeded while something is waited for, whichever thread the system hands it to."""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import absent
from tfdist.checkpoint import Store, Writer
from tfdist.jobs.connecting.tcp_joining import Ticket
from tfdist.jobs.launchers import joined_agent
from tfdist.monitor.watch.server import Page
from tfdist.monitor.watch.snapshot import Snapshot
from tfdist.processes import forking
from tfdist.processes.fork_server import ForkServer
from tfdist.waiting import Flag, done_heeding_signals, end_process, join_heeding_signals, wait_heeding_signals


@contextlib.contextmanager
def signalled(handler: Callable[[], object], *, otherwise: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Have another thread get a signal in a moment, and this one its handler; after a minute do something else."""
    before = signal.signal(signal.SIGUSR2, lambda *_: handler())
    limit = threading.Timer(60, otherwise)
    other = threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR2))
    try:
        for thread in (limit, other):
            thread.start()
        yield
    finally:
        limit.cancel()
        for thread in (other, limit):
            thread.join()
        signal.signal(signal.SIGUSR2, before)


def test_a_process() -> None:
    code = "import sys; sys.exit(7 if sys.stdin.read() else 8)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        # it ends by itself if nobody heeds the signal, with another code
        with signalled(lambda: process.communicate(b"heeded"), otherwise=process.stdin.close):
            assert wait_heeding_signals(process) == 7


class _Held:
    """A process that the kernel does not let go, whatever it is sent."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def wait(self, timeout: float) -> int:  # without a time it would wait for ever
        raise subprocess.TimeoutExpired("held", timeout)

    def send_signal(self, number: int) -> None:
        self.sent.append(number)


def test_a_process_that_survives_being_killed_is_left() -> None:
    held, numbers = _Held(), (signal.SIGTERM, signal.SIGKILL)
    end_process(held, 0.0, numbers)  # type: ignore[arg-type]
    assert held.sent == list(numbers)


def test_a_descriptor_above_those_of_select() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"a process may have {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    here, there = socket.socketpair()
    with here, there, socket.socket(fileno=fcntl.fcntl(there, fcntl.F_DUPFD_CLOEXEC, 1500)) as high:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server = ForkServer(process=_Running(), channel=high)  # type: ignore[arg-type]
        assert not server.wait(0.0)
        here.sendall(forking.READY)
        assert server.wait(60.0)


class _Running:
    def poll(self) -> None:
        return None


def test_a_thread() -> None:
    ends, heeded = threading.Event(), Flag()
    thread = threading.Thread(target=ends.wait, args=(120,))
    thread.start()

    def heed() -> None:
        heeded.set()
        ends.set()

    with signalled(heed, otherwise=ends.set):
        join_heeding_signals(thread)
    assert heeded.is_set()
    assert not thread.is_alive()


def test_work_of_threads() -> None:
    first: Future[str] = Future()
    second: Future[str] = Future()
    second.set_result("there")

    def late() -> None:
        if not first.done():
            first.set_result("late")

    with signalled(lambda: first.set_result("heeded"), otherwise=late):
        assert [one.result() for one in done_heeding_signals([first, second])] == ["there", "heeded"]
    assert list(done_heeding_signals([])) == []


def test_a_flag() -> None:
    flag = Flag()
    with signalled(flag.set):
        assert flag.wait(60)
    flag.clear()
    assert not flag.wait(0.01)


def test_a_checkpoint(tmp_path: Path) -> None:
    may_go_on, heeded = threading.Event(), Flag()

    class Slow(Store):
        def save(self, *arguments: Any, **parts: Any) -> None:
            may_go_on.wait(120)
            super().save(*arguments, **parts)

    writer = Writer(Slow(tmp_path / "backup"), warn=print)
    writer.submit(1, {"x": np.zeros(3)}, {})

    def heed() -> None:
        heeded.set()
        may_go_on.set()

    with signalled(heed, otherwise=may_go_on.set):
        writer.close()
    assert heeded.is_set()
    assert writer.written == 1


class Runs:
    """A job that runs at the first look, and has ended at the next."""

    timeline = None

    def __init__(self) -> None:
        self._seen: list[Snapshot | None] = [Snapshot(job="a1", start=0, time=0.0, is_running=True, workers=()), None]

    def look(self) -> Snapshot | None:
        return self._seen.pop(0)


def test_a_page() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with Page(Runs(), every=90.0) as page, signalled(interrupt), pytest.raises(KeyboardInterrupt):
        page.wait()


def test_an_agent_of_a_host_ends_at_no_signal_that_is_ignored() -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        for number in (signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ticket = Ticket(addresses=("127.0.0.1:1",), name="n1", key=bytes(32))
        assert joined_agent.serve(ticket, wait_seconds=0.0, say=say) == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [absent(text, "n1", "127.0.0.1:1") for text in said] == [[]]
