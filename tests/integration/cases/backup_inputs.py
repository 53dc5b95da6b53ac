"""Inputs with a state of their own; each function asserts that they go on as they were. backup_inputs.py NAME FOLDER"""

import contextlib
import io
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.integration.cases.backup_cases import Interrupt, X, Y, model_of
from tfdist.callbacks import BackupAndRestore
from tfdist.compat.tensorflow import tf_data
from tfdist.data import read, write

EPOCHS, BATCH, STEPS = 3, 2, 6


class Pictures(keras.utils.PyDataset):
    """Batches that are augmented, in an order that is drawn at the end of each epoch."""

    def __init__(self, rng=np.random, **more):
        super().__init__(**more)
        self.rng = rng
        self.order = np.arange(len(X))

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        noise = 0 if self.workers > 1 else self.rng.normal(size=X[rows].shape) * 0.1  # threads draw in any order
        return (X[rows] + noise).astype("float32"), Y[rows] + index

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


def endless():
    while True:
        for begin in range(0, len(X), BATCH):
            yield X[begin : begin + BATCH] + np.random.normal(size=(BATCH, 3)) * 0.1, Y[begin : begin + BATCH]


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def noisy():
    layer = keras.layers.GaussianNoise(0.3, seed=4)
    return rows().batch(BATCH).map(lambda x, y: (layer(x, training=True), y))


INPUTS = {
    "shuffled by Keras": lambda: {"x": Pictures()},
    "with random numbers of its own": lambda: {"x": Pictures(np.random.default_rng(1)), "shuffle": False},
    "made in threads": lambda: {"x": Pictures(workers=2, max_queue_size=3)},
    "a generator": lambda: {"x": endless(), "steps_per_epoch": 5},
    "a layer": lambda: {"x": noisy()},
}


def _read(folder):
    return read(folder / "data", global_batch_size=BATCH, seed=5, label="y", tail="keep")


VALIDATIONS = {
    "shuffled": lambda folder: rows().shuffle(12, seed=5).batch(BATCH),
    "read": lambda folder: _read(folder).map(lambda x, y: (2 * x, y)),
}


class Draws(keras.callbacks.Callback):
    """Draws from generators from which the input draws too, and changes what a backup has when an epoch begins."""

    def on_epoch_begin(self, epoch, logs=None):
        np.random.rand()
        self.model.layers[0].kernel.assign_add(keras.ops.full((3, 4), 0.01 * epoch))


def begun():
    """Return a model as at the start of a script: no input of one before draws any more, and the seeds are set."""
    tf_data.end(tf_data.alive(), seconds=60)
    return model_of()


def trained(model, backup, given, validation=None, *, stop=None, draws=True):
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        *([Draws()] if draws else []),
        backup,
        *([] if stop is None else [Interrupt(*stop)]),
    ]
    more = {} if validation is None else {"validation_data": validation, "validation_steps": 2}
    return model.fit(**given, **more, epochs=EPOCHS, verbose=0, callbacks=callbacks).history


def goes_on(place, given, validation=lambda: None, *, draws=True):
    """Train without an end, and with one; compare."""

    def of_model(name, stop=None):
        model = begun()
        backup = BackupAndRestore(place / name, save_freq=1, asynchronous=False)
        try:
            return trained(model, backup, given(), validation(), stop=stop, draws=draws), model.get_weights()
        except KeyboardInterrupt:
            assert stop
            return None

    expected = of_model("never")
    assert of_model("again", (1, 2)) is None
    np.testing.assert_equal(of_model("again"), expected, str(place))


def training(folder):
    for name, given in INPUTS.items():
        goes_on(folder / name, given, draws="generator" not in name)


def validation(folder):
    write({"x": X, "y": Y}, folder / "data", processes=1)
    for name, made in VALIDATIONS.items():
        goes_on(folder / name, lambda: {"x": X, "y": Y, "batch_size": 4}, lambda made=made: made(folder))


def shown(folder):
    """All epochs are shown where the first one has no steps left, of an input whose length is unknown."""

    def shown_by(*callbacks):
        backup = BackupAndRestore(folder / "b", save_freq=1, asynchronous=False)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            data = rows().batch(BATCH).filter(lambda x, y: True)
            begun().fit(data, validation_data=(X, Y), epochs=2, verbose=2, callbacks=[backup, *callbacks])
        return printed.getvalue()

    class Ends(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown_by(Ends())
    assert shown_by().count(f"{STEPS}/{STEPS} ") == 2


def ends_within_an_epoch(folder):
    """Resume where the data end before Keras has learned of it, and save once it has."""
    write({"x": X, "y": Y}, folder / "data", processes=1)
    strategy = tfdist.strategies.MirroredStrategy(["cpu:0"])

    def ended(name, *, freq=1, stop=None):
        model = model_of(strategy=strategy)
        backup = BackupAndRestore(folder / name, save_freq=freq, asynchronous=False)
        given = {"x": _read(folder).map(lambda x, y: (2 * x, y)), "steps_per_epoch": 4}  # of 6
        return trained(model, backup, given, stop=stop, draws=False), model.get_weights()

    expected = ended("never", freq="epoch")
    with pytest.raises(KeyboardInterrupt):
        ended("again", stop=(1, 2))
    np.testing.assert_equal(ended("again"), expected)


def another_fit(folder):
    """Run several `fit`s: none reads again what a finished one has read, and an interrupted one leaves no trace."""
    write({"x": X, "y": Y}, folder / "data", processes=1)
    inputs = {
        "shuffled": lambda: {"x": rows().shuffle(12, seed=3).batch(BATCH)},
        "read": lambda: {"x": _read(folder)},
    }
    for name, made in inputs.items():

        def both(place, stop=None, made=made):
            model, given = begun(), made()
            backup = BackupAndRestore(place / "1", delete_checkpoint=False, asynchronous=False)
            model.fit(**given, epochs=2, verbose=0, callbacks=[backup])
            last = BackupAndRestore(place / "2", save_freq=1, asynchronous=False)
            return trained(model, last, given, stop=stop, draws=False), model.get_weights()

        expected = both(folder / f"{name}, never")
        for stop in ((1, 2), None):
            try:
                found = both(folder / name, stop)
            except KeyboardInterrupt:
                assert stop
        np.testing.assert_equal(found, expected, name)
    model, backup = model_of(), BackupAndRestore(folder / "b", save_freq=1, asynchronous=False)
    for stop in ((1, 1), (1, 2)):
        try:
            trained(model, backup, {"x": X, "y": Y, "batch_size": 4}, stop=stop)
        except KeyboardInterrupt:
            continue
        raise AssertionError(stop)
    assert model.fit(X, Y, epochs=2, verbose=0).epoch == [0, 1]


def another_batch(folder):
    """The rest of an epoch, of which 8 examples of 12 were trained on, is as many examples in batches of any size."""
    write({"x": X, "y": Y}, folder / "data", processes=1)
    for size, steps in ((1, [*range(8, 12), *range(12)]), (6, [1, 0, 1]), (5, [2, 0, 1, 2])):
        backup, seen = BackupAndRestore(folder / str(size), save_freq=1, asynchronous=False), []
        inputs = read(folder / "data", global_batch_size=4, label="y")
        try:
            model_of().fit(inputs, epochs=2, verbose=0, callbacks=[backup, Interrupt(0, 2)])
        except KeyboardInterrupt:
            inputs = read(folder / "data", global_batch_size=size, label="y")
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, seen=seen: seen.append(batch))
        model_of().fit(inputs, epochs=2, verbose=0, callbacks=[backup, count])
        assert (seen, inputs.epoch) == (steps, 2), size


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
