"""Keras layers that compute with a part of a weight.

Their inputs and results are the same on all members of an axis, so any layer may come before and after. With x an
activation, W_i a part and y the result:

    columns, the dim that stays     y = gathered(entering(x) W_i)
    rows, the dim that is summed    y = summed(cut(x) W_i)
    filters of a convolution        y = gathered(entering(x) * W_i)
    a table by its rows             y = summed(own rows, zeros in place of others)
    a table by its columns          y = gathered(W_i's columns)
    attention by heads              y = summed(heads_i O_i), heads_i = attention(x Q_i, x K_i, x V_i)

`keep_sharded` says where an activation stays in parts between columns and rows, and where sums end in parts of the
sequence. In all other cases (weights cut along two axes, classes of users, adapters and quantized weights, stateless
calls) a layer gathers its weights.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_variables, layer_methods
from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow import sparse_rows
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.parallel.compute import keep_sharded
from tfdist.parallel.compute.activations import Along
from tfdist.parallel.compute.vocabulary import Logits
from tfdist.parallel.weight_layouts import MeshLayout

#: the dim of an activation that is its sequence
SEQUENCE = 1
_HEADS = -2  # of the dims of query, key and value


@dataclass(frozen=True)
class Way:
    """The way in which a dense layer computes with a part of its kernel."""

    along: Along
    dim: int  # the dim in parts, of the result (columns) or the input (rows), counted from the last
    rank: int | None  # the only rank of an activation with that dim that the layer allows, or None
    by_columns: bool  # whether each member has a part of the result, not a summand


def way_of(layer: Any) -> Way | None:
    """Return how a Dense or EinsumDense layer computes with its part, or None if it does not."""
    if not isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)) or not _is_adapted(layer):
        return None
    found = _cut_once(layer_methods.kernel_of(layer))
    if found is None:
        return None
    _, along, dim = found
    if isinstance(layer, keras.layers.Dense):
        return Way(along, -1, None, by_columns=dim == 1)
    given, result = layer.equation.replace(" ", "").split("->")
    given, weights = given.split(",")
    if "." in layer.equation or (weights[dim] in given and weights[dim] in result):
        return None  # of a dim that stays, each example has a part of its own of the weight
    by_columns = weights[dim] in result
    labels = result if by_columns else given
    return Way(along, labels.index(weights[dim]) - len(labels), len(labels), by_columns=by_columns)


def rows_of(layer: Any) -> Along | None:
    """Return the axis along which an embedding's table is cut by its rows, or None if it is not."""
    if not isinstance(layer, keras.layers.Embedding) or not _is_adapted(layer):
        return None
    found = _cut_once(layer_methods.table_of(layer))
    return found[1] if found is not None and found[2] == 0 else None


def _is_adapted(layer: Any) -> bool:
    call = vars(layer).get("call")
    return isinstance(call, functools.partial) and call.func in CALLS.values()


def _cut_once(weight: Any) -> tuple[MeshLayout, Along, int] | None:
    """Return the layout, the transfers and the cut dim of a weight that is cut along one dim, or None."""
    sharding = (
        None if weight is None or keras_variables.is_replaced(weight) else sharded_variable.own_sharding_of(weight)
    )
    if not isinstance(sharding, MeshLayout) or len(sharding.axes) != 1:
        return None
    sharding.require_collectives()
    dim = next(dim for dim, axis in enumerate(sharding.layout) if axis is not None)
    return sharding, Along(sharding.mesh_axes, sharding.axes[0], f"activations of {sharding.label}"), dim


