"""From bytes to tensors: whole batches of one layout become a dict of features."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.data.format import example
from tfdist.data.format.schema import TEXT, Feature, Schema

# what `tf.io.decode_raw` does not know, and what has the same bytes
_SAME_BYTES = {"uint32": tf.int32, "uint64": tf.int64, "int8": tf.int8}
_MOST_BYTES = 1 << 20  # of an example's values: a stranger's schema may have any number


def dtype_of(feature: Feature) -> tf.DType:
    """Return the dtype of a feature's tensor."""
    return tf.string if feature.dtype == TEXT else tf.as_dtype(feature.dtype)


def shape_of(feature: Feature) -> list[int | None]:
    """Return the shape of a feature's tensor over a batch."""
    return [None, *feature.shape]


def parsed(schema: Schema, payloads: tf.Tensor) -> dict[str, Any]:
    """Return the features of whole payloads, string ``[n]``; a list of any length is ragged."""
    specs: dict[str, Any] = {name: _parse_spec(name, feature) for name, feature in schema.items()}
    found = tf.io.parse_example(payloads, specs)
    return {name: _decoded(feature, found[name]) for name, feature in schema.items()}


def _parse_spec(name: str, feature: Feature) -> Any:
    stored = {"float": tf.float32, "int64": tf.int64}.get(feature.encoding, tf.string)
    if feature.size is None and feature.encoding != "raw":
        return tf.io.RaggedFeature(stored, value_key=name, row_splits_dtype=tf.int64)
    return tf.io.FixedLenFeature([] if feature.encoding == "raw" else list(feature.shape), stored)


def _decoded(feature: Feature, values: Any) -> Any:
    if feature.encoding == "raw":
        return from_raw(feature, values)
    return _cast(feature, values)


def _cast(feature: Feature, values: Any) -> Any:
    return values if values.dtype == dtype_of(feature) else tf.cast(values, dtype_of(feature))


def from_raw(feature: Feature, values: tf.Tensor) -> Any:
    """Return arrays from their bytes, string ``[n]``; those of any length are ragged."""
    if feature.size is not None:
        return tf.reshape(_numbers(feature, values), [tf.size(values), *(dim or 0 for dim in feature.shape)])
    sizes, width = tf.strings.length(values), dtype_of(feature).size
    whole = tf.debugging.assert_equal(sizes % width, 0, message=f"an example has bytes which are not {feature}")
    with tf.control_dependencies([whole]):
        numbers = _numbers(feature, tf.strings.reduce_join(values))
        return tf.RaggedTensor.from_row_lengths(numbers, tf.cast(sizes // width, tf.int64), validate=False)


def _numbers(feature: Feature, values: tf.Tensor) -> tf.Tensor:
    dtype = dtype_of(feature)
    if dtype == tf.bool:
        return tf.io.decode_raw(values, tf.uint8) > 0
    found = tf.io.decode_raw(values, _SAME_BYTES.get(feature.dtype, dtype))
    return found if found.dtype == dtype else tf.bitcast(found, dtype)


def from_rows(template: example.Template, rows: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return the features of payloads of the fixed layout, uint8 ``[n, length]``."""
    return {name: _column(template, name, rows) for name in template.schema}


def _column(template: example.Template, name: str, rows: tf.Tensor) -> tf.Tensor:
    feature, (begin, size) = template.schema[name], template.slots[name]
    part = rows[:, begin : begin + size]
    if feature.encoding == "int64":
        shifts = tf.constant([7 * place for place in range(size)], tf.int64)
        groups = tf.cast(tf.bitwise.bitwise_and(part, tf.constant(0x7F, tf.uint8)), tf.int64)
        return tf.cast(tf.reduce_sum(tf.bitwise.left_shift(groups, shifts), axis=1), dtype_of(feature))
    return _from_bytes(feature, part)


def _from_bytes(feature: Feature, part: tf.Tensor) -> tf.Tensor:
    dtype, count = dtype_of(feature), tf.shape(part)[0]
    shape = [count, *(dim or 0 for dim in feature.shape)]
    if dtype == tf.bool:
        return tf.reshape(part > 0, shape)
    if dtype.size == 1:
        return tf.reshape(part if dtype == tf.uint8 else tf.bitcast(part, dtype), shape)
    return tf.reshape(tf.bitcast(tf.reshape(part, [count, -1, dtype.size]), dtype), shape)


def are_numbers(schema: Schema) -> bool:
    """Return whether examples have numbers alone, of each feature as many, and of all not very many.

    Example:
        >>> are_numbers(Schema({"x": Feature("float32", (2,))})), are_numbers(Schema({"x": Feature("string")}))
        (True, False)
    """
    sizes = [feature.size for feature in schema.values() if feature.encoding != "bytes"]
    return len(sizes) == len(schema) and all(sizes) and 8 * sum(size or 0 for size in sizes) <= _MOST_BYTES


def stored(schema: Schema) -> list[tuple[str, str, int]]:
    """Return what `tfdist.native.Records.parse_records` is told of a schema of numbers."""
    found = []
    for name, feature in schema.items():
        size = feature.size or 0
        is_raw = feature.encoding == "raw"
        found.append((name, *(("bytes", size * dtype_of(feature).size) if is_raw else (feature.encoding, size))))
    return found


def from_stored(schema: Schema, values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return the features of what it returned."""
    found = {}
    for (name, feature), value in zip(schema.items(), values, strict=True):
        shape = [tf.shape(value)[0], *(dim or 0 for dim in feature.shape)]
        is_raw = feature.encoding == "raw"
        found[name] = _from_bytes(feature, value) if is_raw else tf.reshape(_cast(feature, value), shape)
    return found


def with_shapes(schema: Schema, features: Mapping[str, Any]) -> dict[str, Any]:
    """Return features whose static shapes are those of the schema."""
    for name, value in features.items():
        if isinstance(value, tf.Tensor):
            value.set_shape(shape_of(schema[name]))
    return dict(features)
