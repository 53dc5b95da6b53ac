"""A training that lingers wherever a script can have code of its own, and writes down what the agent knows meanwhile.

python lingering.py FOLDER SECONDS WHO

WHO lingers: "all" workers, or the one with this number. The result is a file in FOLDER for each worker: the places in
their order, with the phase that the page says in each, and the phases that it says while a step of training runs.
"""

import json
import os
import sys
import time
from collections import Counter

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore
from tfdist.monitor.status import read_all

ME = int(os.environ.get("TFDIST_WORKER_INDEX", "0"))
HAS_SERVERS = os.environ.get("TFDIST_STRATEGY") == "parameter-server"
BATCH, EXAMPLES = 4, 24
folder, seconds, who = sys.argv[1], float(sys.argv[2]), sys.argv[3]
places: dict[str, str] = {}
within: set[str] = set()
fit_number = 0  # 0: before any place but those of a trace is one, so that the agent learns how long a step takes


def phase():
    return read_all(os.environ["TFDIST_PROGRESS_FILE"])[ME].activity.name


def linger(place):
    """Stay here, the first time."""
    if place not in places:
        places[place] = phase()
        if who in ("all", str(ME)):
            time.sleep(seconds)


class Everywhere(keras.callbacks.Callback):
    """A user's callback with all the methods that there are."""


def hook(name):
    seen = Counter()

    def method(self, *arguments, **more):
        seen[fit_number] += 1
        first = "batch" not in name or seen[fit_number] == 3
        if name == "on_epoch_end" and first and fit_number:
            model.predict(x[:BATCH], verbose=0)
            linger(f"{fit_number}: predict in on_epoch_end, and then")
        if first and fit_number:
            linger(f"{fit_number}: {name}")

    return method


for what in ("train", "test", "predict"):
    for name in (f"on_{what}_begin", f"on_{what}_end", f"on_{what}_batch_begin", f"on_{what}_batch_end"):
        setattr(Everywhere, name, hook(name))
for name in ("on_epoch_begin", "on_epoch_end"):
    setattr(Everywhere, name, hook(name))


class Traced(keras.layers.Layer):
    """A layer of the user's, whose Python runs when it is traced."""

    def call(self, inputs, training=False):
        if not tf.executing_eagerly():
            linger(f"{fit_number}: {'training' if training else 'testing'} traced {'twice' if weighted else 'once'}")
            if training and not HAS_SERVERS:  # whose workers are other processes
                tf.py_function(lambda: within.add(phase()), [], [])
        return inputs


class Rows(keras.utils.PyDataset):
    """Input that the user's Python makes."""

    def __len__(self):
        return EXAMPLES // BATCH

    def __getitem__(self, index):
        if index == 4:
            linger("a batch is made")
        return x[index * BATCH : (index + 1) * BATCH], y[index * BATCH : (index + 1) * BATCH]

    def on_epoch_end(self):
        linger("the input's on_epoch_end")


class Raises(keras.callbacks.Callback):
    """Leaves `fit` by an exception."""

    def on_train_batch_end(self, batch, logs=None):
        raise KeyError("enough")


class Eager(keras.Sequential):
    """A model whose step the user looks at."""

    def train_step(self, data):
        if self.optimizer.built and int(self.optimizer.iterations.numpy()) == 4:
            linger("in an eager step")
        return super().train_step(data)


def made(kind=keras.Sequential, **options):
    with strategy.scope():
        found = kind([keras.Input((3,)), Traced(), keras.layers.Dense(1)])
        found.compile("sgd", "mse", **options)
    return found


def fitted(backup, **options):
    callbacks = [Everywhere()]
    if backup:
        callbacks.append(BackupAndRestore(os.path.join(folder, f"backup {fit_number}"), 2))
    data = {"x": x, "y": y, "batch_size": BATCH, "validation_data": (x, y), "validation_batch_size": BATCH}
    model.fit(**{**data, **options}, verbose=0, epochs=2, callbacks=callbacks)


keras.utils.set_random_seed(3)
strategy = tf.distribute.get_strategy()
if "TFDIST_STRATEGY" in os.environ:
    strategy = tfdist.strategies.from_environment()
rng = np.random.default_rng(0)
x = rng.normal(size=(EXAMPLES, 3)).astype("float32")
y = x[:, :1] * 2
weighted = False
linger("before training")
model = made()
fitted(True)
linger("after fit")
for fit_number, backup in ((1, True), (2, False)):
    fitted(backup)
    linger(f"{fit_number}: after fit")
    model.evaluate(x, y, batch_size=BATCH, verbose=0, callbacks=[Everywhere()])
    linger(f"{fit_number}: after evaluate")
    model.predict(x, batch_size=BATCH, verbose=0, callbacks=[Everywhere()])
    linger(f"{fit_number}: after predict")
    for _ in range(4):
        model.train_on_batch(x[:BATCH], y[:BATCH])
        linger(f"{fit_number}: after train_on_batch")
    model.test_on_batch(x[:BATCH], y[:BATCH])
    linger(f"{fit_number}: after test_on_batch")
    model.predict_on_batch(x[:BATCH])
    linger(f"{fit_number}: after predict_on_batch")
fit_number, weighted = 3, True
weights = np.ones(EXAMPLES, "float32")
fitted(True, sample_weight=weights, validation_data=(x, y, weights))  # makes all functions once more
fit_number = 4
fitted(True, x=Rows(), y=None, batch_size=None)
try:
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[Raises(), BackupAndRestore(os.path.join(folder, "left"))])
except KeyError:
    linger("after fit was left by an exception")
if not HAS_SERVERS:
    model = made(Eager, run_eagerly=True)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[BackupAndRestore(os.path.join(folder, "eager"))])
fit_number = 5
model = made()
fitted(True)
with open(os.path.join(folder, f"places {ME}.json"), "w", encoding="utf-8") as file:
    json.dump({"places": places, "within": sorted(within), "starts": os.environ["TFDIST_RESTARTS"]}, file, indent=1)
