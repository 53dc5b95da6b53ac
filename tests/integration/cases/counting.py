"""A training that counts how often it has seen each example, while the number of workers changes.

The weight of an example begins at 0 and gets 1 for each time that the example is in a batch, whatever replica it is on.

python counting.py RESULT BACKUP DATA        DATA: {"x": 0 ... 39, "seen": 1.0 each}

With ACCUMULATE an update is made of so many batches, and the number of workers changes in the middle of one.
"""

import json
import os
import subprocess
import sys
import time

import keras

import tfdist
from tfdist.callbacks import BackupAndRestore
from tfdist.monitor.process_clock import step_clock
from tfdist.optimizers import DistributedOptimizer

EXAMPLES, BATCH, EPOCHS = 40, 8, 6
BATCHES = int(os.environ.get("ACCUMULATE", "1"))  # of an update
SIZES = {4 // BATCHES: 3, 17 // BATCHES: 2}  # updates: number of workers from about then on


class Resize(keras.callbacks.Callback):
    """Asks for another number of workers, as a user would in another terminal."""

    def on_train_batch_begin(self, batch, logs=None):
        size = SIZES.get(int(self.model.optimizer.iterations.numpy()))
        if size and size != tfdist.cluster.from_environment().num_workers:
            command = [sys.executable, "-m", "tfdist", "resize", os.environ["TFDIST_JOB_ID"], str(size)]
            subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + 200
            while not step_clock().reporter.is_asked_to_hold and time.monotonic() < deadline:
                time.sleep(0.01)  # else training would be over before the other process has started


def main(result, backup, data):
    keras.utils.set_random_seed(1)
    strategy = tfdist.strategies.from_environment()
    cluster = tfdist.cluster.from_environment()
    train = tfdist.data.read(data, global_batch_size=BATCH, seed=3, label="seen")
    with strategy.scope():
        model = keras.Sequential([keras.Input((), dtype="int64"), keras.layers.Embedding(EXAMPLES, 1, "zeros")])
        optimizer = keras.optimizers.SGD(float(BATCH * BATCHES))
        if BATCHES > 1:
            optimizer = DistributedOptimizer(optimizer, accumulate_steps=BATCHES)
        model.compile(optimizer, lambda seen, weight: -keras.ops.mean(weight, axis=-1))
    sizes = []
    resize = [Resize()] if cluster.is_chief else []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: sizes.append(cluster.num_workers))
    model.fit(train, epochs=EPOCHS, verbose=0, callbacks=[*resize, note, BackupAndRestore(backup)])
    if cluster.is_chief:
        counts = model.get_weights()[0][:, 0]
        content = {"counts": counts.tolist(), "steps": int(model.optimizer.iterations.numpy()), "sizes": sizes}
        with open(result, "w", encoding="utf-8") as file:
            json.dump(content, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
