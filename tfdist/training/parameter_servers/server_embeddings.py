"""Embeddings with tables on parameter servers."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer as keras_model
from tfdist.compat.keras import layer_methods as keras_layers
from tfdist.compat.keras import stateless_scope
from tfdist.compat.tensorflow import partitioned as tf_partitioned


def adapt(model: keras.Model) -> None:
    """Let embeddings look up rows on the servers, of which only those that are asked for travel."""
    for layer in keras_model.layers(model):
        if isinstance(layer, keras.layers.Embedding):
            keras_layers.override_call(layer, keras.layers.Embedding, functools.partial(_look_up, layer))


def _look_up(layer: keras.layers.Embedding, inputs: Any) -> Any:
    table = stateless_scope.table_on_servers(layer)
    if table is None or not isinstance(inputs, tf.Tensor) or not (inputs.dtype.is_integer or inputs.dtype.is_floating):
        return keras_layers.own_call(keras.layers.Embedding, layer, inputs)
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    ids = tf.where(ids < 0, ids + tf.cast(table.shape[0], ids.dtype), ids)
    return tf.cast(tf_partitioned.lookup(table, ids), layer.compute_dtype)
