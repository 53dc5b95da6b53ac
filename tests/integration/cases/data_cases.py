"""Cases of reading under strategies: each runs in every worker at once and returns JSON values."""

import contextlib
import functools
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rested import ring

import tfdist
from tfdist import errors
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.writing import journal
from tfdist.testing import digits

RANK = int(os.environ["TFDIST_WORKER_INDEX"])
TASKS = {"local_workers": 2, "local_servers": 1, "max_staleness": 0, "timeout_seconds": 60.0}
BATCH, EPOCHS, SEED = 12, 2, 5


@functools.cache
def strategy(name: str) -> Any:
    """Return a strategy of this process, or TensorFlow's own for one device."""
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "parameter-server":
        return tfdist.strategies.ParameterServerStrategy(**TASKS)
    if name == "mirrored-2":
        return tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    return ring() if name == "ring" else tfdist.strategies.from_environment()


KIND = os.environ.get("TFDIST_STRATEGY")
if KIND == "mirrored":
    tfdist.strategies.use_logical_cpus(3)  # before one device is used, or two
elif KIND:
    strategy(KIND)  # before TensorFlow has started


def decode(example: dict[str, Any]) -> dict[str, Any]:
    """Make numbers of a picture."""
    picture = tf.io.decode_png(example["image"], channels=3)
    picture.set_shape([4, 4, 3])
    return {"image": tf.cast(picture, tf.float32) / 255.0, "label": example["label"]}


def augment(example: dict[str, Any], seed: Any) -> dict[str, Any]:
    """Turn a picture around, or not, and add noise."""
    image = tf.image.stateless_random_flip_left_right(example["image"], seed)
    return {**example, "image": image + tf.random.stateless_normal(image.shape, seed, stddev=0.2)}


def read(folder: str, **options: Any) -> Any:
    """Return the pictures, decoded and altered."""
    given = {"global_batch_size": BATCH, "seed": SEED, "decode": decode, "augment": augment, **options}
    return tfdist.data.read(folder, **given)


