"""A process that is made slower: its share of the time, and that it always runs in the end."""

import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.servers.throttle import CYCLE_SECONDS, Throttle, stop_seconds
from tfdist.errors import ConfigError


@pytest.mark.parametrize(
    ("ran", "stopped", "factor", "expected"),
    [
        (0.01, 0.0, 3.0, 0.02),
        (0.01, 0.02, 3.0, 0.0),  # had its share
        (0.02, 0.05, 3.0, 0.0),  # was let go too late: nothing now
        (1.0, 0.5, 1.0, 0.0),  # not slower
        (100.0, 0.0, 3.0, 0.3),  # far behind: not all at once
    ],
)
def test_a_process_is_stopped_for_what_is_missing(ran: float, stopped: float, factor: float, expected: float) -> None:
    assert stop_seconds(ran, stopped, factor) == pytest.approx(expected)


@pytest.mark.parametrize("late", [0.0, 0.004, 0.05])
def test_the_share_is_right_also_where_every_turn_comes_late(late: float) -> None:
    ran = stopped = 0.0
    for _ in range(1000):
        ran += CYCLE_SECONDS / 3 + late
        stop = stop_seconds(ran, stopped, 3.0)
        stopped += stop + late if stop else 0.0
    assert (ran + stopped) / ran == pytest.approx(3.0, rel=0.01)


@pytest.fixture
def process() -> Iterator[psutil.Process]:
    """A process that sleeps."""
    with subprocess.Popen(["sleep", "600"]) as popen:
        yield psutil.Process(popen.pid)
        popen.kill()


def wait_until_stopped(process: psutil.Process) -> None:
    deadline = time.monotonic() + 200
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, "it was never stopped"
        time.sleep(0.001)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_a_process_runs_when_the_block_is_left(process: psutil.Process, error: type[BaseException] | None) -> None:
    def block() -> None:
        with Throttle(process.pid, 50.0):
            wait_until_stopped(process)
            if error is not None:
                raise error

    if error is None:
        block()
    else:
        with pytest.raises(error):
            block()
    for _ in range(20):
        assert process.status() != psutil.STATUS_STOPPED
        time.sleep(0.005)


def test_a_process_that_ends_is_left_alone() -> None:
    sent: list[int] = []

    def gone(pid: int, number: int) -> None:
        sent.append(number)
        raise ProcessLookupError

    with Throttle(123, 3.0, send=gone) as throttle:
        throttle._thread.join(200)
        assert not throttle._thread.is_alive()
    assert sent[0] == signal.SIGSTOP
    assert set(sent[1:]) == {signal.SIGCONT}


@pytest.mark.parametrize("factor", [0.5, float("nan")])
def test_a_process_is_not_made_faster(factor: float) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Throttle(123, factor)
