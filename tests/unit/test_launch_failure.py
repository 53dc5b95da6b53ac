"""The verdict: who failed first, which code that gives, and how it reads."""

import json
import math
from pathlib import Path

import pytest

from tests.refusals import absent
from tfdist.processes.worker_failure import (
    HOST_LOST,
    Failure,
    Record,
    format_report,
    how_it_ended,
    in_short,
    own_failures,
    read_record,
    when_it_ended,
)

NEVER = math.inf
TRACE = "Traceback (most recent call last):\n  File ...\nValueError: {}\n"


def failure(worker: int, time: float, returncode: int = 1, *, error: str = "", exit_code: int = 1) -> Failure:
    record = None
    if error:
        trace = TRACE.format(error)
        record = Record(clock=time, type="ValueError", message=error, traceback=trace, exit_code=exit_code)
    return Failure(worker=worker, time=time, returncode=returncode, record=record)


def who(failures: tuple[Failure, ...]) -> list[int]:
    return [one.worker for one in failures]


def test_the_first_by_time_is_the_root_cause() -> None:
    late, early = failure(0, 9.0, error="collective failed"), failure(1, 2.0, error="boom")
    assert who(own_failures([late, early], stopped_at=9.0, received=None)) == [1, 0]


def test_a_death_that_is_seen_a_moment_late_is_still_the_cause() -> None:
    followed, killed = failure(0, 2.0, error="connection reset by peer"), failure(1, 2.01, -9)
    assert who(own_failures([followed, killed], stopped_at=2.2, received=None)) == [1, 0]
    out_of_memory_later = failure(1, 3.5, -9)
    assert who(own_failures([followed, out_of_memory_later], stopped_at=4.0, received=None)) == [0, 1]
    aborted = failure(1, 2.01, -6)  # so TensorFlow ends a process whose peer is gone
    assert who(own_failures([followed, aborted], stopped_at=2.2, received=None)) == [0, 1]


def test_a_record_after_the_request_to_end_is_a_later_failure() -> None:
    killed, cascade = failure(1, 2.0, -9), failure(0, 2.5, error="collective failed")
    assert who(own_failures([cascade, killed], stopped_at=2.0, received=None)) == [1, 0]


def test_who_was_asked_to_end_or_ended_well_did_not_fail() -> None:
    asked = [failure(0, 3.0, -15), failure(2, 13.0, -9)]
    assert who(own_failures([*asked, failure(1, 2.0, 3), failure(3, 1.0, 0)], stopped_at=2.0, received=None)) == [1]


def test_after_a_signal_to_the_agent_only_earlier_failures_count() -> None:
    ending = [failure(0, 3.0, 1, error="interrupted"), failure(1, 3.1, -2)]
    assert own_failures(ending, stopped_at=2.0, received=2) == ()
    assert who(own_failures([*ending, failure(2, 1.0, -15, error="x")], stopped_at=2.0, received=2)) == [2]


def test_a_signal_to_every_process_may_reach_a_worker_first() -> None:
    interrupted = failure(0, 9.9, 130)
    followed = failure(1, 9.8, error="connection reset by peer")
    assert own_failures([interrupted, followed], stopped_at=10.0, received=2) == ()
    assert who(own_failures([interrupted, followed], stopped_at=10.0, received=15)) == [1, 0]
    assert who(own_failures([followed], stopped_at=10.0, received=2)) == [1]
    long_before = failure(2, 8.0, 3)
    assert who(own_failures([interrupted, long_before], stopped_at=10.0, received=2)) == [2]


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (failure(0, 0.0, 3), 3),
        (failure(0, 0.0, -11), 139),
        (failure(0, 0.0, 255), 255),
        (failure(0, 0.0, 1, error="x"), 1),
        (failure(0, 0.0, -15, error="ended while it was failing"), 1),
        (failure(0, 0.0, -2, error="KeyboardInterrupt", exit_code=130), 130),
    ],
)
def test_exit_codes(one: Failure, code: int) -> None:
    assert one.exit_code == code


