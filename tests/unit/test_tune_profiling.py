"""The number, the arguments and the ends of processes that are measured at once; a stand-in measures."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tfdist.errors import DeadlineError, TfdistError, UnsupportedError
from tfdist.planner.layer_profile import LayerProfile, Profile
from tfdist.tune import calibrating, profiling

# What it is told, and the number by which it knows itself, are arguments; it waits for the others as the probe does.
STAND_IN = """#!{python}
import json, os, pathlib, sys, time

request, script, *arguments = json.loads(sys.argv[3]), *sys.argv[4:]
number = int(request["path"].rpartition("-")[2].removesuffix(".json"))
print("process", number, "of", script)
pathlib.Path(request["path"] + ".phase").write_text("layers of m")
if arguments[0] == "fails" and number == 1:
    sys.exit(3)
if arguments[0] == "ends" and number == 1:
    sys.exit(0)
if arguments[0] == "refused":
    pathlib.Path(request["path"] + ".error").write_text("no graph of layers")
    sys.exit(1)
pathlib.Path(request["path"] + ".here").touch()
while arguments[0] != "done" or not all(pathlib.Path(one + ".here").exists() for one in request["together"]):
    time.sleep(0.01)
profile = json.loads(arguments[1])
profile["whole_seconds"] = [1.0 + number]
profile["machine"] = {{name: os.environ.get(name, "") for name in ("TFDIST_STRATEGY", "TF_NUM_INTRAOP_THREADS")}}
pathlib.Path(request["path"]).write_text(json.dumps(profile))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small script take the place of the interpreter that is started."""
    path = tmp_path / "python"
    path.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


def script(ends: str) -> list[str]:
    layer = LayerProfile(name="a", forward_seconds=(1.0,), backward_seconds=(2.0,))
    return [
        "train.py",
        ends,
        Profile(model="m", batch=8, batch_sizes=(8,), layers=(layer,), whole_seconds=(0.5,)).to_json(),
    ]


@pytest.mark.usefixtures("stand_in")
def test_one_is_measured_alone_and_then_several_at_once() -> None:
    told: list[str] = []
    found = profiling.measured(script("done"), devices=3, at_once=3, threads=2, told=told.append)
    begun = [text for text in told if "train.py" in text]
    assert ["one process" in text for text in begun] == [True, False]
    assert "3 processes" in begun[1]
    assert "layers of m" in told[1]
    assert (found.processes, found.whole_seconds) == (3, (3.0,))  # the slowest of them
    assert found.machine == {"TFDIST_STRATEGY": "multi-worker", "TF_NUM_INTRAOP_THREADS": "2"}
    assert found.alone is not None
    assert found.alone.whole_seconds == (1.0,)
    assert found.alone.machine == {"TFDIST_STRATEGY": "", "TF_NUM_INTRAOP_THREADS": "2"}


@pytest.mark.usefixtures("stand_in")
def test_as_many_are_measured_as_the_host_has_room_for() -> None:
    processors = len(os.sched_getaffinity(0))
    found = profiling.measured(script("done"), devices=2, threads=processors)
    assert (found.processes, found.alone) == (1, None)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, 4),
        ({"devices": 6}, 6),
        ({"devices": 9}, 8),
        ({"threads": 1}, 4),
        ({"threads": 3}, 2),
        ({"threads": 9}, 1),
        ({"gpus": 2}, 2),
        ({"gpus": 8, "processors": 2}, 4),
        ({"free_bytes": 350}, 3),
        ({"free_bytes": 0}, 1),
        ({"devices": 1}, 1),
    ],
)
def test_how_many_run_beside_each_other(change: dict[str, Any], found: int) -> None:
    host = {"devices": 4, "threads": None, "processors": 8, "gpus": 0, "free_bytes": 1000, "each_bytes": 100}
    assert profiling.beside(**{**host, **change}) == found


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("ends", "kind", "facts"),
    [
        ("fails", TfdistError, ["code 3", "process 1 of train.py"]),
        ("ends", TfdistError, ["`fit`"]),
        ("refused", UnsupportedError, ["no graph of layers"]),
        ("waits", DeadlineError, ["1 s: layers of m", "process 0 of train.py"]),
    ],
)
def test_where_one_is_not_measured_none_goes_on(ends: str, kind: type[TfdistError], facts: list[str]) -> None:
    seconds = 1.0 if ends == "waits" else 60.0
    with refused(kind, path=None if ends == "refused" else "train.py", mentions=facts):
        profiling.profiled(script(ends), processes=2, timeout_seconds=seconds)


def test_what_the_script_has_started_ends_with_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reads = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    command = ["sh", "-c", f"sleep 300 > {tmp_path / 'pipe'} & wait"]
    try:
        with profiling._running(command, dict(os.environ), tmp_path / "log"):
            _wait_for(lambda: _is_written_to(reads))
        _wait_for(lambda: not _is_written_to(reads))
    finally:
        os.close(reads)


def _is_written_to(pipe: int) -> bool:
    try:
        os.read(pipe, 1)  # nothing, where nobody has the other end
    except BlockingIOError:
        return True
    return False


def _wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_each_of_several_has_a_gpu_of_its_own() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "4,6", "TF_CONFIG": "{}", "TFDIST_MESH": "data=2", "HOME": "/"}
    made = [profiling.environment(base, number, 3, threads=None, gpus=["4", "6"]) for number in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in made] == ["4", "6", "4"]
    assert {name for one in made for name in one} == {"CUDA_VISIBLE_DEVICES", "HOME", "TFDIST_STRATEGY"}
    assert profiling.environment(base, 0, 1, threads=None) == {"CUDA_VISIBLE_DEVICES": "4,6", "HOME": "/"}
    assert profiling.environment(base, 1, 2, threads=1, gpus=["4", "6"])["CUDA_VISIBLE_DEVICES"] == ""


def test_two_processes_that_do_not_answer_have_a_deadline() -> None:
    with refused(DeadlineError, mentions=["0.1 s", "--timeout-seconds", "--link 10gbit"]):
        profiling.of_two_processes("signal:pause", {}, what="it was", hint="--link 10gbit", timeout_seconds=0.1)


def test_a_job_of_one_worker_has_no_link_to_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "costs_of_worker", None)  # which would divide by the number of others
    with refused(TfdistError, mentions=["tfdist run -n 2"]):
        calibrating.main()
