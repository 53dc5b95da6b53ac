"""A training that can be killed anywhere, and what it has come to as JSON: everything that must be equal to the bit.

python resumable.py RESULT BACKUP DATA SAVE_FREQ

With ASYNCHRONOUS in the environment backups are written while training goes on; else each is whole before it does. With
ACCUMULATE an update is made of so many batches, and with COMPRESSION workers remember what a codec has left out.
With EAGERLY no step is traced, which is most of the time where the input is what matters. With ODD the model has a
state of which tfdist warns.
"""

import hashlib
import json
import os
import random
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore
from tfdist.compression import DGC, PowerSGD, TopK
from tfdist.monitor import faults
from tfdist.optimizers import DistributedOptimizer

# if nothing else is wanted: three steps an epoch, the last with half a batch, and one of validation, of three examples
BATCH, EPOCHS = 4, 2
EXAMPLES, VALIDATION = int(os.environ.get("EXAMPLES", "10")), int(os.environ.get("VALIDATION", "3"))

# with which the first kernel is small enough
CODECS = {"powersgd": PowerSGD(rank=1), "topk": TopK(density=0.1), "dgc": DGC(density=0.1)}


class Spy(keras.callbacks.Callback):
    """A callback of a user's."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(f"epoch {epoch}")

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(batch)

    def get_state(self):
        return {"seen": list(self.seen)}

    def set_state(self, state):
        self.seen = list(state["seen"])


class Round(keras.layers.Layer):
    """Counts examples anew at seven, which is neither a sum nor a mean."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="count")

    def call(self, x):
        self.count.assign((self.count + tf.shape(x)[0]) % 7)
        return x


def input_of(kind, x, y, folder):
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": True}
    if kind == "tf.data":
        return {"x": rows.shuffle(EXAMPLES, seed=3).batch(BATCH)}
    if kind == "endless":
        return {"x": rows.shuffle(EXAMPLES, seed=3).repeat().batch(BATCH), "steps_per_epoch": 3}
    if kind == "generator":

        def batches():
            for begin in range(0, EXAMPLES, BATCH):
                yield x[begin : begin + BATCH], y[begin : begin + BATCH] + np.random.normal() * 0.1

        signature = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
        return {"x": tf.data.Dataset.from_generator(batches, output_signature=signature)}
    path = os.path.join(folder, "data")
    if not os.path.exists(os.path.join(path, "manifest.json")):
        tfdist.data.write({"x": x, "y": y}, path, processes=1, num_shards=2, exists="keep")
    reading = tfdist.data.read(path, global_batch_size=BATCH, seed=5, label="y", tail="keep")
    if kind == "tfdist, shorter epochs":
        return {"x": reading, "steps_per_epoch": 2}
    return {"x": reading if kind == "tfdist" else reading.map(lambda x, y: (x * 1.5, y))}


def main(result, backup, kind, save_freq):
    keras.utils.set_random_seed(7)
    tf.config.experimental.enable_op_determinism()
    scope = tf.distribute.get_strategy()
    if "TFDIST_STRATEGY" in os.environ:
        scope = tfdist.strategies.from_environment()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, 4)).astype("float32")
    y = x[:, :1] * 2
    with scope.scope():
        # something of every kind, and no variable more: to trace a step takes most of the time, and the more the longer
        model = keras.Sequential(
            [
                keras.Input((4,)),
                *([Round(name="round")] if "ODD" in os.environ else []),
                keras.layers.Dense(6, "relu", use_bias=False),
                keras.layers.BatchNormalization(center=False, scale=False),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1, use_bias=False),
            ]
        )
        optimizer = keras.optimizers.Adam(0.01)
        distributed = {}
        if "ACCUMULATE" in os.environ:  # over the ends of epochs
            distributed["accumulate_steps"] = int(os.environ["ACCUMULATE"])
        if "COMPRESSION" in os.environ:
            distributed["compression"] = CODECS[os.environ["COMPRESSION"]]
            optimizer = keras.optimizers.SGD(0.01) if distributed["compression"].has_momentum else optimizer
        if distributed:
            optimizer = DistributedOptimizer(optimizer, **distributed)
        model.compile(optimizer, "mse", metrics=["mae"], run_eagerly="EAGERLY" in os.environ)
    if "TFDIST_STRATEGY" not in os.environ:  # Keras' own function is traced, which says so to nobody
        own_step = model.train_step

        def train_step(data):
            faults.at("tracing", 0)
            return own_step(data)

        model.train_step = train_step
    spy, table = Spy(), f"{result}.csv"
    history = model.fit(
        **input_of(kind, x, y, os.path.dirname(result)),
        epochs=EPOCHS,
        verbose=0,
        validation_data=(x[:VALIDATION], y[:VALIDATION]),
        validation_batch_size=BATCH,
        callbacks=[
            spy,
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
            BackupAndRestore(backup, save_freq, asynchronous="ASYNCHRONOUS" in os.environ),
            keras.callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, factor=0.5),
            keras.callbacks.CSVLogger(table),
        ],
    )
    variables = [  # which all processes read, where each has its own
        np.ascontiguousarray(v) for v in [*model.get_weights(), *(v.numpy() for v in model.optimizer.variables)]
    ]
    if os.environ.get("TFDIST_WORKER_INDEX", "0") != "0":
        return
    with open(table, encoding="utf-8") as file:
        rows = file.read()
    content = {
        "digest": hashlib.sha256(b"".join(v.tobytes() for v in variables)).hexdigest(),
        "history": history.history,
        "epochs": history.epoch,
        "seen": spy.seen,
        "table": rows,
        "numpy": float(np.random.rand()),
        "python": random.random(),
    }
    with open(f"{result}.part", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(f"{result}.part", result)


if __name__ == "__main__":
    freq = sys.argv[4]
    own = os.environ["TFDIST_WORKER_INDEX"] if "OWN_BACKUPS" in os.environ else ""  # as where disks are not shared
    main(sys.argv[1], sys.argv[2] + own, sys.argv[3], freq if freq == "epoch" else int(freq))
