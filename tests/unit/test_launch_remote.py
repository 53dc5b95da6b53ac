"""Jobs on several hosts, without processes: what `--hosts` means, the connection, clocks, requests to halt."""

import base64
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.cluster.job_files import steps_folder
from tfdist.errors import ConfigError, DeadlineError, TfdistError
from tfdist.jobs.connecting import connection, serialization
from tfdist.jobs.connecting.connection import ByProgram
from tfdist.jobs.connecting.wire import PREAMBLE, Wire, WireError
from tfdist.jobs.launchers import slurm
from tfdist.jobs.launchers.launcher_table import SshLauncher
from tfdist.jobs.plan.host_plan import Host, Remote, parse_hosts, parse_shell, places
from tfdist.jobs.plan.job_plan import plan
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.remote import host_agent, host_link, remote_placement
from tfdist.jobs.remote.host_agent import HostAgent
from tfdist.jobs.remote.host_link import HostLink, RemoteSteps
from tfdist.jobs.remote.host_reports import Forward, Steps
from tfdist.jobs.remote.remote_placement import RemotePlacement, RemoteStatus
from tfdist.monitor.recording.row_ring import Ring, read
from tfdist.monitor.recording.rows import TIMES, WIDTH
from tfdist.monitor.status import RECORD, StepState, Word
from tfdist.processes.worker_failure import HOST_LOST, Failure, Record, own_failures, read_record


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,,b", "a:0", "a:-1", "a:1025", "a:x", "a:1:2", "a b", "-a", "-oProxyCommand=x", "a@", "@a", "a=",
     "a=-b", "me@-a", "-me@a", "a;b", "$(a)", "a\nb", "[::1]", "a,a", "a=x,b=x", "a=x,a=y"],
)  # fmt: skip
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_hosts(text)


@pytest.mark.parametrize("slots", [(1,), (2, 2), (1, 3, 2)])
def test_hosts_are_filled_in_their_order_and_ranks_are_contiguous(slots: tuple[int, ...]) -> None:
    hosts = parse_hosts(",".join(f"h{number}:{count}" for number, count in enumerate(slots)))
    for count in range(sum(slots) + 1):
        found = places(hosts, count)
        assert [host for host in dict.fromkeys(found) for _ in range(found.count(host))] == list(found)
        assert all(found.count(host) <= host.slots for host in hosts)
    with refused(ConfigError, name="--hosts", received=sum(slots) + 1, mentions=[f"places for {sum(slots)} "]):
        places(hosts, sum(slots) + 1)


def test_no_word_of_a_host_is_read_by_a_shell_and_no_key_is_in_the_command() -> None:
    remote = Remote(hosts=parse_hosts("a"), python="/a dir/$(touch x)/python")
    words = SshLauncher().command(remote, remote.hosts[0], {"PYTHONPATH": "/b'c", "TFDIST_JOB_KEY": "secret"})
    assert "secret" not in " ".join(words)
    inner = shlex.split(words[-1])[-1]  # what sshd's shell hands to another
    shown = subprocess.run(
        ["sh", "-c", inner.replace("exec", "printf '%s\\n'")], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines()[0] == "/a dir/$(touch x)/python"


@pytest.mark.parametrize("command", ["", "  ", "ssh 'a"])
def test_commands_that_are_none(command: str) -> None:
    with pytest.raises(ConfigError):
        parse_shell(command)


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_what_a_login_script_prints_is_skipped(ends: tuple[int, int]) -> None:
    os.write(ends[1], b"Welcome\nto tfdist host agents\n" + PREAMBLE)
    wire = Wire(*ends)
    wire.send({"text": "ü" * 100})
    assert wire.meet() == b"Welcome\nto tfdist host agents\n"
    assert wire.receive() == {"text": "ü" * 100}


def test_who_says_something_else_is_quoted(ends: tuple[int, int]) -> None:
    said = "This account is not available.\n"
    os.write(ends[1], said.encode())
    os.close(ends[1])
    with pytest.raises(WireError) as caught:
        Wire(*ends).meet()
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        b"\5\0\0\0ab",
        b"\xff\xff\xff\xff" + b"a" * 9,
        b"\2\0\0\0[]",
        b"\2\0\0\0{{",
        b"\xa0\x0f\0\0" + b"[" * 4000,
    ],
)
def test_what_is_no_message_is_the_end(data: bytes, ends: tuple[int, int]) -> None:
    os.write(ends[1], data)
    os.close(ends[1])
    assert Wire(*ends).receive() is None


