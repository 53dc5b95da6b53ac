"""Stacks of processes: as values, from processes that really stand somewhere, and none from who cannot answer."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.refusals import absent
from tfdist.jobs.process import script_worker
from tfdist.monitor.stacks import stack_requests, waits
from tfdist.monitor.stacks.stack_requests import Stacks, Target, apart, ask, from_faulthandler, from_py_spy, lines
from tfdist.variables import STACKS_FILE

SCRIPT = """
import sys, threading, time
def deep(): print("ready", flush=True); time.sleep(1000)
threading.Thread(target=lambda: time.sleep(1000), daemon=True, name="beside").start()
deep()
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    script, file = tmp_path / "stands.py", tmp_path / "Ünï stacks"
    script.write_text(SCRIPT)
    command = [sys.executable, script_worker.__file__, "--parent", "0", "--script", str(script)]
    with subprocess.Popen(command, env={**os.environ, STACKS_FILE.name: str(file)}, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield Target(name="worker 0", pid=process.pid, file=file)
        finally:
            process.kill()


def without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_requests, "py_spy", lambda: None)


def test_a_process_is_asked_again_and_again(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    without_py_spy(monkeypatch)
    for _ in range(3):
        (found,) = ask([target], seconds=60)
        assert (found.source, found.pid, len(found.threads)) == ("faulthandler", target.pid, 2)
        assert [frame.function for frame in found.threads[0].frames[:2]] == ["deep", "<module>"]


def test_both_ways_tell_the_same(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    (spied,) = ask([target], seconds=60)
    without_py_spy(monkeypatch)
    (told,) = ask([target], seconds=60)
    if spied.source != "py-spy":
        pytest.skip("py-spy is not installed here, or may not read")
    assert spied.threads[1].name == "beside"
    assert [frame.line for frame in spied.threads[0].frames] == [frame.line for frame in told.threads[0].frames]


def test_who_cannot_answer_is_left_alone(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    without_py_spy(monkeypatch)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stranger = Target(name="stranger", pid=other.pid, file=target.file)
        gone = Target(name="gone", pid=2**22 + 1, file=target.file)
        os.kill(target.pid, signal.SIGSTOP)
        found = ask([stranger, gone, target], seconds=60)
        assert other.poll() is None, "the signal has ended it"
        assert other.stdin is not None
        other.stdin.write(b"\n")
    assert other.returncode == 0
    assert [bool(one.threads) for one in found] == [False] * 3
    for one, fact in zip(found, ("Python", "gone", "SIGSTOP"), strict=True):
        assert fact in one.source


def test_all_mean_the_same_signal() -> None:
    assert signal.SIGRTMIN + script_worker.STACKS == stack_requests.SIGNAL


def test_a_wait_is_told_and_taken_back(tmp_path: Path) -> None:
    note = waits.WaitNote.from_environment({STACKS_FILE.name: str(tmp_path / "stacks")})
    note.tell("all_reduce of 4 bytes")
    assert waits.read(tmp_path / "stacks") == "all_reduce of 4 bytes"
    note.tell("")
    assert (waits.read(tmp_path / "stacks"), list(tmp_path.iterdir())) == ("", [])
    waits.WaitNote(tmp_path / "missing" / "stacks").tell("a step")  # the job is ending


def test_those_apart_are_named_with_their_collectives() -> None:
    reduce, broadcast = "all_reduce of 4 bytes", "broadcast of 8 bytes"
    one, same, other = (
        f"{what} is waiting for member {member}" for what, member in ((reduce, 1), (reduce, 3), (broadcast, 0))
    )
    first, second, third = apart({"worker 0": one, "worker 1": other, "worker 2": ""}).split("; ")
    assert not absent(first, "worker 0 ", reduce)
    assert not absent(second, "worker 1 ", broadcast)
    assert not absent(third, "worker 2 ", "no collective")
    assert apart({"worker 0": one, "worker 2": same}) == ""
    assert apart({}) == ""


def test_a_dump_that_is_cut_off_and_one_that_is_none() -> None:
    cut = (
        'Thread 0x01 [pool] (most recent call first):\n  File "a", line ???\n  ...\n\nCurrent thread 0x02 (most recent'
    )
    (only,) = from_faulthandler(cut)
    assert (only.frames[0].function, only.frames[0].line) == ("?", 0)
    assert from_faulthandler("") == ()
    for text in ("nothing", "{}", '[{"thread_name": "x"}]', "[1]"):
        with pytest.raises(ValueError):  # noqa: PT011 - also json's own
            from_py_spy(text)
    stacks = Stacks(name="ps 0", pid=1, threads=from_faulthandler(cut), source="faulthandler", waits="a step")
    assert lines(stacks, threads=True, most=0)[1:] == ["  waits in a step", "  MainThread", "    ... and 1 more"]
