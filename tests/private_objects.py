"""Objects of TensorFlow, Keras and others in which the private names of `tfdist/compat` are looked up.

Each is made when it is needed first.
"""

import functools
import importlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from tensorflow.python.data.ops.multi_device_iterator_ops import OwnedMultiDeviceIterator

from tfdist.compat.keras import callback_fields
from tfdist.compat.keras.symbolic import tensor_attributes
from tfdist.strategies import MirroredStrategy

X = np.ones((4, 2), np.float32)
Y = np.ones((4, 1), np.float32)


@functools.cache
def strategy() -> tf.distribute.Strategy:
    return MirroredStrategy(["CPU:0"])


@functools.cache
def model() -> keras.Model:
    with strategy().scope():
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    made.fit(X, Y, verbose=0)
    return made


@functools.cache
def elements() -> Any:
    return iter(tf.data.Dataset.range(2))


@functools.cache
def device_queues() -> Any:
    """An iterator that hands the elements of a dataset to devices in turn."""
    return OwnedMultiDeviceIterator(tf.data.Dataset.range(2), devices=["/device:CPU:0"])


@functools.cache
def epoch_iterator() -> TFEpochIterator:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)
    return TFEpochIterator(x=data, distribute_strategy=tf.distribute.get_strategy())


def array_adapter() -> Any:
    return TFEpochIterator(x=X, y=Y, distribute_strategy=tf.distribute.get_strategy()).data_adapter


@functools.cache
def layer() -> keras.layers.Layer:
    made = keras.layers.BatchNormalization()
    made.build((None, 2))
    return made


@functools.cache
def attention(kind: Any = keras.layers.MultiHeadAttention) -> keras.layers.Layer:
    sizes = (2, 2) if kind is keras.layers.MultiHeadAttention else (2, 2, 1)
    made = kind(*sizes, use_gate=True)
    made.build((None, 2, 2), (None, 2, 2))
    return made


@functools.cache
def masked() -> Any:
    return keras.layers.Masking()(tf.ones([1, 2, 2]))


def hung() -> list[Any]:
    """Return the attributes of a graph's tensor, its activations, a softmax, and a masked one around attention."""
    noted: list[Any] = []
    attends = attention()  # variables that are made in a trace would be a reason for another one

    def compute(x: tf.Tensor) -> None:
        noted.append(tensor_attributes.attributes_of(x))
        for kind, activation in tensor_attributes.ACTIVATIONS.items():
            found = tensor_attributes.activated(activation(x))
            noted.append(found is not None and found[0] == kind and found[1] is x)
        noted.append([*tensor_attributes.attributes_of(keras.activations.softmax(x))])
        given = keras.layers.Masking()(x)
        noted.append([*tensor_attributes.attributes_of(given)])
        attends(given, given)
        noted.append([*tensor_attributes.attributes_of(given)])

    tf.function(compute, autograph=False).get_concrete_function(tf.TensorSpec([1, 2, 2]))
    return noted


@functools.cache
def embedding() -> keras.layers.Layer:
    made = keras.layers.Embedding(2, 2)
    made.build((None,))
    return made


@functools.cache
def optimizer() -> keras.optimizers.Optimizer:
    made = keras.optimizers.SGD(0.1, weight_decay=0.1)
    made.exclude_from_weight_decay(var_names=["bias"])
    made.build([keras.Variable([1.0], name="kernel")])
    return made


def adam() -> keras.optimizers.Optimizer:
    made = keras.optimizers.Adam(amsgrad=True)
    made.build([keras.Variable([1.0])])
    return made


def callback(name: str) -> type:
    return next(kind for kind, names in callback_fields._FIELDS.items() if name in names)


def node() -> Any:
    with tf.Graph().as_default() as graph:
        first = tf.constant(1.0)
        with graph.colocate_with(first.op):
            return tf.identity(first).op.node_def.attr


def node_of_own_gradient() -> Any:
    """Return the attributes of the operations of a function whose gradient is a user's."""
    doubled = tf.custom_gradient(lambda x: (2 * x, lambda dy: 2 * dy))
    traced = tf.function(doubled).get_concrete_function(tf.TensorSpec([]))
    return {name for one in traced.graph.as_graph_def().node for name in one.attr}


def loky_tracker() -> Any:
    return importlib.import_module("loky.backend.resource_tracker")


def loky_executor() -> Any:
    return importlib.import_module("loky.process_executor").ProcessPoolExecutor