def test_how_it_ended() -> None:
    assert how_it_ended(3) == "exit code 3"
    assert how_it_ended(-11) == "killed by SIGSEGV (signal 11)"
    assert how_it_ended(-63) == "killed by a signal (signal 63)"


def test_the_report() -> None:
    text = format_report([failure(1, 5.0, error="boom"), failure(0, 7.0, -6)], workers=2, started=3.0)
    first, *trace, later = text.splitlines()
    assert not absent(first, "worker 1 of 2", "2.0 s", "exit code 1")
    assert trace == ["  " + line for line in TRACE.format("boom").splitlines()]
    assert not absent(later, "2.0 s", "worker 0", "SIGABRT", "signal 6")


def test_a_failure_in_short_states_the_cause_and_not_the_layer_in_which_it_was_met() -> None:
    caught = "Exception encountered when calling Mine.call().\n\n\x1b[1mno such row.\x1b[0m\n\nArguments received"
    assert in_short(failure(1, 7.0, error=caught)) == "ValueError: no such row"
    of_autograph = 'in user code:\n\n    File "a.py", line 3, in f\n        g()\n\n    ValueError: no such row\n'
    assert in_short(failure(1, 7.0, error=of_autograph)) == "ValueError: no such row"
    assert in_short(failure(1, 7.0, error="  indented\n  too")) == "ValueError: indented"


def test_the_report_of_a_single_worker_does_not_repeat_the_traceback() -> None:
    text = format_report([failure(0, 5.0, error="boom")], workers=1, started=3.0)
    assert not absent(text, "the script", "2.0 s", "exit code 1")
    assert "\n" not in text
    # what it has not written itself is told
    record = Record(clock=5.0, type=HOST_LOST, message="gone", traceback="host a is gone\n", exit_code=1)
    lost = Failure(worker=0, time=5.0, returncode=1, record=record)
    assert format_report([lost], workers=1, started=3.0) == f"{text}\n  host a is gone"


@pytest.mark.parametrize(
    ("returncode", "advice"),
    [(-9, "memory"), (-11, "PYTHONFAULTHANDLER"), (-6, "TF_ENABLE_ONEDNN_OPTS"), (4, "output above")],
)
def test_a_death_without_a_record_comes_with_advice(returncode: int, advice: str) -> None:
    assert advice in format_report([failure(0, 1.0, returncode)], workers=2, started=0.0)


GOOD = {"time": 1.0, "clock": 2.0, "type": "ValueError", "message": "é", "traceback": "t", "exit_code": 1}


def test_a_record_is_read(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.json"
    path.write_text(json.dumps(GOOD))
    assert read_record(path) == Record(clock=2.0, type="ValueError", message="é", traceback="t", exit_code=1)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000, *(json.dumps(change).encode() for change in (
        {**GOOD, "clock": "x"}, {**GOOD, "clock": math.nan}, {**GOOD, "type": 1}, {**GOOD, "exit_code": 0},
        {**GOOD, "exit_code": 999}, {**GOOD, "exit_code": math.inf}, {k: v for k, v in GOOD.items() if k != "message"},
    ))],
)  # fmt: skip
def test_what_is_no_record_is_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "worker-0.json"
    path.write_bytes(content)
    assert read_record(path) is None
    assert read_record(tmp_path) is None


def test_a_death_before_the_agent_acted_is_the_cause_though_it_is_heard_after_an_exception() -> None:
    followed = failure(1, 2.0, 1, error="a peer is gone")

    def order(was_seen: bool) -> list[int]:
        killed = failure(0, when_it_ended(2.3, stopped_at=2.1, was_seen=was_seen), -9)
        return who(own_failures([followed, killed], stopped_at=2.1, received=None))

    assert order(was_seen=True) == [0, 1]
    assert order(was_seen=False) == [1]  # the agent has killed it
    assert when_it_ended(1.9, stopped_at=2.1, was_seen=True) == 1.9
    assert when_it_ended(1.9, stopped_at=float("inf"), was_seen=False) == 1.9
