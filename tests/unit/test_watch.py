"""Looks at a job: from tables and rings that were really written, in a terminal, as JSON, as a page, as metrics."""

import contextlib
import http.client
import json
import math
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from tests.refusals import absent, refused
from tests.simulated_steps import simulated
from tfdist import resources
from tfdist.cli.main import main
from tfdist.cluster.job_files import event_copy, progress_file, steps_folder
from tfdist.errors import ConfigError
from tfdist.jobs.agent.restart_reporter import EventFile
from tfdist.monitor.exporters import html_exporter
from tfdist.monitor.phases import Kind
from tfdist.monitor.recording.row_ring import Ring
from tfdist.monitor.reporter import StatusReporter
from tfdist.monitor.status import StatusTable
from tfdist.monitor.verdict.step_parts import Part, timeline
from tfdist.monitor.watch import event_log, observing, terminal
from tfdist.monitor.watch.resource_usage import Process, Usage
from tfdist.monitor.watch.server import POINTS, Page
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView, sentence

JOB = "3f9ac1d2aa"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """The folder of jobs on a host where one runs, whose worker 1 is late in its backward pass."""
    folder = tmp_path / f"tfdist-job-{JOB}-x"
    folder.mkdir()
    table = StatusTable(progress_file(folder, 1), 2)
    steps_folder(folder, 1).mkdir()
    reporters = []
    for worker, rows in simulated(2, late=(1, "backward", 10.0)).items():
        ring = Ring(steps_folder(folder, 1) / f"worker-{worker}")
        ring.add(rows)
        ring.close()
        reporter = StatusReporter(table.path, worker)
        reporter.on_begin(0, Kind.TRAIN, time.monotonic_ns())
        reporter.on_end(0, 10**7, time.monotonic_ns())
        reporters.append(reporter)
    file = EventFile(str(tmp_path / "events"), JOB, copy=str(event_copy(folder)))
    file.write("started", start=0, workers=2, pids=[1, 2])
    file.write("failed", start=0, worker=1, text="worker 1 failed: killed by SIGKILL (signal 9)")
    file.write("model", start=1, flops_per_step=1e9, peak_flops=1e12)
    file.write("alert", start=1, alert="straggler", worker=1, text="worker 1 is slow")
    file.close()
    yield tmp_path
    for reporter in reporters:
        reporter.close()
    table.close()


def seen(job: Path):  # type: ignore[no-untyped-def]
    found = observing.Observer(JOB[:3], folders=[job]).look()
    assert found is not None
    return found


def test_a_look(job: Path) -> None:
    found = seen(job)
    assert (found.job, found.start, found.bound, len(found.verdict)) == (JOB, 1, "straggler", 5)
    assert [one.step for one in found.workers] == [1, 1]
    assert found.workers[1].parts["backward"] > found.workers[0].parts["backward"] + 0.008
    assert found.workers[0].loss == 0.5
    assert found.workers[0].memory is not None
    assert found.workers[0].resources["threads"] >= 1
    assert [one["event"] for one in found.events] == ["started", "failed", "model", "alert"]
    assert json.loads(json.dumps(found.as_json()))["workers"][1]["worker"] == 1


def test_what_a_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "import sys; print('runs', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"runs\n"  # before that it may have no memory of its own
        one = Process(child.pid)
        looks = [one.look() for _ in range(2)]
        child.kill()
        child.wait()
    assert one.look() == Usage()
    for found in looks:
        assert found.memory is not None
        assert found.memory > 1 << 20
        assert found.others["threads"] == 1
        assert min(found.others.values()) >= 0
    mine = Process(os.getpid())
    before = mine.look()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert before.cpu is not None
    assert (mine.look().cpu or 0) > 0  # since the look before

    def missing(process: psutil.Process) -> None:
        raise NotImplementedError  # as where the kernel is gVisor's

    monkeypatch.setattr(psutil.Process, "num_ctx_switches", missing)
    found = mine.look()
    assert found.memory is not None
    assert "preemptions_per_second" not in found.others


def test_the_job_is_found_by_the_beginning_of_its_id(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert observing.found("", [job])[0] == JOB
    theirs = tmp_path / "theirs" / "tfdist-job-4a-of-another-user"
    theirs.mkdir(parents=True)
    (theirs.parent / "tfdist-job-5b-of-a-search").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != theirs)
    assert observing.found("", [job, theirs.parent])[0] == JOB
    with refused(ConfigError, name="JOB", received="4", mentions=[JOB]):
        observing.found("4", [job])
    with refused(ConfigError, name="JOB", received=""):
        observing.found("", [tmp_path / "missing"])


