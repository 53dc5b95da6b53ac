"""A job that is monitored: who is late on purpose is named, with the cause, whatever the engine; and parts add up."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.agents import DEADLINE_SECONDS, another_host, told, wait_until
from tests.integration.forks import Forks
from tests.integration.steppers import happened, job
from tfdist.monitor.recording.rows import NORM_EVERY
from tfdist.monitor.verdict.job_bound import Bound, judge, read_folder
from tfdist.monitor.verdict.step_parts import Part, Timeline, timeline
from tfdist.monitor.watch.observing import Observer

CASE = Path(__file__).parent / "cases" / "monitored.py"
STEPS = 40
# far more than what other programs on the machine do to a step
SECONDS = 0.08
PLAN = [
    ["input", 1, SECONDS],
    ["forward", 0, SECONDS],
    ["backward", 1, SECONDS],
    ["update", 0, SECONDS],
]


def recorded(shared: Path, options: list[str], forking: Forks) -> Timeline:
    with job(
        "--monitor", "-n", 2, *options, CASE, shared, STEPS, json.dumps(PLAN), shared=shared, forking=forking
    ) as run:
        _, errors = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0, errors.decode(errors="replace")[-3000:]
    return timeline(read_folder(shared))


@pytest.mark.readme("tfdist run --monitor --strategy multi-worker -n 2 train.py")
@pytest.mark.parametrize("options", [["--strategy", "multi-worker", "--collectives", "native"], ["--strategy", "ring"]])
def test_who_is_late_is_named_with_the_cause(options: list[str], shared: Path, forking: Forks) -> None:
    found = recorded(shared, options, forking)
    assert found.is_divided
    np.testing.assert_allclose(found.parts.sum(axis=2), found.step, rtol=0.01)
    assert np.isfinite(found.loss).all()
    norms = found.gradient_norm
    measured = ~np.isnan(norms)
    np.testing.assert_array_equal(np.diff(np.flatnonzero(measured[:, 0])), NORM_EVERY)
    np.testing.assert_array_equal(norms[:, 0], norms[:, 1], "the gradient of the global batch is one")
    assert (norms[measured] > 0).all()
    starts = int(found.steps[0]) - int(found.steps[0]) % STEPS
    for number, (where, worker, _) in enumerate(PLAN):
        epoch = (found.steps - starts) // STEPS == number
        verdict = judge(found.only(epoch))
        parts = {Part[where.upper()]}
        if len(os.sched_getaffinity(0)) == 1:  # the other worker's passes are then between this one's
            parts.add(Part.COMPUTE)
        assert (verdict.bound, verdict.rank) == (Bound.STRAGGLER, worker), verdict
        assert verdict.part in parts, verdict
        assert 0 < verdict.won_seconds < verdict.step_seconds
    alerts = {(one["alert"], one["worker"]) for one in happened(shared) if one["event"] == "alert"}
    assert {("slow_worker", 0), ("slow_worker", 1)} <= alerts
    (verdict_event,) = (one for one in happened(shared) if one["event"] == "verdict")
    assert set(verdict_event["parts"]) == {"0", "1"}


WAITING = """
from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.process_clock import step_clock
for _ in range(30):
    with step_clock().step(Kind.TRAIN, Phase.INPUT):
        time.sleep(0.002)
step_clock().epoch_ends()
tell(f"stepped {ME}")
wait_told("enough")
"""


def test_the_verdict_is_told_at_a_signal_and_at_the_end(script, shared: Path) -> None:  # type: ignore[no-untyped-def]
    with job("--monitor", "-n", 2, script(WAITING), shared=shared) as run:
        for worker in range(2):
            told(shared, f"stepped {worker}")
        run.send_signal(signal.SIGUSR1)
        wait_until(lambda: [one for one in happened(shared) if one["event"] == "verdict"], "no verdict")
        (shared / "enough").write_text("x")
        _, errors = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0
    verdicts = [one for one in happened(shared) if one["event"] == "verdict"]
    assert [(one["bound"], one["worker"], one["steps"]) for one in verdicts] == [("input", None, 30)] * 2
    assert not [one for one in happened(shared) if one["event"] == "alert"]  # 30 steps are too few to say so
    assert errors.decode().count("bound by input") == 2


def test_on_two_hosts_it_is_of_the_workers_of_both(script, shared: Path) -> None:  # type: ignore[no-untyped-def]
    hosts = ("--hosts", "one=127.0.0.1,two=127.0.0.2", "--ssh-command", f"'{another_host(shared)}'")
    with job("--monitor", *hosts, script(WAITING), shared=shared) as run:
        for worker in range(2):
            told(shared, f"stepped {worker}")

        seen: list[Any] = []

        def came() -> bool:
            found = Observer(happened(shared)[0]["job"]).look()
            assert found is not None
            seen[:] = found.workers
            return all(one.step == 30 and one.parts for one in seen)

        wait_until(came, "not all steps of both")
        assert [one.memory for one in seen] == [None] * 2
        assert all(one.parts["input"] > 0.001 for one in seen)
        run.send_signal(signal.SIGUSR1)
        wait_until(lambda: [one for one in happened(shared) if one["event"] == "verdict"], "no verdict")
        (shared / "enough").write_text("x")
        _, errors = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0, errors
    verdict = [one for one in happened(shared) if one["event"] == "verdict"][-1]
    assert (verdict["bound"], verdict["steps"], set(verdict["parts"])) == ("input", 30, {"0", "1"})


def test_nothing_is_recorded_without_being_asked_for(script, shared: Path) -> None:  # type: ignore[no-untyped-def]
    path = script("from tfdist.monitor.process_clock import recorder\nassert recorder() is None\n")
    with job("-n", 1, path, shared=shared) as run:
        _, errors = run.communicate(timeout=DEADLINE_SECONDS)
    assert (run.returncode, b"bound by" in errors) == (0, False)
