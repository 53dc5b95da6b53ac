"""A training in which one worker is late on purpose: in an epoch each, in its input, a pass, its update, or nowhere.

    python monitored.py FOLDER STEPS JSON        JSON: [["backward", worker, seconds], ...], one for each epoch

WIDTH in the environment is that of the layers; PASSES, as JSON, says how long each worker sleeps in any case, such as
{"forward": 0.06, "backward": 0.1, "update": 0.02}: then steps take as long on a machine that does other things.

At the end each worker leaves its record of the steps in FOLDER.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.integration.cases.late import behind, network
from tfdist.monitor.process_clock import recorder

FOLDER, STEPS, PLAN = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
BATCH, WIDTH = 32, int(os.environ.get("WIDTH", "64"))
PASSES = json.loads(os.environ.get("PASSES", "{}"))
me = int(os.environ.get("TFDIST_WORKER_INDEX") or 0)
now = {"epoch": 0}


def late(where: str) -> Any:
    """Return a function of a tensor that comes late in the epochs of which the plan says so."""

    def pause() -> np.int64:
        here, worker, seconds = PLAN[min(now["epoch"], len(PLAN) - 1)]
        longer = seconds if here == where and worker == me else 0.0
        if longer or where in PASSES:
            time.sleep(PASSES.get(where, 0.0) + longer)
        return np.int64(0)

    return behind(pause)


class Epochs(keras.callbacks.Callback):
    """Keeps the number of the epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        now["epoch"] = epoch


def batches() -> Any:
    """Yield batches; what sleeps here is not hidden by what reads ahead, if it takes longer than a step."""
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        yield random.standard_normal((BATCH, 64), np.float32), random.integers(0, 10, BATCH)


keras.utils.set_random_seed(1)
with tfdist.strategies.from_environment().scope():
    model = network(WIDTH, late)
specs = (tf.TensorSpec([BATCH, 64]), tf.TensorSpec([BATCH], tf.int64))
data = tf.data.Dataset.from_generator(batches, output_signature=specs)
data = data.map(lambda x, y: (late("input")(x), y)).apply(tf.data.experimental.assert_cardinality(STEPS))
model.fit(data, epochs=len(PLAN), verbose=0, callbacks=[Epochs()])
found = recorder()
if found is not None:
    found.flush()
    shutil.copy(found.path, FOLDER / f"worker-{me}")
