"""`tfdist chaos`: a job meets its faults and gets over them, and the table says so."""

import os
import subprocess
import sys

import pytest

from tests.integration.agents import environment

pytestmark = [pytest.mark.timeout(120), pytest.mark.quick]

# the steps of a training, without TensorFlow
TRAIN = """
    from tfdist.launch.progress import Phase, Reporter
    reporter = Reporter.from_environment()
    reporter.phase(Phase.STEPPING)
    start = os.environ["TFDIST_RESTARTS"]
    tell(f"start {start} worker {ME}")
    wait_for(lambda: len(list(SHARED.glob(f"start {start} worker *"))) == 2)
    for tick in range(12):
        reporter.begins(tick)
        time.sleep(0.01)
        reporter.ends(tick)
"""


def ran(script, shared, *arguments):  # type: ignore[no-untyped-def]
    process = subprocess.run(
        [sys.executable, "-m", "tfdist", "chaos", *arguments, "--", "tfdist", "run", "-n", "2", str(script(TRAIN))],
        env=environment(shared),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return process.returncode, process.stdout, process.stderr


def test_two_faults_are_got_over(script, shared):  # type: ignore[no-untyped-def]
    code, out, err = ran(script, shared, "--faults", "kill,exit", "--count", "2", "--every", "4", "--seed", "1")
    assert code == 0, err
    rows = out[out.index("fault ") :].splitlines()
    assert "2 of 2 faults happened; the job ended with 0." in rows[-1]
    assert all("worker" in row and "failed" in row for row in rows[1:3]), rows
    assert not os.listdir(shared.parent / "tmp")


def test_a_fault_that_never_comes_is_said(script, shared):  # type: ignore[no-untyped-def]
    path = shared.parent / "plan.json"
    path.write_text('[{"kind": "kill", "step": 1000}]')
    code, out, err = ran(script, shared, "--plan", str(path))
    assert code == 0, err
    assert "did not happen" in out
    assert "0 of 1 faults happened" in out
