"""Reports about restarts: cause, lines, event file, summary; and jobs that are found by their id."""

import contextlib
import errno
import json
import os
import resource
import socket
import threading
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.refusals import absent, refused
from tfdist.errors import ConfigError, DeadlineError, StorageError, TfdistError
from tfdist.jobs.agent import running_jobs
from tfdist.jobs.agent.restart_reporter import EventFile, RestartReporter, cause_of
from tfdist.jobs.supervision.hangs import Hang, Seen
from tfdist.jobs.supervision.supervisor_state import Asked
from tfdist.monitor.phases import Activity
from tfdist.monitor.status import StepPosition, StepState, WorkerStatus
from tfdist.monitor.watch.event_log import read_events
from tfdist.processes.worker_failure import Failure, Record


def seen(worker: int, tick: int = 7, *, pid: int = 1, **more: Any) -> Seen:
    position = StepPosition(step=tick, state=StepState.RUNNING)
    said: dict[str, Any] = {
        "changed": 9.0,
        "step_seconds": 0.1,
        "ended": tick,
        "first_step_ended": 21.5,
        "resumed": 5,
        "done": 7,
    }
    said |= {"source": "memory", "saved": 5, "leaves": False, "activity": Activity.STEPPING, **more}
    return Seen(worker=worker, status=WorkerStatus(pid=pid, position=position, **said))


def failure(worker: int, returncode: int = -9, record: Record | None = None) -> Failure:
    return Failure(worker=worker, time=20.0, returncode=returncode, record=record)


RECORD = Record(clock=20.0, type="ValueError", message="bad\nvery", traceback="", exit_code=1)
HANG = Hang(worker=1, text="worker 1 hangs: in step 8", since=18.0)


@pytest.mark.parametrize(
    ("failures", "hang", "kind", "facts"),
    [
        ([failure(1), failure(0, 1)], None, "signal", ["worker 1 ", "SIGKILL", "signal 9"]),
        ([failure(1, 3)], None, "exit", ["worker 1 ", "exit code 3"]),
        ([failure(1, 1, RECORD)], None, "exception", ["worker 1 ", "ValueError: bad"]),
        ([failure(1)], HANG, "hang", [HANG.text]),
        ([], None, "exit", ["the workers"]),
    ],
)
def test_causes(failures: list[Failure], hang: Hang | None, kind: str, facts: list[str]) -> None:
    cause = cause_of(failures, hang, [seen(0), seen(1, 9)], 20.0)
    assert (cause.kind, absent(cause.text, *facts)) == (kind, [])
    assert "very" not in cause.text
    assert cause.tick == (9 if cause.worker == 1 else 7)


def test_signatures_tell_the_same_failure_at_the_same_step() -> None:
    def signature(failed: Failure, *said: Seen) -> str | None:
        return cause_of([failed], None, list(said), 20.0).signature

    assert signature(failure(1), seen(1)) == signature(failure(1), seen(1))
    assert signature(failure(1), seen(1)) != signature(failure(1), seen(1, 8))
    assert signature(failure(1), seen(1)) != signature(failure(1), seen(1, resumed=6))
    assert signature(failure(1), seen(1)) != signature(failure(0), seen(0))
    assert signature(failure(1), seen(1, pid=0)) is None, "nobody knows where"
    assert signature(failure(1, 1, RECORD), seen(1, pid=0)) is not None