def test_the_end_of_a_job_is_seen(job: Path) -> None:
    observer = observing.Observer(folders=[job])
    (job / f"tfdist-job-{JOB}-x").rename(job / "gone")
    assert observer.look() is None
    (job / "gone").rename(job / f"tfdist-job-{JOB}-x")


def test_a_job_between_two_starts_has_not_ended(job: Path) -> None:
    folder = job / f"tfdist-job-{JOB}-x"
    observer = observing.Observer(folders=[job])
    before = observer.look()
    assert before is not None
    (folder / "progress-1").rename(folder / "gone")
    between = observer.look()
    assert between is not None
    assert (between.is_running, between.start, between.workers) == (True, 1, before.workers)
    assert observer.timeline is not None, "the last steps are not lost"
    with contextlib.closing(StatusTable(progress_file(folder, 2), 1)):
        after = observer.look()
    (folder / "gone").rename(folder / "progress-1")
    assert after is not None
    assert (after.start, len(after.workers)) == (2, 1)


def test_a_job_whose_workers_are_not_started_yet_is_shown(job: Path) -> None:
    folder = job / "tfdist-job-beef-x"
    folder.mkdir()
    observer = observing.Observer("beef", folders=[job])
    found = observer.look()
    assert found is not None
    assert (found.is_running, found.workers) == (True, ())
    assert "no worker" in drawn(found)
    progress_file(folder, 0).touch()  # it is being made
    assert observer.look() is not None
    progress_file(folder, 0).unlink()
    folder.rmdir()
    assert observer.look() is None


def test_workers_in_reserve_are_not_the_newest_start_until_they_take_over(job: Path) -> None:
    folder = job / f"tfdist-job-{JOB}-x"
    reserve = StatusTable(progress_file(folder, 2), 2, reserve=True)
    assert seen(job).start == 1
    (folder / "progress-1").rename(job / "gone")
    assert seen(job).start == 2, "the job has not ended"
    (job / "gone").rename(folder / "progress-1")
    reserve.take_over()
    assert seen(job).start == 2
    reserve.close()


def drawn(shown, width: int = 160) -> str:  # type: ignore[no-untyped-def]
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(terminal.page(shown))
    return console.export_text()


def test_the_page_in_a_terminal(job: Path) -> None:
    text = drawn(seen(job))
    assert not absent(text, "one slow worker", "worker 1 failed", "signal 9")
    bars = [line.count("█") for line in text.splitlines() if "MiB" in line]
    assert len(bars) == 2
    assert max(bars) == 48
    for label in ("forward", "backward", "wait", "communication", "update"):
        assert f"█ {label}" in text


def test_a_narrow_terminal_cuts_the_bars_alone(job: Path) -> None:
    lines = drawn(seen(job), width=80).splitlines()
    assert "…" not in "".join(lines[:4])
    assert all(word in lines[1] for word in ("worker", "does", "steps/s", "loss", "memory", "CPU", "step ms"))
    bars = [line.count("█") for line in lines if "MiB" in line]
    assert 10 <= max(bars) < 48


def test_without_a_record_there_is_less(job: Path) -> None:
    for path in steps_folder(job / f"tfdist-job-{JOB}-x", 1).iterdir():
        path.write_bytes(b"damaged")
    text = drawn(seen(job))
    assert "tfdist run --monitor" in text
    assert "bound by" not in text


def test_the_command(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "MEMORY", job)
    monkeypatch.setattr(observing.tempfile, "gettempdir", lambda: str(job))
    once = CliRunner().invoke(main, ["watch", "--once", JOB])
    assert (once.exit_code, "one slow worker" in once.output) == (0, True), once.output
    machine = json.loads(CliRunner().invoke(main, ["watch", "--json"]).output)
    assert machine["bound"] == "straggler"
    assert CliRunner().invoke(main, ["watch", "--once", "zz"]).exit_code == 2
    assert CliRunner().invoke(main, ["watch", "--web", "--once", JOB]).exit_code == 2
    assert CliRunner().invoke(main, ["watch", "--web", "--port", "70000", JOB]).exit_code == 2


def ended(job: Path) -> Path:
    """Return the event file of a job that has ended."""
    path = job / "events"
    verdict = {
        "bound": "input",
        "worker": None,
        "parts": {"0": {"input": 0.02, "forward": 0.01}},
        "lines": ["verdict x"],
    }
    with path.open("a") as file:
        for event in ({"event": "verdict", **verdict}, {"event": "ended", "exit_code": 0, "restarts": 1}):
            file.write(json.dumps({"job": JOB, "start": 1, "time": 5.0, **event}) + "\n")
        file.write('{"job": "3f9a')  # a line that is being written
    return path


