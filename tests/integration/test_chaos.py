"""`tfdist chaos`: a job meets its faults and gets over them, and the table says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.agents import environment, says

DEADLINE_SECONDS = 800
RESUMABLE = Path(__file__).parent / "cases" / "resumable.py"

# the steps of a training, without TensorFlow
TRAIN = """
    from tfdist.monitor.phases import Kind, Phase
    from tfdist.monitor.process_clock import step_clock
    step_clock().enter(Phase.EXECUTE)
    start = os.environ["TFDIST_RESTARTS"]
    tell(f"start {start} worker {ME}")
    wait_for(lambda: len(list(SHARED.glob(f"start {start} worker *"))) == 2)
    for tick in range(12):
        with step_clock().step(Kind.TRAIN, Phase.EXECUTE):
            time.sleep(0.01)
"""


def chaos(shared, *arguments, **variables):  # type: ignore[no-untyped-def]
    process = subprocess.run(
        [sys.executable, "-m", "tfdist", "chaos", *arguments],
        env=environment(shared, **variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


def ran(script, shared, *arguments):  # type: ignore[no-untyped-def]
    return chaos(shared, *arguments, "--", "tfdist", "run", "-n", "2", str(script(TRAIN)))


@pytest.mark.quick
def test_two_faults_are_got_over(script, shared):  # type: ignore[no-untyped-def]
    code, out, err = ran(script, shared, "--faults", "kill,exit", "--count", "2", "--every", "4", "--seed", "1")
    assert code == 0, err
    rows = out[out.index("fault ") :].splitlines()
    assert says(rows[-1], "2 of 2 faults", " 0.")
    assert all("worker" in row and "failed" in row for row in rows[1:3]), rows
    assert not os.listdir(shared.parent / "tmp")


@pytest.mark.quick
def test_a_fault_that_never_comes_is_said(script, shared):  # type: ignore[no-untyped-def]
    path = shared.parent / "plan.json"
    path.write_text('[{"kind": "kill", "step": 1000}]')
    code, out, err = ran(script, shared, "--plan", str(path))
    assert code == 0, err
    assert "did not happen" in out
    assert "0 of 1 faults happened" in out


@pytest.mark.readme("tfdist chaos -- tfdist run --strategy ring -n 2 train.py")
def test_a_training_on_the_ring_is_killed_and_then_its_backup_meets_a_full_disk(shared, forking):  # type: ignore[no-untyped-def]
    path, result = shared.parent / "plan.json", shared / "result"
    faults = [{"kind": "kill", "worker": 1, "step": 2}, {"kind": "disk-full", "at": "save-begin", "restart": 1}]
    path.write_text(json.dumps(faults))
    training = [str(RESUMABLE), str(result), str(shared / "backup"), "tfdist", "1"]
    patient = ["--hang-seconds", "60"]  # a busy machine may hold a step up for longer than the usual 2 s
    job = ["tfdist", "run", *patient, "--strategy", "ring", "-n", "2", *training]
    with forking.start("tfdist", "chaos", "--plan", str(path), "--", *job) as process:
        out, err = (written.decode() for written in process.communicate())
    assert process.returncode == 0, err
    kill, full, last = out[out.index("fault ") :].splitlines()[1:]
    assert says(kill, "worker 1 ", "SIGKILL")
    assert "continued" in full
    assert "could not be saved" in out + err
    assert says(last, "2 of 2 faults", " 0.")
    assert len(json.loads(result.read_text())["epochs"]) == 2