def _own_part(weight: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(sharded_variable.part_of(weight).read_value(), dtype)


def _computed(layer: Any, way: Way, inputs: tf.Tensor, multiply: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    if way.by_columns:
        part = multiply(inputs if keep_sharded.is_among(layer, "entered") else _entering(way.along, inputs))
        return _finished_parts(layer, part, way.along, part.shape.rank + way.dim)
    mine = inputs if keep_sharded.is_among(layer, "taking") else way.along.cut(inputs, inputs.shape.rank + way.dim)
    if not keep_sharded.is_among(layer, "scattering"):
        return _finished(layer, way.along.summed(multiply(mine)))
    part = way.along.scattered(multiply(mine), SEQUENCE)
    bias = None if layer.bias is None else tf.cast(keras.ops.convert_to_tensor(layer.bias), part.dtype)
    return _finished(layer, part, None if bias is None else way.along.entering(bias))


def _entering(along: Along, inputs: Any) -> Any:
    if isinstance(inputs, tf.SparseTensor):
        return inputs.with_values(along.entering(inputs.values))
    return along.entering(inputs)


def _finished(layer: Any, outputs: tf.Tensor, bias: Any = None) -> tf.Tensor:
    """Add the bias, or its replacement, and apply the activation."""
    bias = layer.bias if bias is None else bias
    if bias is not None:
        outputs = keras.ops.add(outputs, bias)
    return outputs if layer.activation is None else layer.activation(outputs)


def _finished_parts(layer: Any, part: tf.Tensor, along: Along, dim: int) -> tf.Tensor:
    bias = layer.bias
    own = None if bias is None else _part_of_bias(bias, part, along, dim)
    is_last = keep_sharded.is_among(layer, "last") and dim == part.shape.rank - 1 and part.shape[-1] is not None
    if keep_sharded.is_among(layer, "giving") or is_last:
        if bias is not None and own is None:
            behind = part.shape.rank - dim  # a bias is added to the last dims, and may have 1 element for all
            is_there = len(bias.shape) >= behind and bias.shape[-behind] > 1
            whole = tf.cast(keras.ops.convert_to_tensor(bias), part.dtype)
            own = along.cut(whole, len(bias.shape) - behind) if is_there else along.entering(whole)
        if not is_last:
            return _finished(layer, part, own)
        logits = part if own is None else keras.ops.add(part, own)
        outputs = along.gathered_late(logits, dim, Logits(logits, along))
        return outputs if layer.activation is None else layer.activation(outputs)
    if own is None:
        return _finished(layer, along.gathered(part, dim))
    outputs = along.gathered(keras.ops.add(part, own), dim)
    return outputs if layer.activation is None else layer.activation(outputs)


def _part_of_bias(bias: Any, part: tf.Tensor, along: Along, dim: int) -> tf.Tensor | None:
    """Return this process's part of a bias that is cut as the outputs are, or None."""
    found = _cut_once(bias)
    behind = part.shape.rank - dim
    if found is None or found[1].axis != along.axis or len(bias.shape) - found[2] != behind:
        return None
    return _own_part(bias, part.dtype)


def _dense(layer: keras.layers.Dense, inputs: Any, training: Any = None) -> Any:
    way = way_of(layer)
    is_known = isinstance(inputs, tf.Tensor) or (isinstance(inputs, tf.SparseTensor) and way and way.by_columns)
    if way is None or not is_known or inputs.shape.rank is None:
        return layer_methods.own_call(keras.layers.Dense, layer, inputs, training=training)
    kernel = _own_part(layer_methods.kernel_of(layer), inputs.dtype)
    return _computed(layer, way, inputs, lambda given: keras.ops.matmul(given, kernel))


def _einsum_dense(layer: keras.layers.EinsumDense, inputs: Any, training: Any = None) -> Any:
    way = way_of(layer)
    if way is None or not isinstance(inputs, tf.Tensor) or inputs.shape.rank is None:
        return layer_methods.own_call(keras.layers.EinsumDense, layer, inputs, training=training)
    kernel = _own_part(layer_methods.kernel_of(layer), inputs.dtype)
    return _computed(layer, way, inputs, lambda given: keras.ops.einsum(layer.equation, given, kernel))


def _convolution(layer: Any, inputs: Any) -> Any:
    weight = layer_methods.kernel_of(layer)
    found = _cut_once(weight)
    is_plain = isinstance(inputs, tf.Tensor) and layer.groups == 1 and layer.padding != "causal"
    if found is None or not is_plain or found[2] != len(weight.shape) - 1:
        return layer_methods.own_call(type(layer), layer, inputs)
    along, channels = found[1], 1 if layer.data_format == "channels_first" else layer.rank + 1
    part = layer.convolution_op(along.entering(inputs), _own_part(weight, inputs.dtype))
    outputs = along.gathered(part, channels)
    if layer.use_bias:
        shape = [1] * (layer.rank + 2)
        shape[channels] = layer.filters
        outputs = keras.ops.add(outputs, keras.ops.reshape(layer.bias, shape))
    return outputs if layer.activation is None else layer.activation(outputs)


def _dropout(layer: keras.layers.Dropout, inputs: Any, training: Any = False) -> Any:
    place = keep_sharded.place_between(layer)
    if place is None or not training or layer.rate == 0:
        return layer_methods.own_call(keras.layers.Dropout, layer, inputs, training=training)
    along, dim = place
    dim += inputs.shape.rank
    shape = [along.size if one == dim else 1 for one in range(inputs.shape.rank)] * tf.shape(inputs)
    # drawn whole, as one device does, so that masks are those of one device
    mask = keras.random.dropout(tf.ones(shape, inputs.dtype), layer.rate, seed=layer.seed_generator)
    return inputs * along.cut(mask, dim)


def _embedding(layer: keras.layers.Embedding, inputs: Any) -> Any:
    weight = layer_methods.table_of(layer)
    found = _cut_once(weight)
    if found is None or not isinstance(inputs, tf.Tensor) or inputs.shape.rank is None:
        return layer_methods.own_call(keras.layers.Embedding, layer, inputs)
    sharding, along, dim = found
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    ids = tf.where(ids < 0, ids + sharding.shape[0], ids)  # Keras counts them from the end
    if dim == 1:
        found_rows = along.gathered(sharded_variable.rows_of_part(weight, ids), ids.shape.rank)
    else:
        begin, end = sharding.bounds[0]
        with tf.control_dependencies(_known(ids, sharding)):
            is_mine = (ids >= begin) & (ids < end)
        places = tf.where(is_mine, ids - begin, tf.zeros_like(ids))
        if [kind for _, kind in sparse_rows.parts(ids)] == [sparse_rows.RowKind.DISTINCT]:
            places = sparse_rows.marked(places, sparse_rows.RowKind.DISTINCT)  # the others' rows are zeros
        rows = sharded_variable.rows_of_part(weight, places)
        summands = tf.where(is_mine[..., tf.newaxis], rows, tf.zeros_like(rows))
        is_scattering = keep_sharded.is_among(layer, "scattering")
        found_rows = along.scattered(summands, SEQUENCE) if is_scattering else along.summed(summands)
    return keras.ops.cast(found_rows, layer.compute_dtype)


def _known(ids: tf.Tensor, sharding: MeshLayout) -> list[tf.Operation]:
    """Return an operation that fails if a table does not have a row, of which no member would have anything else."""
    rows = sharding.shape[0]
    known = tf.debugging.Assert(
        tf.reduce_all((ids >= 0) & (ids < rows)),
        [f"a number of a row is not in [0 {rows}), the rows of {sharding.label}; the numbers are", ids],
        summarize=8,
    )
    return [] if known is None else [known]


#: the function that computes with a part of a layer, by the layer's class
CALLS: dict[Any, Callable[..., Any]] = {
    keras.layers.Dense: _dense,
    keras.layers.EinsumDense: _einsum_dense,
    keras.layers.Embedding: _embedding,
    keras.layers.Conv1D: _convolution,
    keras.layers.Conv2D: _convolution,
    keras.layers.Conv3D: _convolution,
    keras.layers.Dropout: _dropout,
}


def attention_call(
    layer: Any,
    query: Any,
    value: Any,
    key: Any = None,
    *masks: Any,
    return_attention_scores: bool = False,
    **options: Any,
) -> Any:
    """Compute as Keras' attention does, but only this process's heads if all its weights are cut by heads.

    Shared heads of keys and values are on the processes of their heads of queries. One sum travels in the forward pass,
    and one for each input in the backward pass.

    Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    2019, section 3. There, members draw dropout masks of their own; here the mask of all heads is drawn, and cut.
    """
    key = value if key is None else key
    options["return_attention_scores"] = return_attention_scores
    along = along_of(layer, query, value, key, *masks, **options)
    if along is None or not all(isinstance(one, tf.Tensor) for one in (query, value, key)):
        return layer_methods.own_call(type(layer), layer, query, value, key, *masks, **options)
    different = {id(one): one for one in (query, value, key)}
    if keep_sharded.is_among(layer, "entered"):
        entered = different
    else:
        entered = {name: graphs.with_mask(along.entering(one), graphs.mask_of(one)) for name, one in different.items()}
    query, value, key = (entered[id(one)] for one in (query, value, key))
    with keep_sharded.keeping(_kept_by_heads(layer, along)):
        return layer_methods.own_call(type(layer), layer, query, value, key, **options)


def along_of(layer: Any, query: Any, *others: Any, return_attention_scores: bool = False, **options: Any) -> Any:
    """Return the axis along which such a call of an attention layer computes by heads, or None if it does not."""
    mask = options.get("attention_mask")
    is_for_all_heads = mask is None or len(mask.shape) <= len(query.shape)
    is_plain = len(others) < 3 and is_for_all_heads and not return_attention_scores
    return _by_heads(layer) if is_plain else None


def _by_heads(layer: Any) -> Along | None:
    if not layer_methods.attends_as_keras(layer):
        return None
    back, *ways = [
        way_of(one) for one in (layer_methods.projection_back_of(layer), *layer_methods.projections_of(layer))
    ]
    if back is None or back.by_columns or back.dim != _HEADS:
        return None
    is_alike = all(
        way is not None and way.by_columns and way.dim == _HEADS and way.along.axis == back.along.axis for way in ways
    )
    return back.along if is_alike else None


def _kept_by_heads(layer: Any, along: Along) -> keep_sharded.Kept:
    projections = tuple(layer_methods.projections_of(layer))
    dropout, heads = layer_methods.dropout_of_scores(layer)
    return keep_sharded.Kept(
        giving=projections,
        entered=projections,
        taking=(layer_methods.projection_back_of(layer),),
        between=((dropout, along, heads),),
    )
