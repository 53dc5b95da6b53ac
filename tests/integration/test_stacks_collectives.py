"""`tfdist stacks` of workers of which one does not come: the others are named with the collective that they wait in."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.agents import DEADLINE_SECONDS, PRELUDE, environment, told
from tests.integration.forks import Forks
from tests.integration.steppers import happened
from tfdist.variables import COLLECTIVES

SCRIPT = (
    PRELUDE
    + """
import keras, numpy as np, tensorflow as tf, tfdist

steps = [0]

def stands():
    steps[0] += 1
    if ME == 1 and steps[0] == 3:
        tell("stands")
        wait_told("enough")
    return np.float32(0)

class Stands(keras.layers.Layer):
    def call(self, values):
        zero = tf.numpy_function(stands, [], tf.float32)
        zero.set_shape([])
        return values + zero

with tfdist.strategies.from_environment().scope():
    model = keras.Sequential([keras.Input((4,)), Stands(), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
model.fit(np.zeros((80, 4)), np.zeros((80, 1)), batch_size=8, epochs=1, verbose=0)
"""
)


@pytest.mark.parametrize(("strategy", "collectives"), [("multi-worker", "tensorflow"), ("ring", "auto")])
def test_who_waits_in_a_collective_and_who_does_not_come_are_told_apart(
    strategy: str, collectives: str, forking: Forks, shared: Path
) -> None:
    script = shared / "train.py"
    script.write_text(SCRIPT)
    env = environment(shared, **{COLLECTIVES.name: collectives})
    command = ["run", "--event-file", str(shared / "events"), "--strategy", strategy, "-n", "2", str(script)]
    with forking.start("tfdist", *command, **env) as process:
        told(shared, "stands")
        job = happened(shared)[0]["job"]
        stacks = [sys.executable, "-m", "tfdist", "stacks", "--json", "--seconds", "60", job]
        deadline, waits = time.monotonic() + DEADLINE_SECONDS, ["", ""]
        while not waits[0]:
            assert time.monotonic() < deadline, "the worker that waits does not say so"
            found = subprocess.run(stacks, env=environment(shared), capture_output=True, text=True, check=True)
            waits = [one["waits"] for one in json.loads(found.stdout)["processes"]]
        (shared / "enough").write_text("x")
        out, err = (written.decode() for written in process.communicate())
    assert process.returncode == 0, out + err
    # the four weights of the layer, or three numbers that the step has for the loss: either may be begun first
    assert re.match(r"all_reduce \(sum, float32\) of (16|12) bytes", waits[0]), waits
    assert waits[1] == ""
