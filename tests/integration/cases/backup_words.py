"""Messages and arguments of BackupAndRestore; each function checks some. python backup_words.py NAME FOLDER"""

import logging
import os
import sys

import fsspec
import keras
import numpy as np
import tensorflow as tf
from fsspec.implementations.memory import MemoryFileSystem

from tests.integration.agents import says
from tests.refusals import refused
from tfdist.callbacks import BackupAndRestore
from tfdist.errors import ConfigError, ConfigTypeError

X = np.ones((12, 3), "float32")


def model_of():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(*callbacks, epochs, batch_size=4, rate=0.01):
    model = model_of()
    model.optimizer.learning_rate = rate
    model.fit(X, X[:, 0], batch_size=batch_size, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return float(model.optimizer.learning_rate.numpy())


def state_that_cannot_be_kept():
    """The error names the callback of the user."""

    class Ours(keras.callbacks.Callback):
        def get_state(self):
            return {"seen": {1, 2}}

        def set_state(self, state):
            raise AssertionError(state)

    with refused(ConfigTypeError, mentions=("seen is a set",)) as caught:
        fit(Ours(), BackupAndRestore("b"), epochs=1)
    assert caught.value.name.endswith("Ours")


def storage_options():
    """They reach the driver; a directory takes none."""
    seen = []

    class Noted(MemoryFileSystem):
        protocol = "noted"
        cachable = False

        def __init__(self, *, word=None, **more):
            super().__init__(**more)
            seen.append(word)

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(path.replace("noted://", "memory://"))

    fsspec.register_implementation("noted", Noted)
    fit(BackupAndRestore("noted://b", storage_options={"word": 17}, delete_checkpoint=False), epochs=1)
    assert set(seen) == {17}
    assert any(name.startswith("/b/step-") for name in MemoryFileSystem.store)
    with refused(ConfigError, name="storage_options", path="b"):
        fit(BackupAndRestore("b", storage_options={"word": 17}), epochs=1)


def going_on():
    """Check that a resumed training warns of its place and learning rate, so that no logging has to be set up."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append((record.levelname, record.getMessage()))
    logging.getLogger("tfdist").addHandler(handler)
    keras.utils.set_random_seed(1)
    place = os.path.abspath("b")

    def are(record, *facts):
        return record[0] == "WARNING" and says(record[1], *facts)

    def kept():
        said.clear()
        return BackupAndRestore("b", delete_checkpoint=False, learning_rate_rule="linear")

    fit(kept(), epochs=1)
    assert said == []
    fit(kept(), epochs=2)
    (where,) = said
    assert are(where, "step 0 ", "epoch 2 ", place)
    fit(kept(), epochs=2)
    (where,) = said
    assert are(where, "Nothing is left", place)
    fit(kept(), epochs=3, batch_size=12)
    (rate, where) = said
    assert are(where, "step 0 ", "epoch 3 ", place)
    assert are(rate, "was 4 and is 12", "adam", "was 0.01 and is 0.03", "'linear'")
    kept_rate = fit(kept(), epochs=4, batch_size=12, rate=0.5)
    (rate, _) = said
    assert are(rate, "adam", " 0.5,", " 0.01 ", " 0.03.", "LearningRateScheduler(lambda epoch, rate: 0.5)")
    assert kept_rate == np.float32(0.03)
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5)
    assert fit(scheduler, kept(), epochs=5, batch_size=12, rate=0.5) == 0.5
    assert len(said) == 1


def another_script():
    """An input with another number of steps, another seed, and random numbers that no backup has are told."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("tfdist").addHandler(handler)
    keras.utils.set_random_seed(1)

    class Ends(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x))

    def trained(rows, *callbacks):
        model = keras.Sequential([keras.Input((3,)), Noise(), keras.layers.Dense(1)])
        seeds = keras.random.SeedGenerator(1)
        model.compile("sgd", lambda y, found: (y - found) ** 2 + keras.random.normal(found.shape, seed=seeds))
        backup = BackupAndRestore("b", save_freq=1, asynchronous=False)
        x = np.ones((rows, 3), "float32")
        model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[backup, *callbacks])

    try:
        trained(12, Ends())
    except KeyboardInterrupt:
        assert said == []
    keras.utils.set_random_seed(2)
    trained(16)
    (seed,) = (words for words in said if says(words, "step 2", "seed", "set_random_seed"))
    (draws,) = (words for words in said if says(words, "tf.random", "RandomStandardNormal"))
    (steps,) = (words for words in said if says(words, "step 2 ", "3 steps", "4 now"))
    (changes,) = (words for words in said if says(words, "seed_generator_state"))
    assert len({seed, draws, steps, changes}) == 4


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    globals()[sys.argv[1]]()
