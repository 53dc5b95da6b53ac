"""A training of which one worker gets stuck, once: python stuck.py KIND WORKER FOLDER

KIND is where: "py_function" (an endless call inside a step), "lock" (a step waits for a lock that nobody gives back),
"input" (the input's Python never returns), "stop" (the process is stopped in a callback). When that begins is written
into FOLDER. Started again, it trains to its end.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks import BackupAndRestore

kind, worker, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
MINE = os.environ["TFDIST_RESTARTS"] == "0" and os.environ.get("TFDIST_WORKER_INDEX", "0") == worker
calls, taken = 0, threading.Lock()
taken.acquire()


def begins():
    (folder / "stuck").write_text(str(time.monotonic()))


def within():
    global calls
    calls += 1
    if MINE and kind in ("py_function", "lock") and calls == 30:
        begins()
        while kind == "py_function":
            time.sleep(0.1)
        taken.acquire()


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if MINE and kind == "stop" and int(self.model.optimizer.iterations.numpy()) == 30:
            begins()
            os.kill(os.getpid(), signal.SIGSTOP)


class Calls(keras.layers.Layer):
    def call(self, inputs, training=False):
        if training:
            tf.py_function(within, [], [])
        return inputs


class Rows(keras.utils.PyDataset):
    epoch = 0

    def __len__(self):
        return 10

    def on_epoch_end(self):
        self.epoch += 1

    def __getitem__(self, index):
        if MINE and kind == "input" and (self.epoch, index) == (3, 5):
            begins()
            time.sleep(10_000)
        return np.ones((4, 3), "float32"), np.ones((4, 1), "float32")


strategy = tf.distribute.get_strategy()
if "TFDIST_STRATEGY" in os.environ:
    strategy = tfdist.strategies.from_environment()
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), Calls(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(Rows(), epochs=6, verbose=0, callbacks=[Stop(), BackupAndRestore(folder / "backup")])