def test_a_job_that_has_ended_is_shown_from_its_event_file(job: Path) -> None:
    path = ended(job)
    shown = CliRunner().invoke(main, ["watch", str(path)])
    assert shown.exit_code == 0
    assert not absent(shown.output, "verdict x", "code 0 ", "1 restarts")
    (job / "empty").touch()
    assert CliRunner().invoke(main, ["watch", str(job / "empty")]).exit_code == 2


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        "[1]",
        '"x"',
        '{"job": "a"}',
        *(
            json.dumps({"job": JOB, "event": "x", **odd})
            for odd in (
                {"event": ["a"]},
                {"job": 5},
                {"time": "noon"},
                {"time": math.inf},
                {"time": math.nan},
                {"time": -1},
                {"time": 1e300},
                {"time": 10**400},
                {"start": 1.5},
                {"start": math.inf},
                {"worker": [1]},
                {"seconds": "1"},
                {"flops_per_step": None},
                {"peak_flops": 0},
                {"pids": 5},
                {"pids": None},
                {"pids": ["a"]},
                {"parts": [1]},
                {"parts": {"a": {}}},
                {"parts": {"9" * 30: {}}},
                {"parts": {"0": 5}},
                {"parts": {"0": {"input": "x"}}},
                {"parts": {"0": {"input": math.nan}}},
                {"lines": 5},
                {"lines": [5]},
            )
        ),
    ],
)
def test_a_line_that_is_no_event_is_left_out(line: str, job: Path) -> None:
    assert event_log.event_of(line) is None
    path = ended(job)
    with path.open("a") as file:
        file.write(f"\n{line}\n")
    found = event_log.from_events(path)
    assert [one["event"] for one in found.events][-2:] == ["verdict", "ended"]


def test_what_a_terminal_would_obey_is_not_shown(job: Path) -> None:
    path = job / "events"
    event = {"job": JOB, "start": 1, "time": 5.0, "event": "alert", "text": "a\x1b[2J\ud800\nb", "more": math.inf}
    path.write_text(json.dumps(event) + "\n")
    found = event_log.from_events(path)
    assert "alert: a\ufffd[2J\ufffd\nb" in drawn(found)
    json.dumps(found.as_json(), allow_nan=False).encode()


def test_a_job_that_has_ended_is_served_from_its_event_file(job: Path) -> None:
    with Page(event_log.Past(ended(job)), every=0.01) as past:
        connection = http.client.HTTPConnection("127.0.0.1", past.port, timeout=60)
        connection.request("GET", "/events", headers={"Host": "localhost:1"})
        answer = connection.getresponse()
        told = json.loads(answer.readline().decode().removeprefix("data: "))
        assert (told["is_running"], told["verdict"], told["workers"][0]["activity"]) == (False, ["verdict x"], "ended")
        assert json.loads(got(past, "/history")[2])["loss"] == []
        assert got(past, "/metrics")[0] == 200
    assert answer.read() == b"\nevent: end\ndata: {}\n\n", "it is told once"
    connection.close()


@pytest.fixture
def page(job: Path) -> Iterator[Page]:
    with Page(observing.Observer(folders=[job]), every=0.01) as found:
        yield found