def test_messages_of_several_threads_are_whole(ends: tuple[int, int]) -> None:
    wire = Wire(*ends)
    texts = [str(number) * 3000 for number in range(8)]
    threads = [
        threading.Thread(target=lambda text=text: [wire.send({"text": text}) for _ in range(20)]) for text in texts
    ]
    for thread in threads:
        thread.start()
    found = [(wire.receive() or {})["text"] for _ in range(160)]
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(texts * 20)


def test_a_request_and_processes_arrive_as_they_were_sent() -> None:
    config = LaunchConfig(target="t.py", arguments=("a", "ü"), workers=2, max_restarts=1, strategy="ring")
    assert serialization.config_from_json(json.loads(json.dumps(serialization.config_to_json(config)))) == config
    more = {"job_id": "a", "directory": Path("d"), "python": "p", "agent_pid": 1, "key": "k"}
    for spec in plan(config, addresses=[("a", 1), ("b", 2)], **more):  # type: ignore[arg-type]
        assert serialization.spec_from_json(json.loads(json.dumps(serialization.spec_to_json(spec)))) == spec


def test_variables_of_a_host_and_secrets_stay_here() -> None:
    here = {
        "TFDIST_HOST_ID": "1",
        "TFDIST_JOB_KEY": "s",
        "TFDIST_JOB_ID": "j",
        "AWS_SECRET_ACCESS_KEY": "s",
        "PATH": "p",
    }
    assert serialization.passed_on({**here, "TF_X": "1", "PYTHONHASHSEED": "0"}, ()) == {
        "TF_X": "1",
        "PYTHONHASHSEED": "0",
    }


def test_what_a_worker_has_said_is_not_known_while_a_request_is_on_its_way() -> None:
    words = [0] * RECORD
    words[Word.POSITION] = 4 * 6 + StepState.RUNNING
    known = host_link.status_on_our_clock(words, 0, is_settled=True, clock_offset=0.0)
    unknown = host_link.status_on_our_clock(words, 0, is_settled=False, clock_offset=0.0)
    assert (known.position.step, known.position.state) == (5, StepState.RUNNING)
    assert (unknown.position.step, unknown.position.state) == (5, StepState.DONE)
    words[Word.POSITION], words[Word.HELD_FOR] = 4 * 7 + StepState.HELD, 1
    assert host_link.status_on_our_clock(words, 1, is_settled=True, clock_offset=0.0).position.state is StepState.HELD
    assert (
        host_link.status_on_our_clock(words, 2, is_settled=True, clock_offset=0.0).position.state is StepState.DONE
    )  # of before


def test_a_host_that_stood_still_is_not_late_for_good() -> None:
    link: Any = HostLink(Host(name="a", address="a"), SimpleNamespace(wire=None))
    for heard, said in ((10.0, 10.0), (50.0, 20.0), (61.0, 31.0), (72.0, 42.0)):
        words = [0] * RECORD
        words[Word.CHANGED] = int(said * 1e9)
        link._heard = heard
        link._take({"tables": [[0, 0, 0, {"0": words}]], "stopped": [], "waiting": 0, "clock": said})
    assert link.status(0, 0, 0).changed == 72.0


REPORT = {"python": "p", "pid": 1, "directory": "d", "memory": "m", "versions": {}, "is_loopback": False}
ANSWERS = f"""
import json, sys, time
from tfdist.jobs.connecting.wire import Wire
wire = Wire(0, 1)
wire.begin()
wire.send({REPORT})
"""


