"""The transport of gradients from a worker to the servers of their variables, in the parts of the variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow import partitioned as tf_partitioned
from tfdist.compat.tensorflow import sparse_sums
from tfdist.compat.tensorflow.sparse_rows import RowKind
from tfdist.compression import one_way
from tfdist.compression.codec import Codec
from tfdist.gradients.reduction.compressed_reducer import is_compressed
from tfdist.gradients.reduction.reducer import Gradient

# How a gradient travels: "whole", "encoded" by a codec, or as rows, with the kind of each part of them, as in
# "rows common"; and the number of parts of its variable
Kind = tuple[str, int]


def left_on_servers(
    gradient: Gradient, variable: Any, *, in_parts: bool, codec: Codec | None = None
) -> tuple[Kind, list[tf.Tensor]]:
    """Return a gradient's kind, and its tensors on the servers of its variable."""
    kind, pieces = _pieces(gradient.value, variable, gradient.keep_duplicate_indices, in_parts)
    if (
        codec is not None
        and kind[0] == "whole"
        and is_compressed(codec, tf.TensorSpec(variable.shape, tf.as_dtype(variable.dtype)))
    ):
        kind, pieces = ("encoded", kind[1]), [(one_way.sent(codec, widened(one)), device) for one, device in pieces]
    return kind, [tensor for piece, device in pieces for tensor in left_on_server(piece, device)]


def left_on_server(value: Any, device: str) -> list[tf.Tensor]:
    tensors = [value.values, value.indices] if isinstance(value, tf.IndexedSlices) else [value]
    with tf.device(device):
        return [tf.identity(tensor) for tensor in tensors]


def _pieces(value: Any, variable: Any, keep_duplicate_indices: bool, in_parts: bool) -> tuple[Kind, list[Any]]:
    """Return a gradient's kind, and its pieces, each with the server of its variable or of a part of it."""
    own = keras_variables.value_of(variable)
    cut = in_parts and isinstance(own, tf_partitioned.PartitionedVariable)
    name, values = _kind_and_rows(value, keep_duplicate_indices)
    if not cut:
        return (name, 1), [(one, own.device) for one in values]
    placed = [
        (tf_partitioned.rows_for(own, index, one), device) for index, device in enumerate(own.devices) for one in values
    ]
    return (name, len(own.devices)), placed


def _kind_and_rows(value: Any, keep_duplicate_indices: bool) -> tuple[str, list[Any]]:
    if not isinstance(value, tf.IndexedSlices):
        return "whole", [value]
    if not keep_duplicate_indices:
        return RowKind.OWN.value, [sparse_sums.by_index(value)]
    parts = sparse_sums.divided(value)
    return " ".join(kind.value for _, kind in parts), [rows for rows, _ in parts]


def tensors_of(kind: Kind | None) -> list[str]:
    """Return the name of each tensor of a gradient of this kind."""
    if kind is None:
        return []
    name, parts = kind
    tensors = 1 if name in ("whole", "encoded") else 2 * len(name.split())  # rows are values and indices
    return [name] * (parts * tensors)


def sum_of(kind: Kind | None, variable: Any, own: list[list[tf.Tensor]], codec: Codec | None = None) -> Any:
    """Take the next gradient from the tensors of each part of the batch, and return the sum."""
    if kind is None:
        return None
    name, parts = kind
    shapes = [part.shape for part in keras_variables.value_of(variable).parts] if parts > 1 else [variable.shape]
    if name == "encoded" and codec is not None:
        specs = [tf.TensorSpec(shape, widened_dtype(tf.as_dtype(variable.dtype))) for shape in shapes]
        sums = [_added([one_way.received(codec, part.pop(0), spec) for part in own]) for spec in specs]
    else:
        sums = [_sum_of_piece(name, shape, own) for shape in shapes]
    return sums[0] if parts == 1 else tf_partitioned.PartitionedGradient(sums)


def _sum_of_piece(name: str, shape: Any, own: list[list[tf.Tensor]]) -> Any:
    if name == "whole":
        return _added([widened(part.pop(0)) for part in own])
    dense_shape = tf.constant(tf.TensorShape(shape).as_list(), tf.int32)

    def next_rows(kind: RowKind) -> tf.IndexedSlices:
        values = [widened(part.pop(0)) for part in own]
        indices = [part.pop(0) for part in own]
        if kind is RowKind.COMMON:  # the same on all parts of the batch, as they were on the whole of it
            return tf.IndexedSlices(_added(values), indices[0], dense_shape)
        rows = tf.IndexedSlices(tf.concat(values, axis=0), tf.concat(indices, axis=0), dense_shape)
        return sparse_sums.by_index(rows) if kind is RowKind.DISTINCT else rows

    return sparse_sums.together([next_rows(RowKind(kind)) for kind in name.split()])


def _added(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.add_n(tensors)


def widened(tensor: tf.Tensor) -> tf.Tensor:
    """Widen 16-bit tensors to float32, so a sum is not rounded again."""
    return tf.cast(tensor, widened_dtype(tensor.dtype))


def widened_dtype(dtype: tf.DType) -> tf.DType:
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def spec_of(tensor: tf.Tensor, name: str) -> tf.TensorSpec:
    """Return the spec of a gradient's tensor, which may have any number of rows."""
    shape = tensor.shape if name in ("whole", "encoded") else tf.TensorShape([None, *tensor.shape[1:]])
    return tf.TensorSpec(shape, tensor.dtype)


def packed(values: list[tf.Tensor]) -> tf.Tensor:
    """Return the bytes of all values in one tensor, which is fetched in one transfer."""
    flat = []
    for value in values:
        value = tf.cast(value, tf.uint8) if value.dtype == tf.bool else value
        flat.append(tf.reshape(value if value.dtype == tf.uint8 else tf.bitcast(value, tf.uint8), [-1]))
    return tf.concat(flat, axis=0) if flat else tf.zeros([0], tf.uint8)


def unpacked(data: bytes, notes: Sequence[Any]) -> list[np.ndarray]:
    """Return the arrays that `packed` joined; each note has the dtype and shape of one."""
    arrays, begin = [], 0
    for note in notes:
        dtype = np.dtype(note.dtype.as_numpy_dtype)
        end = begin + int(np.prod(note.shape, dtype=int)) * dtype.itemsize
        arrays.append(np.frombuffer(data[begin:end], dtype).reshape(note.shape))
        begin = end
    return arrays