def build(scope: Any) -> keras.Model:
    """Return a compiled model that is the same on every worker; plain gradient descent has no state but weights."""
    with scope:
        keras.utils.set_random_seed(1)
        network = keras.Sequential(
            [keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(8, "tanh"), keras.layers.Dense(5)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=["accuracy"])
    return network


def flat(network: keras.Model) -> list[float]:
    return np.concatenate([w.ravel() for w in network.get_weights()]).tolist()


def load(network: keras.Model, weights: list[float]) -> None:
    """Give a model the weights that `flat` returned."""
    found = []
    for old in network.get_weights():
        found.append(np.reshape(weights[: old.size], old.shape))
        weights = weights[old.size :]
    network.set_weights(found)


def trained(name: str, folders: dict[str, str], cases: list[list[str]]) -> list[dict[str, Any]]:
    """Train on directories with tails, and evaluate on the first; return weights, losses and steps."""
    found = []
    for number, (size, tail) in enumerate(cases):
        reading, network = read(folders[size], tail=tail), build(strategy(name).scope())
        history = network.fit(reading, epochs=EPOCHS, shuffle=False, verbose=0).history
        measured = []
        if name == "one" or number == 0:
            measured = network.evaluate(read(folders[size], tail="keep", order="none", augment=None), verbose=0)
        found.append(
            {
                "weights": flat(network),
                "logs": [*history["loss"], *history["accuracy"]],
                "measured": measured,
                "steps": int(network.optimizer.iterations.numpy()),
                "epoch": reading.epoch,
            }
        )
    return found


class Watch(keras.callbacks.Callback):
    """Notes which examples this process looks up in each epoch, and stops after a batch, if told to."""

    def __init__(self, stop_at: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.looked_up: list[list[int]] = []
        self._now, self._stop_at = -1, stop_at

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._now = epoch
        self.looked_up.append([])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self._now, batch) == self._stop_at:
            self.model.stop_training = True

    @contextlib.contextmanager
    def watching(self) -> Any:
        locate = Examples.locate

        def noted(examples: Examples, numbers: Any) -> Any:
            if self.looked_up:  # not when shards are compared with the manifest, before the first epoch
                self.looked_up[-1] += [int(number) for number in numbers]
            return locate(examples, numbers)

        Examples.locate = noted
        try:
            yield self
        finally:
            Examples.locate = locate


def looked_up(name: str, folder: str, tail: str, ops: bool) -> list[list[int]]:
    """Return the examples that this worker has looked up in each epoch."""
    network = build(strategy(name).scope())
    with Watch().watching() as watch:
        network.fit(read(folder, tail=tail, ops=ops), epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[watch])
    return watch.looked_up


def interrupted(name: str, folder: str, tail: str, epoch: int, batch: int) -> dict[str, Any]:
    """Train up to a batch; return where reading stands then, and the weights."""
    reading, network = read(folder, tail=tail), build(strategy(name).scope())
    network.fit(reading, epochs=epoch + 1, shuffle=False, verbose=0, callbacks=[Watch((epoch, batch))])
    return {"state": reading.state(), "weights": flat(network), "epoch": reading.epoch}


def resumed(name: str, folder: str, tail: str, state: dict[str, Any], weights: list[float], epochs: int) -> Any:
    """Go on from a state to the end; return the weights, and which examples this worker has looked up."""
    reading, network = read(folder, tail=tail, state=state), build(strategy(name).scope())
    load(network, weights)
    with Watch().watching() as watch:
        given = {"shuffle": False, "verbose": 0, "callbacks": [watch]}
        if name == "one":  # Keras takes the number of batches of the first epoch for that of all
            network.fit(reading, initial_epoch=reading.epoch, epochs=reading.epoch + 1, **given)
        network.fit(reading, initial_epoch=reading.epoch, epochs=epochs, **given)
    return {"weights": flat(network), "looked_up": watch.looked_up, "steps": int(network.optimizer.iterations.numpy())}


def refused(name: str, folder: str, options: dict[str, Any]) -> str:
    """Read with other options on worker 1; return what is said."""
    mine = options if RANK == 1 else {}
    try:
        build(strategy(name).scope()).fit(read(folder, **mine), shuffle=False, verbose=0)
    except errors.DisagreementError as error:
        return str(error)
    return "trained"


def written(name: str, folder: str) -> list[list[Any]]:
    """Write the digits unless they are there; return which files there are then."""
    del name
    place = digits.write_digits(folder)
    files = [path for part in digits.PARTS for path in sorted((place / part).iterdir())]
    # the manifest stands a moment before the one that wrote it removes its journal
    kept = [path for path in files if not path.name.startswith(".") and path.name != journal.NAME]
    return [[str(path), path.stat().st_ino, path.stat().st_mtime_ns] for path in kept]


def failing(name: str, damaged: str, changed: str) -> dict[str, list[str]]:
    """Read and train on a directory with a corrupt record, and on one that is overwritten; return what was raised."""

    def raised(call: Any) -> list[str]:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - which one is what is asked
            return [type(error).__name__, str(error)]
        return []

    def overwrite(epoch: int, logs: Any) -> None:
        found = list(tfdist.data.open(changed))
        tfdist.data.write(found, changed, num_shards=2, exists="overwrite")

    train = {"shuffle": False, "verbose": 0}
    network, how = build(strategy(name).scope()), {"order": "none", "augment": None}
    behind = keras.callbacks.LambdaCallback(on_epoch_end=overwrite)
    seen = {
        "fit": raised(lambda: network.fit(read(damaged, **how), **train)),
        "fit, mapped": raised(lambda: network.fit(read(damaged, **how).map(lambda *b: b).prefetch(1), **train)),
        "changed": raised(lambda: network.fit(read(changed), epochs=3, callbacks=[behind], **train)),
    }
    if name != "parameter-server":
        seen["iteration"] = raised(lambda: list(read(damaged, **how)))
        seen["fit in NumPy"] = raised(lambda: network.fit(read(damaged, ops=False, **how), **train))
        seen["fit, cached"] = raised(lambda: network.fit(read(damaged, cache="memory", **how), **train))
        seen["evaluate"] = raised(lambda: network.evaluate(read(damaged, **how), verbose=0))
        seen["predict"] = raised(lambda: network.predict(read(damaged, **how), verbose=0))
    return seen