def test_hosts_that_are_lost_or_leave_meanwhile(ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(hosts=parse_hosts("a,b,c"))
    config = LaunchConfig(target="t.py", workers=3, min_workers=2)
    placement = RemotePlacement(config, remote, job_id="j", say=pytest.fail)
    links: dict[str, Any] = vars(placement)["_links"]

    def reach(hosts: list[Host], *, in_a_hurry: bool) -> dict[str, str]:
        tried.append([host.name for host in hosts if host.name not in links or links[host.name].is_lost])
        links.update({name: SimpleNamespace(is_lost=False, leaves=False) for name in tried[-1]})
        links["a"].is_lost = len(tried) == 1
        hurries.append(in_a_hurry)
        return {}

    tried: list[list[str]] = []
    hurries: list[bool] = []
    monkeypatch.setattr(placement, "_reach", reach)
    assert placement._reached_places(3) == remote.hosts
    assert tried == [["a", "b", "c"], ["a"]]
    wire: Any = Wire(*ends)
    nothing: Any = None
    HostAgent(wire, nothing, nothing, nothing, nothing, reserving=nothing)._notice({})
    links["b"] = HostLink(remote.hosts[1], SimpleNamespace(wire=None))
    links["b"]._take(wire.receive())
    placement._places = remote.hosts  # it has begun
    links["a"].is_lost = True
    assert [host.name for host in placement._reached_places(2)] == ["a", "c"]
    assert hurries == [False, False, True]  # it begins on all


@pytest.mark.parametrize(
    "message",
    ['{"answer": []}', '{"clock": "x"}', '{"tables": 1}', '{"tables": [1]}', '{"warning": "w", "start": 1e999}'],
)
def test_a_host_that_says_what_cannot_be_is_lost_and_nobody_waits(message: str) -> None:
    code = f"{ANSWERS}\nwire.receive(); wire.send(json.loads(sys.argv[1])); time.sleep(1000)"
    host = Host(name="a", address="a")
    link = HostLink(host, ByProgram(host, (sys.executable, "-c", code, message)))
    try:
        assert link.meet({}, timeout_seconds=200, interrupted=lambda: False).python == "p"
        link.tell("anything")
        with refused(TfdistError, name="a", mentions=["has ended", "said what cannot be"]):
            link.ask("ports", count=1, but=[])
    finally:
        link.close()


def test_a_process_that_is_started_too_late_is_ended(ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_link, "ANSWER_SECONDS", 0.0)
    wire: Any = Wire(*ends)
    link = HostLink(Host(name="a", address="a"), SimpleNamespace(wire=wire, shares_key=False))
    spec, *_ = plan(
        LaunchConfig(target="t.py"), addresses=[("a", 1)], job_id="a", directory=Path("d"), python="p", agent_pid=1
    )
    with refused(DeadlineError, name="a"):
        link.start(spec)
    start, *rest = [wire.receive() for _ in range(3)]
    number = start["handle"]
    assert rest == [{"do": "signal", "handle": number, "number": 9}, {"do": "close", "handle": number}]
    link._take({"answer": start["id"], "value": 42, "error": ""})
    assert not link._answers  # nobody takes it out any more


def test_processes_fail_with_a_host_that_is_lost_while_they_are_started(
    ends: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, told = Host(name="a", address="a"), list[str]()
    wire: Any = Wire(*ends)
    lost = HostLink(host, SimpleNamespace(wire=wire, shares_key=False))
    lost._lose("the connection to host a has ended")
    placement = RemotePlacement(LaunchConfig(target="t.py"), Remote(hosts=(host,)), job_id="j", say=pytest.fail)
    monkeypatch.setattr(placement, "_reached_places", lambda count: (host,) * count)
    monkeypatch.setattr(placement, "_compare", lambda hosts: None)
    vars(placement)["_links"]["a"] = lost
    addresses = placement.addresses(2)
    assert len(set(addresses)) == 2
    spec, _ = plan(
        LaunchConfig(target="t.py", workers=2),
        addresses=addresses,
        job_id="a",
        directory=tmp_path,
        python="p",
        agent_pid=1,
    )
    process = lost.start(spec)
    assert process.wait(0.0) == 1
    record = read_record(spec.error_file)
    assert record is not None
    assert record.type == HOST_LOST
    process.close(0.0)

    def refuse(do: str, **values: object) -> None:
        raise TfdistError("its memory is full")

    well, full = (HostLink(host, SimpleNamespace(wire=wire)) for _ in range(2))
    monkeypatch.setattr(well, "ask", lambda *_, **__: None)
    monkeypatch.setattr(well, "tell", lambda do, **_: told.append(do))
    monkeypatch.setattr(full, "ask", refuse)
    with pytest.raises(TfdistError):
        RemoteStatus(1, [well, full], chief=False)
    assert told == ["close table"]
    RemoteStatus(1, [well, lost], chief=False).close()
    assert told == 2 * ["close table"]


def test_a_process_without_descriptors_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, *_ = plan(
        LaunchConfig(target="t.py"), addresses=[("a", 1)], job_id="a", directory=Path("d"), python="p", agent_pid=1
    )
    before, left = os.listdir("/proc/self/fd"), [os.pipe]
    monkeypatch.setattr(os, "pipe", lambda: left.pop()() if left else os.open("", os.O_RDONLY))
    with pytest.raises(TfdistError):
        HostLink(Host(name="a", address="a"), SimpleNamespace(wire=None)).start(spec)
    for thread in threading.enumerate():
        if thread.name.startswith("output "):
            thread.join()
    assert os.listdir("/proc/self/fd") == before


def test_a_closed_link_writes_into_no_other_connection() -> None:
    reads, writes = os.pipe()
    program = ByProgram(Host(name="a", address="a"), ("cat",))
    link = HostLink(Host(name="a", address="a"), program)
    assert program._process.stdin is not None
    number = program._process.stdin.fileno()
    link.close()
    os.dup2(writes, number)  # as the next connection may get it
    try:
        link.tell("close", handle=0)
        os.set_blocking(reads, False)
        with pytest.raises(BlockingIOError):
            os.read(reads, 1)
    finally:
        for descriptor in (reads, writes, number):
            os.close(descriptor)


def test_a_link_that_is_being_closed_writes_into_no_other_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_link, "BEAT_SECONDS", 0.01)
    host, (reads, writes) = Host(name="a", address="a"), os.pipe()
    program = ByProgram(host, (sys.executable, "-c", f"{ANSWERS}\nwhile wire.receive(): pass\ntime.sleep(0.3)"))
    link = HostLink(host, program)
    link.meet({}, timeout_seconds=200, interrupted=lambda: False)
    assert program._process.stdin is not None
    number = program._process.stdin.fileno()
    closing = threading.Thread(target=link.close)
    closing.start()
    while Path(f"/proc/self/fd/{number}").exists():  # `closed` is true a moment before it is free
        time.sleep(0.001)
    os.dup2(writes, number)  # as the next connection may get it
    link.tell("taken")
    closing.join()
    for descriptor in (writes, number):
        os.close(descriptor)
    with open(reads, "rb") as written:
        assert written.read() == b""


def test_a_host_that_has_not_answered_is_not_waited_for() -> None:
    host, begun = Host(name="a", address="a"), time.monotonic()
    link = HostLink(host, ByProgram(host, ("sleep", "1000")))
    with pytest.raises(TfdistError):
        link.meet({}, timeout_seconds=200, interrupted=lambda: True)
    link.close()
    assert time.monotonic() - begun < connection._END_SECONDS


@pytest.mark.timeout(120)
def test_a_program_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_DRAIN_SECONDS", 0.05)
    program = ByProgram(Host(name="a", address="a"), ("sleep", "1000"))
    try:
        assert "noise of a login script" in program.unreachable("noise of a login script")
    finally:
        program.cut()
        program.end()
        program.close()


@pytest.mark.timeout(120)
def test_a_submission_that_slurm_does_not_read_is_an_error_with_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\nexit 3\n")
    sbatch.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with refused(TfdistError, mentions=["sbatch", "exit code 3"]):
        slurm.submit("#" * (1 << 20), say=lambda text: None)  # more than the pipe holds


def test_a_second_signal_does_not_interrupt_the_end_of_an_agent() -> None:
    before = signal.signal(signal.SIGTERM, host_agent._exit_once)
    try:
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        assert ended.value.code == 143
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_agent_ends_with_an_input_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(host_agent, "_why_sigterm", [""])
    descriptor = os.open(tmp_path, os.O_RDONLY)  # of which nothing can be read
    try:
        host_agent._end_with(descriptor)
    finally:
        os.close(descriptor)
    assert sent == [signal.SIGTERM]


def test_a_failed_request_without_an_answer_is_told(ends: tuple[int, int]) -> None:
    wire: Any = Wire(*ends)
    nothing: Any = None
    agent = HostAgent(wire, nothing, nothing, nothing, nothing, reserving=nothing)
    agent._answer({"do": "close table", "number": 9}, agent._does["close table"])
    assert "close table: KeyError(9)" in (wire.receive() or {})["note"]


def test_of_calls_at_once_the_first_error_is_raised() -> None:
    made: list[int] = []

    def fail() -> None:
        raise OSError("no thread")

    with pytest.raises(OSError, match="no thread"):
        remote_placement._at_once([fail, lambda: made.append(1)])
    assert made == [1]


def test_output_is_passed_on_to_its_end_though_somebody_holds_the_stream() -> None:
    told: list[str] = []
    reads, writes = os.pipe()
    forward = Forward(reads, 1, 2, lambda message: told.append(message["data"]))
    os.write(writes, b"one")
    forward.finish()
    forward.run()
    os.close(writes)
    assert told == [base64.b64encode(b"one").decode(), ""]


def test_a_lost_host_is_the_cause_whenever_it_is_heard_of() -> None:
    def record(kind: str, clock: float) -> Record:
        return Record(clock=clock, type=kind, message="", traceback="", exit_code=1)

    peer = Failure(worker=0, time=1.0, returncode=1, record=record("ConnectionResetError", 1.0))
    lost = Failure(worker=1, time=40.0, returncode=1, record=record(HOST_LOST, 40.0))
    assert [one.worker for one in own_failures([peer, lost], stopped_at=1.0, received=None)] == [1, 0]


def test_a_host_needs_a_name_and_an_address() -> None:
    with refused(ConfigError, name="the address of host a", received="b c"):
        Host(name="a", address="b c")


def test_steps_recorded_elsewhere_are_kept_on_this_clock_and_each_once(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for memory in (there, here):
        memory.mkdir()
    steps_folder(here, 3).mkdir()
    steps, recorded = Steps(there), RemoteSteps(here)
    steps.open(3)
    made = np.random.default_rng(0).integers(1, 10**12, (5, WIDTH))
    made[0, TIMES[2:]] = 0  # was not seen
    elsewhere = made.copy()
    elsewhere[:, TIMES] -= np.where(made[:, TIMES], 7_000_000_000, 0)
    with contextlib.closing(Ring(steps_folder(there, 3) / "worker-1")) as ring:
        for part in (elsewhere[:2], elsewhere[2:]):
            ring.add(part)
            for message in steps.new():
                assert (message["rows"], message["worker"]) == (3, 1)
                recorded.take(3, 1, base64.b64decode(message["data"]), 7.0)
            assert steps.new() == []
        steps.close(3)
        assert steps.new() == []
        assert not steps_folder(there, 3).exists()
    for later in (4, 5):
        steps_folder(here, later).mkdir()
        recorded.take(later, 0, made.tobytes(), 0.0)
        assert {start for start, _ in recorded._rings} == {later - 1, later}
    recorded.close()
    found = read(steps_folder(here, 3) / "worker-1")
    np.testing.assert_array_equal(found[:, 1:], made[:, 1:])
    assert found[:, 0].tolist() == [1, 2, 3, 4, 5]
