"""The verdict that follows from replies and outcomes."""

import math
from dataclasses import replace

import pytest

from tfdist.testing.pool import Reply
from tfdist.verify import cell_judge
from tfdist.verify.feature import features

EVEN = features()["even"]
RETURNED = Reply(worker=0, status="returned")
RAISED = Reply(
    worker=0, status="raised", types=("InvalidArgumentError", "OpError"), message="shapes [3] vs [2]", seconds=2.0
)
EXITED = Reply(worker=1, status="exited", message="the process ended: killed by SIGKILL (signal 9)", seconds=1.0)
SILENT = Reply(worker=1, status="silent", message="no answer after 60 s", seconds=0.5)
STACKS = """Thread 0x1 (most recent call first):
  File "threading.py", line 1 in wait
Thread 0x2 (most recent call first):
  File "fit.py", line 7 in step
  File "main.py", line 9 in main
"""


def test_no_failure_is_no_verdict() -> None:
    assert cell_judge.failure(EVEN, [RETURNED, replace(RETURNED, worker=1)]) is None


def test_an_exception_is_an_error_by_its_name_with_its_calls() -> None:
    place = 'File "a.py", line 3, in f'
    detail = f"Traceback:\n  {place}\n    x = secret\nInvalidArgumentError: ..."
    verdict = cell_judge.failure(EVEN, [replace(RAISED, detail=detail)])
    assert verdict is not None
    assert (verdict.status, verdict.error) == ("error", "InvalidArgumentError")
    assert verdict.detail.splitlines() == [RAISED.message, place]


def test_the_first_failure_by_time_is_the_cause() -> None:
    verdict = cell_judge.failure(EVEN, [RAISED, EXITED])
    assert verdict is not None
    assert verdict.status == "crash"
    assert verdict.detail == f"worker 1: {EXITED.message}"


def test_a_worker_that_waits_for_a_failed_one_is_no_hang() -> None:
    verdict = cell_judge.failure(EVEN, [RAISED, SILENT])
    assert verdict is not None
    assert verdict.status == "error"
    assert "another worker" in verdict.detail


def test_a_hang_shows_where_the_main_thread_stands() -> None:
    verdict = cell_judge.failure(EVEN, [replace(SILENT, detail=STACKS)])
    assert verdict is not None
    assert verdict.status == "hang"
    assert "fit.py" in verdict.detail
    assert "threading.py" not in verdict.detail


@pytest.mark.parametrize(("may_refuse", "status"), [(True, "refused"), (False, "error")])
def test_a_refusal_counts_where_it_is_allowed(may_refuse: bool, status: str) -> None:
    reply = replace(RAISED, types=("UnsupportedError", "TfdistError", "NotImplementedError", "Exception"))
    verdict = cell_judge.failure(replace(EVEN, may_refuse=may_refuse), [reply])
    assert verdict is not None
    assert verdict.status == status


def test_a_foreign_error_is_no_refusal() -> None:
    verdict = cell_judge.failure(replace(EVEN, may_refuse=True), [RAISED])
    assert verdict is not None
    assert verdict.status == "error"


def test_every_worker_must_equal_the_reference() -> None:
    good, bad = {"a": 1.0}, {"a": 1.1}
    assert cell_judge.equality(EVEN, [good, good], good).status == "green"
    verdict = cell_judge.equality(EVEN, [good, bad], good)
    assert verdict.status == "wrong"
    assert verdict.detail.startswith("worker 1: a: 1.1")


@pytest.mark.parametrize(("difference", "status"), [(0.9e-5, "green"), (1.1e-5, "wrong"), (math.nan, "wrong")])
def test_the_tolerance_is_the_features(difference: float, status: str) -> None:
    assert cell_judge.equality(EVEN, [{"a": difference}], {"a": 0.0}).status == status
    loose = replace(EVEN, tolerance=1e-3)
    assert cell_judge.equality(loose, [{"a": 1.1e-5}], {"a": 0.0}).status == "green"


@pytest.mark.parametrize("name", ["weights/00 kernel", "optimizer/01 momentum", "second: weights/00 kernel"])
def test_a_reference_that_diverged_proves_nothing(name: str) -> None:
    outcome = {name: [1.0, math.nan]}
    verdict = cell_judge.equality(EVEN, [outcome], outcome)
    assert (verdict.status, verdict.error) == ("error", "NaN on one device")
    losses = {"history/loss": [math.nan]}
    assert cell_judge.equality(EVEN, [losses], losses).status == "green"


def test_a_failed_reference_is_an_error_of_the_cell() -> None:
    verdict = cell_judge.without_reference(cell_judge.Verdict(status="hang", detail="no answer"))
    assert (verdict.status, verdict.error, verdict.detail) == ("error", "hang on one device", "no answer")
