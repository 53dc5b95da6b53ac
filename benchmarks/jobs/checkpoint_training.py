"""A model whose state has a certain size, trained with Keras' BackupAndRestore, with tfdist's, and with none."""

import math
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.jobs.checkpoint_race import NONE, PEER
from tfdist.callbacks import BackupAndRestore

_LAYERS = 8
_NUMBERS_PER_WEIGHT = 3  # the weight itself, and two slots of Adam


class Trained:
    """One model, trained in each way in turn.

    Args:
        megabytes: of its weights and slots.
        steps: from one save to the next.
        saves: in one call of `fit`.
        batch_size: examples of a step.
    """

    def __init__(self, megabytes: float, *, steps: int, saves: int, batch_size: int) -> None:
        keras.utils.set_random_seed(7)
        self._width = round(math.sqrt(megabytes * 1e6 / 4 / _NUMBERS_PER_WEIGHT / _LAYERS))
        self._model = self._compiled(run_eagerly=False)
        draw = np.random.default_rng(7)
        x = draw.normal(size=(4 * batch_size, self._width)).astype(np.float32)
        self._data = tf.data.Dataset.from_tensor_slices((x, x)).batch(batch_size).cache().repeat()
        self._steps, self._saves = steps, saves

    def _compiled(self, *, run_eagerly: bool) -> keras.Model:
        # named, so that each model has the variables of the first, as in a new process
        layers = [keras.layers.Dense(self._width, activation="tanh", name=f"dense_{i}") for i in range(_LAYERS)]
        model = keras.Sequential([keras.Input((self._width,), name="x"), *layers], name="perceptron")
        model.compile(keras.optimizers.Adam(1e-4), "mse", run_eagerly=run_eagerly)
        return model

    def fit(self, way: str, folder: Path) -> tuple[float, float]:
        """Train, with saves between steps; return its seconds, and the seconds for which it stopped for saves."""
        watch = _Watch()
        callbacks = [watch, *_callbacks(way, folder, save_freq=self._steps, delete_checkpoint=True)]
        began = time.perf_counter()
        steps = self._steps * self._saves
        self._model.fit(self._data, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=callbacks)
        took = time.perf_counter() - began
        gaps = np.subtract(watch.begins[1:], watch.ends)
        has_save = np.arange(1, steps + 1) % self._steps == 0
        return took, float(gaps[has_save].mean() - np.median(gaps[~has_save] if self._steps > 1 else 0.0))

    def back_up(self, way: str, folder: Path) -> int:
        """Make a backup after one epoch, and return its bytes."""
        callbacks = _callbacks(way, folder, save_freq="epoch", delete_checkpoint=False)
        self._model.fit(self._data, steps_per_epoch=1, epochs=1, verbose=0, callbacks=callbacks)
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def go_on(self, way: str, folder: Path) -> float:
        """Resume from the backup with a new model, and return the seconds until the first step begins."""
        callbacks = _callbacks(way, folder, save_freq="epoch", delete_checkpoint=True)
        # a new model, as Keras' callback keeps its epoch in one; nothing is traced, as that would take most of the time
        model, watch = self._compiled(run_eagerly=True), _Watch()
        callbacks.append(watch)
        began = time.perf_counter()
        model.fit(self._data, steps_per_epoch=1, epochs=2, initial_epoch=way == NONE, verbose=0, callbacks=callbacks)
        assert watch.epoch == 1, f"{way} went on with epoch {watch.epoch}"
        return watch.begins[0] - began


class _Watch(keras.callbacks.Callback):
    """A record of the first epoch: when each step begins and ends; the end of the epoch counts as one more start."""

    def __init__(self) -> None:
        super().__init__()
        self.begins, self.ends, self.epoch = list[float](), list[float](), -1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.epoch < 0:
            self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begins.append(time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.begins.append(time.perf_counter())


def _callbacks(way: str, folder: Path, **options: Any) -> list[keras.callbacks.Callback]:
    if way == NONE:
        return []
    if way == PEER:
        return [keras.callbacks.BackupAndRestore(folder, **options)]
    return [BackupAndRestore(folder, asynchronous=way == "tfdist", **options)]
