"""Layers that compute with their part of a weight in the place of the whole, where Keras' own way to compute is known.

Activations that come in and go out are alike on all members of an axis, so any layer may stand before and behind. With
x an activation, W_i a part and y the result:

    columns, the dim that stays     y = gathered(entering(x) W_i)
    rows, the dim that is summed    y = summed(cut(x) W_i)
    a table by its rows             y = summed(rows that this member has, zeros in the place of others)
    a table by its columns          y = gathered(what is looked up in W_i)

Whatever else there is (weights cut along two axes, a class of the user's, adapters and quantized weights, the stateless
steps in which Keras gives weights other values) gathers the weight, as any layer does.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import layers as keras_layers
from tfdist.compat.keras import variables as keras_variables
from tfdist.compat.tensorflow.meshes import sharded
from tfdist.parallel.activations import Along
from tfdist.parallel.sharding import Sharding


def adapt(layers: list[keras.layers.Layer]) -> None:
    """Let layers of a model compute where their weights lie; those that were adapted stay so."""
    for layer in layers:
        for kind, call in _CALLS.items():
            keras_layers.override_call(layer, kind, functools.partial(call, layer))


def _cut_once(layer: keras.layers.Layer, weight: Any) -> tuple[Sharding, Along, int] | None:
    """Return how a weight lies, what travels for it and the dim that is cut; None unless that is one dim."""
    sharding = None if weight is None or keras_variables.is_replaced(weight) else sharded.sharding_of(weight)
    if sharding is None or len(sharding.axes) != 1:
        return None
    sharding.require_collectives()
    dim = next(dim for dim, axis in enumerate(sharding.layout) if axis is not None)
    return sharding, Along(sharding.mesh_axes, sharding.axes[0], f"activations of {sharding.label}"), dim


def _own_part(weight: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(sharded.part_of(weight).read_value(), dtype)


def _finished(layer: Any, outputs: tf.Tensor, *, has_bias: bool = False) -> tf.Tensor:
    """Return the outputs with the layer's bias, unless they have it, and its activation."""
    if layer.bias is not None and not has_bias:
        outputs = keras.ops.add(outputs, layer.bias)
    return outputs if layer.activation is None else layer.activation(outputs)


def _finished_parts(layer: Any, part: tf.Tensor, along: Along, dim: int) -> tf.Tensor:
    """Return the outputs of which this process has a part along a dim; a bias that is cut there too is not gathered."""
    bias = layer.bias
    found = None if bias is None or keras_variables.is_replaced(bias) else sharded.sharding_of(bias)
    behind = part.shape.rank - dim  # a bias is added to the last dims
    axes = (None,) * behind if found is None else (*(None,) * behind, *found.layout)[-behind:]
    if found is not None and axes[0] == along.axis and found.axes == (along.axis,):
        part = keras.ops.add(part, _own_part(bias, part.dtype))
        return _finished(layer, along.gathered(part, dim), has_bias=True)
    return _finished(layer, along.gathered(part, dim))


def _dense(layer: keras.layers.Dense, inputs: Any, training: Any = None) -> Any:
    weight = keras_layers.kernel_of(layer)
    found = _cut_once(layer, weight)
    if found is None or not isinstance(inputs, tf.Tensor) or inputs.shape.rank is None:
        return keras_layers.own_call(keras.layers.Dense, layer, inputs, training=training)
    _, along, dim = found
    kernel, last = _own_part(weight, inputs.dtype), inputs.shape.rank - 1
    if dim == 1:
        return _finished_parts(layer, keras.ops.matmul(along.entering(inputs), kernel), along, last)
    return _finished(layer, along.summed(keras.ops.matmul(along.cut(inputs, last), kernel)))


def _einsum_dense(layer: keras.layers.EinsumDense, inputs: Any, training: Any = None) -> Any:
    weight = keras_layers.kernel_of(layer)
    found = _cut_once(layer, weight)
    if found is None or "." in layer.equation or not isinstance(inputs, tf.Tensor):
        return keras_layers.own_call(keras.layers.EinsumDense, layer, inputs, training=training)
    _, along, dim = found
    given, result = layer.equation.replace(" ", "").split("->")
    given, weights = given.split(",")
    label, kernel = weights[dim], _own_part(weight, inputs.dtype)
    if label in given and label in result:  # each example has a part of its own of the weight
        return keras_layers.own_call(keras.layers.EinsumDense, layer, inputs, training=training)
    if label in result:
        part = keras.ops.einsum(layer.equation, along.entering(inputs), kernel)
        return _finished_parts(layer, part, along, result.index(label))
    return _finished(
        layer, along.summed(keras.ops.einsum(layer.equation, along.cut(inputs, given.index(label)), kernel))
    )


def _embedding(layer: keras.layers.Embedding, inputs: Any) -> Any:
    weight = keras_layers.table_of(layer)
    found = _cut_once(layer, weight)
    if found is None or not isinstance(inputs, tf.Tensor) or inputs.shape.rank is None:
        return keras_layers.own_call(keras.layers.Embedding, layer, inputs)
    sharding, along, dim = found
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    table = sharded.part_of(weight).read_value()
    ids = tf.where(ids < 0, ids + sharding.shape[0], ids)  # Keras counts them from the end
    if dim == 1:
        found_rows = along.gathered(tf.gather(table, ids), ids.shape.rank)
    else:
        begin, end = sharding.bounds[0]
        is_mine = (ids >= begin) & (ids < end)
        rows = tf.gather(table, tf.where(is_mine, ids - begin, tf.zeros_like(ids)))
        found_rows = along.summed(tf.where(is_mine[..., tf.newaxis], rows, tf.zeros_like(rows)))
    return keras.ops.cast(found_rows, layer.compute_dtype)


_CALLS = {keras.layers.Dense: _dense, keras.layers.EinsumDense: _einsum_dense, keras.layers.Embedding: _embedding}
