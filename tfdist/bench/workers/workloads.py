"""The models and strategies that benchmarks measure; a process has one strategy."""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

import tfdist.strategies
from tfdist.bench.workers.lanes import LONGEST_SECONDS
from tfdist.cluster import strategy_table
from tfdist.collectives.backends import horovod_job
from tfdist.variables import COLLECTIVES, REPLICAS_PER_WORKER, STRATEGY


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model to train: a function that builds it, the shape of an example, and the number of labels."""

    build: Callable[[], keras.Model]
    input_shape: tuple[int, ...]
    classes: int


def _perceptron() -> keras.Model:
    """Return 25 dense layers of 1,000 units with skip connections: 25.0 M parameters, 4 MB and 4 kB tensors in turn."""
    inputs = hidden = keras.Input((1000,))
    for _ in range(24):
        hidden = keras.layers.Add()([hidden, keras.layers.Dense(1000, activation="relu")(hidden)])
    return keras.Model(inputs, keras.layers.Dense(1000)(hidden))


def _convolutional() -> keras.Model:
    """Return a small convolutional network, 0.1 M parameters: a short step, so that overhead shows."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def _small() -> keras.Model:
    """Return a perceptron of 7,000 parameters: a step of about a millisecond, most of it overhead."""
    return keras.Sequential([keras.Input((32,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])


_RESNET50 = functools.partial(keras.applications.ResNet50, weights=None, classifier_activation=None)
MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "perceptron": Model(build=_perceptron, input_shape=(1000,), classes=1000),
        "convolutional": Model(build=_convolutional, input_shape=(8, 8, 1), classes=10),
        "small": Model(build=_small, input_shape=(32,), classes=10),
        "resnet50": Model(build=_RESNET50, input_shape=(224, 224, 3), classes=1000),
    }
)


@functools.cache
def of_tfdist(name: str, collectives: str | None = None) -> tf.distribute.Strategy:
    if name == "ring":  # its workers are held while other lanes run, and must not be taken for lost
        return tfdist.strategies.create(name, lost_after_seconds=LONGEST_SECONDS)
    chosen = {COLLECTIVES.name: collectives} if collectives else {}
    return tfdist.strategies.from_environment({**os.environ, STRATEGY.name: name, **chosen})


@functools.cache
def of_tensorflow(name: str) -> tf.distribute.Strategy:
    """Return TensorFlow's counterpart of a strategy of tfdist."""
    if strategy_table.get(name).processes == "workers":
        return tf.distribute.MultiWorkerMirroredStrategy()
    replicas = REPLICAS_PER_WORKER.read(os.environ) or 1
    if not tf.config.list_physical_devices("GPU"):
        tfdist.strategies.use_logical_cpus(replicas)
        return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
    return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(replicas)])


@functools.cache
def horovod() -> Any:
    """Return `horovod.tensorflow`, started as its users start it."""
    hvd = horovod_job.import_horovod()
    hvd.init()
    return hvd
