"""The benchmark of recoveries without TensorFlow: what is computed from what jobs have noted, its table and JSON."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.jobs import recovery_jobs
from benchmarks.jobs.recovery_jobs import Job, of_events, of_notes
from benchmarks.jobs.recovery_race import PEER, STRATEGIES, RecoveryBench
from tfdist.errors import TfdistError
from tfdist.monitor.fault_plan import Fault, FaultPlan

KILL = Fault(kind="kill", worker=1, step=11)
HAPPENED = [{"fault": KILL.as_json(), "step": 11, "clock": 100.0}]
SIZE = {"event": "size", "clock": 89.0, "variables": 50, "bytes": 1000}


def job(*recovered: float, workers: int = 2, size: int = 1000) -> Job:
    noticed = [0.01] * len(recovered)
    repeated = list(range(len(recovered)))
    return Job(
        noticed=noticed,
        recovered=recovered,
        repeated=repeated,
        workers=workers,
        step_seconds=0.02,
        variables=50,
        bytes=size,
    )


def test_what_a_job_of_tfdist_has_shown() -> None:
    events: list[dict[str, Any]] = [
        {"event": "started", "start": 0, "clock": 80.0},
        {"event": "stepping", "start": 0, "clock": 99.0, "workers": 2, "lost": 0},
        {"event": "failed", "start": 0, "clock": 100.25, "text": "worker 1 failed"},
        {"event": "stepping", "start": 1, "clock": 101.5, "workers": 2, "lost": 1},
    ]
    plan = FaultPlan(faults=(KILL,))
    assert of_events(plan, HAPPENED, events, [SIZE]) == Job(
        noticed=[0.25], recovered=[1.5], repeated=[1], workers=2, step_seconds=0.1, variables=50, bytes=1000
    )
    with pytest.raises(TfdistError, match="did not recover"):
        of_events(plan, HAPPENED, events[:-1], [SIZE])
    with pytest.raises(TfdistError, match="did not recover"):
        of_events(plan, [], events, [SIZE])


def test_what_a_job_of_horovod_has_shown() -> None:
    notes = [
        SIZE,
        {"event": "stepping", "clock": 98.0, "workers": 2, "step": 0, "rank": 0},
        {"event": "stepping", "clock": 99.0, "workers": 2, "step": 0, "rank": 1},
        {"event": "noticed", "clock": 100.5},
        {"event": "stepping", "clock": 102.0, "workers": 1, "step": 10, "rank": 0},
    ]
    assert of_notes(HAPPENED, notes) == Job(
        noticed=[0.5], recovered=[2.0], repeated=[1], workers=1, step_seconds=0.1, variables=50, bytes=1000
    )
    with pytest.raises(TfdistError, match="stepped again"):
        of_notes(HAPPENED, notes[:-1])
    with pytest.raises(TfdistError, match="no worker was killed"):
        of_notes([], notes)
    with pytest.raises(TfdistError, match="its state is"):
        of_notes(HAPPENED, notes[1:])


def test_a_peer_that_fails_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []

    def horovod_job(asked: object, folder: Path) -> Job:
        raise TfdistError("it cannot")

    def tfdist_job(asked: object, strategy: str, folder: Path) -> Job:
        turns.append(strategy)
        return job(1.0)

    monkeypatch.setattr(recovery_jobs, "has_horovod", lambda: True)
    monkeypatch.setattr(recovery_jobs, "horovod_job", horovod_job)
    monkeypatch.setattr(recovery_jobs, "tfdist_job", tfdist_job)
    found = RecoveryBench(rounds=2).run()
    assert found.way(PEER).why_not == "it cannot"
    assert turns == [*STRATEGIES] * 2
    monkeypatch.setattr(recovery_jobs, "horovod_job", lambda setup, folder: job(1.0, workers=1, size=999))
    with pytest.raises(TfdistError, match="the states differ"):
        RecoveryBench(rounds=1).run()
    monkeypatch.setattr(recovery_jobs, "has_horovod", lambda: False)
    assert [bool(way.why_not) for way in RecoveryBench(rounds=1).run().ways] == [True, False, False, True, True]
