"""Worker pools: every way in which a worker can answer, or not; and nothing left behind."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tfdist.processes.pool.forked_workers import forked_workers
from tfdist.testing.pool import Reply, WorkerPool

pytestmark = pytest.mark.quick

CASES = Path(__file__).parent / "cases"


def environments(workers: int = 2) -> list[dict[str, str]]:
    return [{**os.environ, "PYTHONPATH": str(CASES), "RANK": str(rank)} for rank in range(workers)]


@pytest.fixture(params=["started", "forked"])
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    one, _ = environments()
    forks = forked_workers(one, ["json"]) if request.param == "forked" else contextlib.nullcontext()
    with forks as start, WorkerPool(environments, start) as workers:
        yield workers


def call(pool: WorkerPool, function: str, *, timeout_seconds: float = 200, **arguments: Any) -> tuple[Reply, ...]:
    return pool.call(f"pool_cases:{function}", arguments, timeout_seconds=timeout_seconds)


def processes(pool: WorkerPool) -> list[psutil.Process]:
    return [psutil.Process(reply.value[1]) for reply in call(pool, "echo", value=None)]


def until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 2000
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def gone(found: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(found, timeout=200)[1]


def test_every_worker_answers_and_processes_stay(pool: WorkerPool) -> None:
    assert not pool.running
    first, second = call(pool, "echo", value={"a": [1, "ü"]}), call(pool, "echo", value=None)
    assert [reply.status for reply in first] == ["returned", "returned"]
    assert [reply.value[0] for reply in first] == [0, 1]
    assert first[1].value[2] == {"a": [1, "ü"]}
    assert [reply.value[1] for reply in first] == [reply.value[1] for reply in second]


def test_paused_processes_stand_still_and_go_on(pool: WorkerPool) -> None:
    workers = processes(pool)
    with pool.paused():
        assert until(lambda: all(worker.status() == psutil.STATUS_STOPPED for worker in workers))
    assert [reply.status for reply in call(pool, "echo", value=None)] == ["returned", "returned"]
    with pool.paused():
        pool.close()
    assert gone(workers)


def test_an_exception_travels_with_its_bases_and_leaves_the_processes(pool: WorkerPool) -> None:
    good, bad = call(pool, "fail_on", rank=1)
    assert (good.status, good.value) == ("returned", "fine")
    assert (bad.status, bad.types[:2], bad.message) == ("raised", ("KeyError", "LookupError"), "'lost'")
    assert "pool_cases.py" in bad.detail
    assert pool.running


@pytest.mark.parametrize(
    ("function", "type_name"),
    [("no_json", "ValueError"), ("exit_politely", "SystemExit"), ("nothing", "AttributeError")],
)
def test_what_cannot_be_answered_is_an_exception(pool: WorkerPool, function: str, type_name: str) -> None:
    for reply in call(pool, function):
        assert (reply.status, reply.types[0]) == ("raised", type_name)
    assert call(pool, "echo", value=1)[0].status == "returned"


@pytest.mark.parametrize(
    ("code", "says"), [(3, "exit code 3"), (-signal.SIGKILL, "SIGKILL"), (-signal.SIGSEGV, "SIGSEGV")]
)
def test_a_worker_that_ends_says_how_and_all_start_anew(pool: WorkerPool, code: int, says: str) -> None:
    before = processes(pool)
    good, bad = call(pool, "leave_on", rank=1, code=code)
    assert good.status == "returned"
    assert bad.status == "exited"
    assert says in bad.message
    assert "last words" in bad.detail
    assert gone(before)
    assert [reply.status for reply in call(pool, "echo", value=1)] == ["returned", "returned"]


def test_a_worker_that_is_silent_shows_its_stack_and_is_ended(pool: WorkerPool) -> None:
    before = processes(pool)
    good, bad = call(pool, "wait_for_ever_on", rank=0, timeout_seconds=3)[::-1]
    assert good.status == "returned"
    assert bad.status == "silent"
    assert "wait_for_ever_on" in bad.detail
    assert gone(before)


def test_workers_that_wait_for_a_failed_one_do_not_cost_the_whole_deadline(pool: WorkerPool) -> None:
    bad, waiting = call(pool, "fail_and_leave_others_waiting", rank=0, timeout_seconds=1000)
    assert (bad.status, waiting.status) == ("raised", "silent")
    assert bad.seconds < waiting.seconds


def test_a_worker_that_dies_between_calls_is_noticed(pool: WorkerPool) -> None:
    victim = processes(pool)[1]
    victim.kill()
    psutil.wait_procs([victim], timeout=200)
    assert [reply.status for reply in call(pool, "echo", value=1)] == ["returned", "exited"]
    assert [reply.status for reply in call(pool, "echo", value=1)] == ["returned", "returned"]


def test_workers_are_started_anew_where_none_can_be_forked() -> None:
    before = {child.pid for child in psutil.Process().children()}
    one, _ = environments()
    with forked_workers(one, ["json"]) as start, WorkerPool(environments, start) as pool:
        (server,) = [child for child in psutil.Process().children() if child.pid not in before]
        forked = processes(pool)
        server.kill()
        psutil.wait_procs([server], timeout=200)
        pool.end()
        anew = processes(pool)
    assert len(anew) == 2
    assert gone([*forked, *anew])


def test_environments_are_asked_for_at_every_start() -> None:
    asked = []

    def fresh() -> list[dict[str, str]]:
        asked.append(1)
        return environments(1)

    with WorkerPool(fresh) as pool:
        call(pool, "echo", value=1)
        call(pool, "echo", value=1)
        pool.end()
        call(pool, "echo", value=1)
    assert len(asked) == 2


def test_a_worker_without_descriptors_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before, left = os.listdir("/proc/self/fd"), [os.pipe]

    def pipe() -> tuple[int, int]:
        if not left:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return left.pop()()

    monkeypatch.setattr(os, "pipe", pipe)
    with WorkerPool(environments) as pool, pytest.raises(OSError, match=str(errno.EMFILE)):
        call(pool, "echo", value=1)
    assert os.listdir("/proc/self/fd") == before


def test_closing_ends_a_call_in_another_thread(tmp_path: Path) -> None:
    pool, begun = WorkerPool(environments), tmp_path / "begun"
    found, replies = processes(pool), list[Reply]()

    def wait() -> None:
        replies.extend(call(pool, "wait_for_ever_after", path=str(begun), timeout_seconds=1000))

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 200
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    pool.close()
    thread.join(200)
    assert not thread.is_alive()
    assert [reply.status for reply in replies] == ["exited", "exited"]
    assert gone(found)
    with pytest.raises(RuntimeError, match="closed"):
        call(pool, "echo", value=1)


def test_an_interrupted_call_leaves_no_answer_to_the_next(tmp_path: Path) -> None:
    begun, may_end, main = tmp_path / "begun", tmp_path / "may end", threading.get_ident()

    def interrupt() -> None:
        until(begun.exists)
        signal.pthread_kill(main, signal.SIGINT)

    with WorkerPool(environments) as pool:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            call(pool, "wait_between", begun=str(begun), may_end=str(may_end), timeout_seconds=1000)
        thread.join()
        may_end.touch()
        assert [reply.value for reply in call(pool, "fail_on", rank=7)] == ["fine", "fine"]


def test_temporary_files_of_workers_go_with_them(pool: WorkerPool) -> None:
    (path,) = {Path(reply.value) for reply in call(pool, "leave_a_temporary_file")}
    assert len(list(path.iterdir())) == 2
    pool.end()
    assert not path.exists()


ORPHANS = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tfdist.testing.pool import WorkerPool
environments = lambda: [dict(os.environ, PYTHONPATH={str(CASES)!r}, RANK=str(rank)) for rank in range(2)]
pool = WorkerPool(environments)
print(*(reply.value[1] for reply in pool.call("pool_cases:echo", {{"value": 1}}, timeout_seconds=200)), flush=True)
pool.call("pool_cases:wait_for_ever_on", {{"rank": 0}}, timeout_seconds=1000)
"""


def test_workers_end_when_their_parent_is_killed_in_a_call() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        found = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(found) == 2
    assert gone(found)