def got(page: Page, path: str, host: str = "127.0.0.1") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("GET", path, headers={"Host": f"{host}:{page.port}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


def test_the_page_asks_for_nothing_from_elsewhere(page: Page) -> None:
    status, kind, html = got(page, "/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"(?:src|href)=", html)
    assert "innerHTML" not in html
    assert set(terminal.COLORS) == set(html_exporter.COLORS) == {part.label for part in Part}
    for label in terminal.COLORS:
        assert re.search(rf"\b{label}:", html), f"no color for {label}"


def test_what_the_page_is_told(page: Page) -> None:
    status, _, body = got(page, "/snapshot")
    told = json.loads(body)
    assert (status, told["job"], told["events"][1]["sentence"][:23]) == (200, JOB, "worker 1 failed: killed")
    assert got(page, "/else")[0] == 404
    before = json.loads(got(page, "/history")[2])
    assert [len(before[name]) for name in ("rate", "loss", "parts")] == [POINTS] * 3
    assert before["loss"][-1] == [0.5, 0.5]
    assert before["rate"][0][0] == pytest.approx(1 / sum(before["parts"][0].values()), rel=0.2)
    assert got(page, "/", host="elsewhere.example")[0] == 403


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (["127.0.0.1:1"], 200),
        (["localhost"], 200),
        (["LocalHost:65535"], 200),
        ([], 403),
        ([""], 403),
        (["localhost:evil.example"], 403),
        (["localhost.evil.example:1"], 403),
        (["evil.localhost:1"], 403),
        (["127.0.0.1.evil.example"], 403),
        (["127.0.0.1:1", "evil.example:1"], 403),
    ],
)
def test_the_page_answers_to_this_machine_alone(hosts: list[str], status: int, page: Page) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.putrequest("GET", "/", skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status == status
    connection.close()


@pytest.mark.parametrize("path", ["/", "/events", None])
def test_a_client_that_resets_is_not_told_of(path: str | None, page: Page, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=60) as client:
        if path is not None:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            client.recv(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets
    deadline = time.monotonic() + 60
    while any("process_request_thread" in one.name for one in threading.enumerate()) and time.monotonic() < deadline:
        page.snapshot()  # a look later its thread has seen it
        time.sleep(0.01)
    assert got(page, "/snapshot")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_every_look_is_an_event_until_the_job_ends(page: Page, job: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("GET", "/events", headers={"Host": "localhost:1"})
    answer = connection.getresponse()
    for _ in range(3):
        assert json.loads(answer.readline().decode().removeprefix("data: "))["job"] == JOB
        answer.readline()
    folder = job / f"tfdist-job-{JOB}-x"
    folder.rename(job / "gone")
    rest = answer.read().decode()
    assert rest.endswith("event: end\ndata: {}\n\n")
    page.wait()
    assert got(page, "/snapshot")[0] == 410
    (job / "gone").rename(folder)
    connection.close()


def test_metrics_and_their_names_in_the_documentation(page: Page) -> None:
    status, _, body = got(page, "/metrics")
    assert status == 200
    families = {one.name: one for one in text_string_to_metric_families(body)}
    every = [sample for family in families.values() for sample in family.samples]
    samples = {(one.name, one.labels.get("rank"), one.labels.get("phase")): one.value for one in every}
    assert samples["tfdist_step_seconds", "1", "backward"] > samples["tfdist_step_seconds", "0", "backward"]
    assert samples["tfdist_steps_total", "0", None] == 1
    assert samples["tfdist_failures_total", None, None] == 1
    alerts = {(one.labels["alert"], one.labels["rank"]): one.value for one in families["tfdist_alerts"].samples}
    assert alerts["straggler", "1"] == 1
    assert alerts["loss_not_finite", ""] == alerts["slow_worker", "0"] == 0  # there before they are raised
    text = resources.pages()["monitoring-exporters"].read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(tfdist_(?!gpu)\w+)`", text, re.MULTILINE))
    assert documented == {sample.name for sample in every}


def test_an_export_that_is_asked_to_end_writes_once_more(job: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "tfdist", "export", JOB, f"html:{page}"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(job)}) as process:
        deadline = time.monotonic() + 100
        while not page.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        page.unlink()
        process.terminate()  # as systemd and `docker stop` do
    assert process.returncode == 0
    assert page.exists()


def test_a_port_that_is_taken(page: Page, job: Path) -> None:
    with refused(ConfigError, name="--port", received=page.port):
        Page(observing.Observer(folders=[job]), port=page.port)


@pytest.mark.parametrize(
    "event",
    [
        "started",
        "stepping",
        "failed",
        "halted",
        "verdict",
        "ended",
        "replaced",
        "alert",
        "straggler",
        "model",
        "parameters",
    ],
)
def test_every_event_has_a_sentence(event: str) -> None:
    assert sentence({"event": event})


def test_a_loss_that_is_no_number_is_shown_and_one_that_was_not_seen_is_not() -> None:
    steps = timeline(simulated(2))
    odd = replace(steps, loss=np.full_like(steps.loss, math.nan))
    assert math.isnan(observing.recorded(odd, 1)["loss"])
    assert observing.recorded(replace(odd, has_loss=np.zeros_like(steps.has_loss)), 1)["loss"] is None


def test_what_is_no_number_is_none_in_json() -> None:
    one = WorkerView(worker=0, parts={}, loss=math.nan, gradient_norm=math.inf)
    found = Snapshot(job="a1", start=0, time=0.0, is_running=True, workers=(one,)).as_json()
    (shown,) = json.loads(json.dumps(found, allow_nan=False))["workers"]
    assert (shown["gradient_norm"], shown["loss"], shown["loss_text"]) == (None, None, "nan")