def test_the_course_of_a_job(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "events"
    reporter = RestartReporter(say=said.append, file=EventFile(str(path), "a1"), max_restarts=2)
    reporter.started([41, 42])
    reporter.stepping([seen(0, resumed=None), seen(1, resumed=None)])
    assert said == [], "a start that is none of these is no news"
    reporter.left([seen(0, done=6), seen(1, done=7)])
    reporter.failed(cause_of([failure(1)], None, [seen(1)], 20.0), begun=10.0, again=True)
    reporter.start = 1
    reporter.stepping([seen(0), seen(1, first_step_ended=21.0)])
    reporter.left([seen(0, done=5), seen(1, done=5)])
    reporter.halted("resize", 3, 21.0)
    reporter.start = 2
    reporter.stepping([seen(0), seen(1), seen(2)])
    reporter.failed(cause_of([failure(1)], HANG, [seen(1)], 20.5), begun=10.0, again=False, why_not="it is enough")
    reporter.ended(1)
    reporter.file.close()
    failed, again, resized, hangs, ended = said
    assert not absent(failed, "worker 1 ", "signal 9", "step 8 ", "10.0 s", "restarting (1 of 2)")
    assert not absent(again, "2 workers", "1.50 s", "step 5 (memory)", "2 steps repeated")
    assert not absent(resized, "3 workers", "0.50 s", "step 5 (memory)", "0 steps repeated")
    assert not absent(hangs, HANG.text, "10.5 s", "it is enough")
    assert not absent(ended, "code 1 ", "1 of 2 restarts", "1 change", "2 steps repeated", "1.50 s")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = ["started", "stepping", "failed", "stepping", "halted", "stepping", "failed", "ended"]
    assert [line["event"] for line in lines] == names
    assert all((line["version"], line["job"]) == (1, "a1") for line in lines)
    assert (lines[2]["clock"], lines[3]["seconds"], lines[3]["lost"]) == (20.0, 1.5, 2)
    assert "seconds" not in lines[1]
    assert (lines[0]["workers"], lines[0]["pids"]) == (2, [41, 42])
    assert [lines[3][key] for key in ("workers", "resumed", "source", "clock")] == [2, 5, "memory", 21.5]
    assert (lines[4]["purpose"], lines[4]["workers"]) == ("resize", 3)
    assert (lines[7]["exit_code"], lines[7]["restarts"], reporter.recoveries) == (1, 1, [1.5])
    assert [lines[2][key] for key in ("worker", "task", "cause", "phase")] == [1, None, "signal", "stepping"]
    assert (lines[6]["cause"], lines[6]["text"], lines[6]["restarts_left"]) == ("hang", HANG.text, 1)
    started, of_failure = (lines[place]["time"] - lines[place]["clock"] for place in (0, 2))
    assert of_failure == pytest.approx(started, abs=1.0), "both say when it was"


def test_what_several_workers_and_starts_warn_of_is_once_in_the_summary(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "events"
    reporter = RestartReporter(say=said.append, file=EventFile(str(path), "a1"), max_restarts=0)
    for sentence in ("the loss 'a'", "the loss 'a'", "the state 'b'"):
        reporter.warned(sentence)
    reporter.start = 1
    reporter.warned("the loss 'a'")
    reporter.start = 0
    reporter.ended(0)
    reporter.file.close()
    kept = ["the loss 'a'", "the state 'b'"]
    (summary,) = said
    assert [line.strip() for line in summary.splitlines()[1:]] == kept
    assert "restart" not in summary
    *warnings, ended = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["event"], one["text"]) for one in warnings] == [("warning", one) for one in kept]
    assert ended["warnings"] == kept


def test_evictions_and_several_recoveries_are_in_the_summary() -> None:
    reporter = RestartReporter(say=lambda text: None, file=EventFile(None, "a1"), max_restarts=3)
    reporter.halted("evict", 2, 21.0)
    reporter.halted("leave", 0, 21.0)  # nobody continues
    assert (reporter.sizes, reporter.evicted) == (0, 1)
    reporter.recoveries = [6.0, 1.0, 2.0]
    assert not absent(reporter.summary(0), "1 slow worker ", "2.00 s (median", "6.00 s at most")
    said: list[str] = []
    quiet = RestartReporter(say=said.append, file=EventFile(None, "a1"), max_restarts=3)
    quiet.ended(0)
    assert not said
    quiet.replaces("worker 0")
    quiet.ended(0)
    assert not absent(said[0], "code 0 ", "0 of 3 restarts", "1 worker replaced")


