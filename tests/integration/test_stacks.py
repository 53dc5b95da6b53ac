"""`tfdist stacks` of jobs that run: of workers in a step, and of a chief and what serves it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.agents import DEADLINE_SECONDS, environment, told, wait_until
from tests.integration.forks import Forks
from tests.integration.steppers import STEPPER, happened, job
from tfdist.cluster.values import TaskId
from tfdist.launch.plan.plan import stacks_file
from tfdist.monitor.stacks import waits
from tfdist.monitor.stacks.frames import apart

pytestmark = pytest.mark.quick

STANDING = """
def stands():
    tell(f"stands {ME}")
    wait_told("enough")
train(3, inside=lambda tick: stands() if tick == 2 else None)
"""


def test_stacks_of_a_job_that_runs(script, shared: Path) -> None:  # type: ignore[no-untyped-def]
    with job("-n", 2, script(STEPPER + STANDING), shared=shared) as process:
        for worker in range(2):
            told(shared, f"stands {worker}")
        job_id = happened(shared)[0]["job"]
        command = [sys.executable, "-m", "tfdist", "stacks", "--seconds", "60"]
        run = {"env": environment(shared), "capture_output": True, "text": True}
        found = subprocess.run([*command, "--json", job_id[:8]], **run)  # type: ignore[call-overload]
        shown = subprocess.run([*command, "--threads", job_id], **run)  # type: ignore[call-overload]
        missing = subprocess.run([*command, "no such job"], **run)  # type: ignore[call-overload]
        (shared / "enough").write_text("x")
        process.communicate()
    assert (process.returncode, found.returncode, shown.returncode, missing.returncode) == (0, 0, 0, 2), found.stderr
    processes = json.loads(found.stdout)["processes"]
    assert [one["task"] for one in processes] == ["worker 0", "worker 1"]
    assert all(any(frame.startswith("stands (") for frame in one["threads"][0]["frames"]) for one in processes)
    assert "worker 1 (process " in shown.stdout
    assert "no job has an id like it" in missing.stderr


WAITING = """
import keras
import numpy as np
import tensorflow as tf
import tfdist

calls = 0

def within(values):
    global calls
    calls += 1
    if ME == 1 and calls == 4:
        tell("stands 1")
        wait_told("enough")
    return values

class Late(keras.layers.Layer):
    def call(self, inputs):
        return tf.ensure_shape(tf.numpy_function(within, [inputs], tf.float32), inputs.shape)

with tfdist.strategies.from_environment().scope():
    model = keras.Sequential([keras.Input((3,)), Late(), keras.layers.Dense(1, name="last")])
    model.compile("sgd", "mse")
model.fit(np.ones((48, 3)), np.ones(48), batch_size=8, shuffle=False, verbose=0)
"""


@pytest.mark.parametrize(
    "options", [["--strategy", "ring"], ["--strategy", "multi-worker", "--collectives", "tensorflow"]]
)
def test_the_collective_in_which_a_worker_waits(options, script, shared: Path, forking: Forks) -> None:  # type: ignore[no-untyped-def]
    with job("-n", 2, *options, script(WAITING), shared=shared, forking=forking) as process:
        told(shared, "stands 1")
        (folder,) = Path("/dev/shm").glob(f"tfdist-job-{happened(shared)[0]['job']}*")
        files = [stacks_file(folder, 0, TaskId(type="worker", index=worker)) for worker in range(2)]
        wait_until(lambda: waits.read(files[0]), "worker 0 does not say in what it waits")
        found = [waits.read(file) for file in files]
        (shared / "enough").write_text("x")
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, errors
    assert "sum" in found[0]
    assert "gradient of sequential/last/" in found[0]
    assert found[1] == "", "it computes"
    assert apart({"worker 0": found[0], "worker 1": found[1]}).endswith("; worker 1 in no collective")
