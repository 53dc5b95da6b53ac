"""GPUs, NCCL and what TensorFlow says in its child process."""

import dataclasses
import sys

import pytest

from tfdist.doctor import child, framework, gpu_check
from tfdist.doctor.child import Outcome
from tfdist.doctor.finding import Level
from tfdist.doctor.framework import Framework
from tfdist.doctor.gpu_check import Driver

A100 = "NVIDIA A100, 550.54"
CUDA = {"is_cuda_build": True, "cuda_version": "12.5.1"}
TWO = Framework(build=CUDA, gpus=("/physical_device:GPU:0", "/physical_device:GPU:1"))


@pytest.mark.parametrize(
    ("asked", "driver", "environ", "level", "word"),
    [
        (Framework(build=CUDA), Driver(), {}, Level.OK, "none"),
        (TWO, Driver(present=True, gpus=(A100, A100)), {}, Level.OK, "can use 2"),
        (TWO, Driver(), {}, Level.OK, "can use 2"),
        (TWO, Driver(present=True, gpus=(A100,) * 4), {}, Level.NOTE, "lists 4"),
        (Framework(build=CUDA), Driver(present=True, gpus=(A100,)), {}, Level.PROBLEM, "CUDA 12.5.1"),
        (Framework(), Driver(present=True, gpus=(A100,)), {}, Level.PROBLEM, "without CUDA"),
        (Framework(error="x"), Driver(present=True, gpus=(A100,)), {}, Level.PROBLEM, "does not load"),
        (Framework(), Driver(present=True, error="no devices"), {}, Level.WARNING, "no devices"),
        (Framework(), Driver(present=True, gpus=(A100,)), {"CUDA_VISIBLE_DEVICES": ""}, Level.NOTE, "hides"),
        (Framework(), Driver(present=True, gpus=(A100,)), {"CUDA_VISIBLE_DEVICES": "-1"}, Level.NOTE, "hides"),
        (Framework(), Driver(present=True, gpus=(A100,)), {"CUDA_VISIBLE_DEVICES": "0"}, Level.PROBLEM, "none"),
    ],
)
def test_gpus(asked: Framework, driver: Driver, environ: dict[str, str], level: Level, word: str) -> None:
    (finding,) = gpu_check.judge_gpus(asked, driver, environ)
    assert finding.level is level
    assert word in finding.seen + finding.why
    assert bool(finding.cure) == (level >= Level.WARNING or word == "hides")


def test_cuda_without_a_driver_is_named_with_the_way_to_one() -> None:
    wheels = {"nvidia-cuda-runtime-cu12": "12.5.82"}
    (finding,) = gpu_check.judge_gpus(Framework(build=CUDA), Driver(), {}, wheels)
    assert finding.level is Level.NOTE
    assert "nvidia-cuda-runtime-cu12 12.5.82" in finding.seen
    assert "--gpus all" in finding.cure
    for asked, driver in ((TWO, Driver()), (Framework(build=CUDA), Driver(present=True, error="no devices"))):
        found = gpu_check.judge_gpus(asked, driver, {}, wheels)
        assert found == gpu_check.judge_gpus(asked, driver, {})


@pytest.mark.parametrize(
    ("asked", "packages", "level", "seen"),
    [
        (Framework(), {}, Level.NOTE, "not installed"),
        (TWO, {}, Level.PROBLEM, "not installed"),
        (TWO, {"nvidia-nccl-cu12": "2.27.7"}, Level.PROBLEM, "nvidia-nccl-cu12 2.27.7 does not load"),
        (Framework(nccl=22707), {"nvidia-nccl-cu12": "2.27.7"}, Level.OK, "2.27.7 (wheel nvidia-nccl-cu12 2.27.7)"),
        (Framework(nccl=2708), {}, Level.OK, "2.7.8"),
        (dataclasses.replace(TWO, nccl=22707), {}, Level.OK, "2.27.7; 2 GPUs reduce by it"),
    ],
)
def test_nccl(asked: Framework, packages: dict[str, str], level: Level, seen: str) -> None:
    (finding,) = gpu_check.judge_nccl(asked, packages)
    assert (finding.level, finding.seen) == (level, seen)


def fake_driver(folder, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_driver_is_asked(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_driver(tmp_path, f'echo "{A100}"; echo "{A100}"')
    assert gpu_check.observe_driver(timeout_seconds=200) == Driver(present=True, gpus=(A100, A100))
    fake_driver(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9")
    assert gpu_check.observe_driver(timeout_seconds=200) == Driver(present=True, error="NVIDIA-SMI has failed")


def test_driver_that_hangs_is_left(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_driver(tmp_path, "exec sleep 600")
    driver = gpu_check.observe_driver(timeout_seconds=0.2)
    assert driver.present
    assert "did not end within 0.2 s" in driver.error


def test_no_driver(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_check.observe_driver(timeout_seconds=1) == Driver()


def test_the_deadline_ends_grandchildren_too() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    outcome = child.run([sys.executable, "-c", code], timeout_seconds=1)
    assert outcome.code is None
    assert "did not end within 1 s" in outcome.errors


def test_a_missing_program_is_an_outcome() -> None:
    outcome = child.run(["/no/such/program"], timeout_seconds=1)
    assert outcome.code is None
    assert "/no/such/program could not be started" in outcome.errors


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome(code=1, errors="Traceback\nImportError: no symbol"), "ImportError: no symbol"),
        (Outcome(code=None, errors="python did not end within 120 s"), "python did not end within 120 s"),
        (Outcome(code=-4, errors="Illegal"), "ended by signal 4; Illegal"),
        (Outcome(code=0), "it said nothing"),
    ],
)
def test_a_child_that_fails(outcome: Outcome, error: str) -> None:
    assert framework.interpret(outcome) == Framework(error=error)


def test_horovod_may_crash_the_child_and_hides_nothing() -> None:
    said = 'tfdist-doctor:{"version": "2.21.0", "build": {}, "gpus": [], "keras": "3.15.1"'
    outcome = Outcome(code=-11, output=f'{said}}}\n{said}, "nccl": 22707}}', errors="Fatal Python error")
    asked = framework.interpret(outcome)
    assert (asked.error, asked.keras, asked.nccl) == ("", "3.15.1", 22707)
    assert asked.horovod is None
    assert "signal 11" in asked.horovod_error
    assert asked.horovod_error.endswith(outcome.errors)


def test_what_the_child_says_is_read() -> None:
    said = 'tfdist-doctor:{"version": "2.21.0", "build": {"is_cuda_build": true}, "gpus": ["GPU:0"], "keras": "3.15.1",'
    said += ' "nccl": 22707, "horovod_error": "ImportError: x"}'
    asked = framework.interpret(Outcome(code=0, output=f"noise\n{said}\nmore noise"))
    assert asked == Framework(
        version="2.21.0",
        keras="3.15.1",
        build={"is_cuda_build": True},
        gpus=("GPU:0",),
        nccl=22707,
        horovod_error="ImportError: x",
    )