def test_what_is_lost_where_no_state_is_left_is_told() -> None:
    said: list[str] = []
    reporter = RestartReporter(say=said.append, file=EventFile(None, "a1"), max_restarts=1)
    reporter.started([41, 42])
    reporter.stepping([seen(0, resumed=None, done=None), seen(1, resumed=None, done=None)])
    reporter.left([seen(0, done=7), seen(1, done=None)])
    reporter.failed(cause_of([failure(1)], None, [seen(1)], 20.0), begun=10.0, again=True)
    reporter.start = 1
    reporter.stepping([seen(0, resumed=None, done=None), seen(1, resumed=None, done=None)])
    reporter.ended(0)
    _, again, ended = said
    assert not absent(again, "2 workers", "1.50 s", "No state", "7 steps repeated")
    assert not absent(ended, "code 0 ", "1 of 1 restarts", "7 steps repeated", "1.50 s")


def test_the_course_of_a_job_with_a_chief(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "events"
    reporter = RestartReporter(say=said.append, file=EventFile(str(path), "a1"), max_restarts=2, has_chief=True)
    reporter.started([41, 42, 43])
    reporter.stepping([seen(0, resumed=None)])
    reporter.replaces("worker 1")
    reporter.left([seen(0, done=30)])
    cause = replace(cause_of([failure(0)], None, [seen(0)], 20.0), task="ps 0")
    reporter.failed(cause, begun=10.0, again=True)
    reporter.start = 1
    reporter.left([seen(0, done=None)])  # it never stepped, so how far it was is known from before
    reporter.start = 2
    reporter.stepping([seen(0, resumed=28, source="backup")])
    reporter.ended(0)
    reporter.file.close()
    again, ended = said
    assert not absent(again, "the job ", "1.50 s", "step 28 (backup)", "2 steps repeated")
    assert not absent(ended, "code 0 ", "1 of 2 restarts", "1 worker replaced", "2 steps repeated", "1.50 s")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["started", "stepping", "replaced", "failed", "stepping", "ended"]
    assert [lines[3][key] for key in ("task", "worker", "tick", "restarts_left")] == ["ps 0", None, 7, 1]
    assert (lines[4]["lost"], lines[5]["lost"]) == (2, 2)


def test_an_event_file_is_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        file = EventFile(str(tmp_path / "events"), "a1")
        file.write("started", start=0)
        file.close()
    assert len((tmp_path / "events").read_text().splitlines()) == 2
    missing = tmp_path / "no" / "folder"
    with refused(StorageError, name="--event-file", path=missing):
        EventFile(str(missing), "a1")


def test_a_job_is_found_and_asked(tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path / ("long " * 20 + "name"))}
    events: SimpleQueue[Any] = SimpleQueue()
    with running_jobs.controlled(running_jobs.place(environ, "abc123"), events, (1, 3)) as control:
        assert running_jobs.running(environ) == ["abc123"]

        def work() -> None:
            assert events.get() == Asked(workers=2)
            control.answer(3, ok=True, text="others")
            control.answer(2, ok=True, text="done")

        thread = threading.Thread(target=work)
        thread.start()
        assert running_jobs.ask(environ, "abc", 2, timeout_seconds=200) == "done"
        thread.join()
        with refused(TfdistError, name="abc123", mentions=["--min-workers 1 ", "--max-workers 3"]):
            running_jobs.ask(environ, "abc", 4, timeout_seconds=200)
        with refused(ConfigError, name="job", received="b", mentions=["abc123"]):
            running_jobs.ask(environ, "b", 2, timeout_seconds=200)
        with refused(DeadlineError, name="abc123", mentions=["3 workers", "0.01 s"]):
            running_jobs.ask(environ, "", 3, timeout_seconds=0.01)

        def end() -> None:
            while events.get() != Asked(
                workers=2
            ):  # of the request before nothing has come if its time was up too soon
                pass
            control.close()

        waiting = threading.Thread(target=end)
        waiting.start()
        with refused(TfdistError, name="abc123", mentions=["has ended"]):
            running_jobs.ask(environ, "abc", 2, timeout_seconds=200)
        waiting.join()
    assert running_jobs.running(environ) == []
    with refused(ConfigError, name="job", received="abc", mentions=["None runs"]):
        running_jobs.ask(environ, "abc", 2, timeout_seconds=200)


