"""The command's words; nothing is built here."""

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

import tfdist_horovod as build
from tfdist.cli.common.progress import unwinding
from tfdist.cli.main import main
from tfdist.errors import TfdistError
from tfdist_horovod import mpi_for_build
from tfdist_horovod.command import described
from tfdist_horovod.gpu import FROM_WHEELS

BUILT = build.Outcome(
    version="0.28.1", tensorflow="2.21.0", built_in=("gloo", "nccl"), was="built", wheel=Path("/c/horovod.whl")
)


def test_help_teaches() -> None:
    done = CliRunner().invoke(main, ["build", "horovod", "--help"])
    assert done.exit_code == 0
    for word in (
        "--gpu",
        "--mpi",
        "--force",
        "--no-install",
        "--jobs",
        "--log",
        "g++",
        "TFDIST_CACHE_DIR",
        "Exit code",
    ):
        assert word in done.output
    assert "horovod" in CliRunner().invoke(main, ["build", "--help"]).output


def test_what_was_done_is_said() -> None:
    said = described(BUILT, seconds=86.4)
    assert "built with gloo, nccl" in said
    assert "in 86 s" in said
    assert "/c/horovod.whl" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--jobs", "0"],
        ["--jobs", "many"],
        ["--gpus"],
        ["--mpi-home", "/"],
        ["--mpi", "--mpi-home", "/proc"],
        ["--cuda-home", "/"],
        ["--gpu", "--cuda-home", "/nowhere"],
        ["--log", "/"],
        ["now"],
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["build", "horovod", *arguments]).exit_code == 2


def test_options_reach_the_build_and_its_stages_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def install(options: build.Options, **more: object) -> build.Outcome:
        asked.update(more, options=options)
        for percent in range(0, 101, 2):
            more["on_progress"]("compiling", percent / 100)  # type: ignore[operator]
        return BUILT

    monkeypatch.setattr("tfdist_horovod.command.install", install)
    done = CliRunner().invoke(main, ["build", "horovod", "--gpu", "--mpi", "--force", "--no-install", "--jobs", "3"])
    assert done.exit_code == 0
    assert asked["options"].mpi == mpi_for_build.FROM_WHEEL
    assert (asked["options"].cuda, asked["force"], asked["only_cache"], asked["jobs"]) == (
        FROM_WHEELS,
        True,
        True,
        3,
    )
    lines = [line for line in done.output.splitlines() if line.startswith("compiling")]
    assert (lines[0], lines[-1]) == ("compiling 0%", "compiling 100%")
    assert len(lines) <= 11


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_the_stack(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught, unwinding():
        signal.raise_signal(number)
    assert caught.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwinding():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_failure_is_the_message_and_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def install(*_: object, **__: object) -> None:
        raise TfdistError("Horovod was not built: because")

    monkeypatch.setattr("tfdist_horovod.command.install", install)
    done = CliRunner().invoke(main, ["build", "horovod"])
    assert done.exit_code == 1
    assert "Horovod was not built: because" in done.output