@pytest.mark.parametrize(
    "line",
    [
        b'{"workers": 1e400}',
        b'{"workers": NaN}',
        b'{"workers": true}',
        b'{"workers": 2.0}',
        b'{"workers": "2"}',
        b"[" * 4000,
        b"x" * 5000,
        b"\xff\xfe",
        b"3",
    ],
)
def test_the_socket_of_a_job_survives_what_is_no_request(line: bytes, tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path)}
    with (
        running_jobs.controlled(running_jobs.place(environ, "abc123"), SimpleQueue(), (1, 3)),
        socket.socket(socket.AF_UNIX) as odd,
    ):
        odd.settimeout(200)
        odd.connect(str(running_jobs.place(environ, "abc123")))
        odd.sendall(line + b"\n")
        assert json.loads(odd.makefile().readline())["ok"] is False
        with refused(TfdistError, name="abc123", mentions=["--max-workers 3"]):
            running_jobs.ask(environ, "abc", 4, timeout_seconds=200)


def test_a_slow_client_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path)}
    monkeypatch.setattr(running_jobs, "_PATIENCE_SECONDS", 200.0)
    with contextlib.ExitStack() as held:
        held.enter_context(running_jobs.controlled(running_jobs.place(environ, "abc123"), SimpleQueue(), (1, 3)))
        for _ in range(20):  # more than the system keeps for who does not accept
            slow = held.enter_context(socket.socket(socket.AF_UNIX))
            slow.connect(str(running_jobs.place(environ, "abc123")))
            slow.sendall(b"{")
        with refused(TfdistError, name="abc123", mentions=["--max-workers 3"]):
            running_jobs.ask(environ, "abc", 4, timeout_seconds=60)


def test_a_job_answers_after_no_thread_could_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, failures = threading.Thread.start, iter([1])

    def failing(thread: threading.Thread) -> None:
        if thread.name == "job control client" and next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    environ = {"TFDIST_CACHE_DIR": str(tmp_path)}
    monkeypatch.setattr(threading.Thread, "start", failing)
    with (
        running_jobs.controlled(running_jobs.place(environ, "abc123"), SimpleQueue(), (1, 3)),
        socket.socket(socket.AF_UNIX) as first,
    ):
        first.settimeout(200)
        first.connect(str(running_jobs.place(environ, "abc123")))
        assert first.recv(1) == b""
        with refused(TfdistError, name="abc123", mentions=["--max-workers 3"]):
            running_jobs.ask(environ, "abc", 4, timeout_seconds=60)


def test_a_job_that_accepts_nobody_now_is_kept(tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path)}
    running_jobs.folder(environ).mkdir()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        busy.bind(str(running_jobs.place(environ, "busy")))
        busy.listen(0)
        client.connect(str(running_jobs.place(environ, "busy")))
        assert running_jobs.running(environ) == ["busy"]
        assert running_jobs.place(environ, "busy").exists()


def test_a_job_that_a_client_cannot_reach_for_want_of_descriptors_is_kept(tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path / ("long " * 20 + "name"))}  # which takes two descriptors
    with running_jobs.controlled(running_jobs.place(environ, "abc123"), SimpleQueue(), (1, 3)):
        before, free = resource.getrlimit(resource.RLIMIT_NOFILE), os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, before[1]))
        try:
            found = running_jobs.running(environ)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert found == running_jobs.running(environ) == ["abc123"]


def test_what_an_ended_job_has_left_is_removed(tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path)}
    running_jobs.folder(environ).mkdir()
    running_jobs.place(environ, "dead").touch()
    assert running_jobs.running(environ) == []
    assert not running_jobs.place(environ, "dead").exists()


def test_a_line_that_a_full_disk_has_cut_damages_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    room = iter([40, 0, 1 << 20, 1 << 20])  # bytes that the disk takes at each write

    def filling(descriptor: int, data: bytes) -> int:
        taken = data[: next(room)]
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, taken)

    path = tmp_path / "events"
    file = EventFile(str(path), "a1")
    monkeypatch.setattr(os, "write", filling)
    for event in ("started", "stepping", "failed", "ended"):
        file.write(event, start=0)
    monkeypatch.undo()
    file.close()
    assert [event["event"] for event in read_events(path)] == ["failed", "ended"]
