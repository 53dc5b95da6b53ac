"""Columns of examples as tensors, by NumPy or by the compiled ops.

A reader has an early part, NumPy for the examples of several batches, and a late one, a graph for one batch.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist import native
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.fetch import PAYLOAD, Fetcher, MappedBytes
from tfdist.data.examples.joined_columns import ColumnFetcher
from tfdist.data.format import example
from tfdist.data.format.record_forms import Forms
from tfdist.data.format.schema import FIXED, TEXT, Feature, Schema, texts_of
from tfdist.data.order.epoch_orders import Ids

# dtypes that `tf.io.decode_raw` does not know -> dtypes with the same bytes
_SAME_BYTES = {"uint32": tf.int32, "uint64": tf.int64, "int8": tf.int8}
_MOST_BYTES = 1 << 20  # of an example's values; an untrusted schema may have any number
_EARLY_BYTES = 4 << 20  # of records that NumPy reads at once
_EARLY_EXAMPLES = 8192
_LARGE_BATCH = 1 << 20  # bytes

Columns = dict[str, Any]
Read = tuple[Columns, tf.Tensor]
#: dtype and shape of an array of the early part, without examples
Spec = tuple[tf.DType, list[int | None]]


def dtype_of(feature: Feature) -> tf.DType:
    return tf.string if feature.dtype == TEXT else tf.as_dtype(feature.dtype)


def shape_of(feature: Feature) -> list[int | None]:
    return [None, *feature.shape]


def parsed(schema: Schema, payloads: tf.Tensor) -> dict[str, Any]:
    """The features of whole payloads, string ``[n]``; a list of any length is ragged."""
    specs: dict[str, Any] = {}
    for name, feature in schema.items():
        kept = {"float": tf.float32, "int64": tf.int64}.get(feature.encoding, tf.string)
        if feature.size is None and feature.encoding != "raw":
            specs[name] = tf.io.RaggedFeature(kept, value_key=name, row_splits_dtype=tf.int64)
        else:
            specs[name] = tf.io.FixedLenFeature([] if feature.encoding == "raw" else list(feature.shape), kept)
    found = tf.io.parse_example(payloads, specs)
    return {
        name: from_raw(feature, found[name]) if feature.encoding == "raw" else _cast(feature, found[name])
        for name, feature in schema.items()
    }


def _cast(feature: Feature, values: Any) -> Any:
    return values if values.dtype == dtype_of(feature) else tf.cast(values, dtype_of(feature))


def from_raw(feature: Feature, values: tf.Tensor) -> Any:
    """Arrays from their bytes, string ``[n]``; those of any length are ragged."""
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


def _column(template: example.Template, name: str, rows: tf.Tensor) -> tf.Tensor:
    """A feature of payloads of the fixed layout, uint8 ``[n, length]``."""
    feature, (begin, size) = template.schema[name], template.slots[name]
    part = rows[:, begin : begin + size]
    if feature.encoding == "int64":
        shifts = tf.constant([7 * place for place in range(size)], tf.int64)
        groups = tf.cast(tf.bitwise.bitwise_and(part, tf.constant(0x7F, tf.uint8)), tf.int64)
        return tf.cast(tf.reduce_sum(tf.bitwise.left_shift(groups, shifts), axis=1), dtype_of(feature))
    return from_bytes(feature, part)


def from_bytes(feature: Feature, part: tf.Tensor) -> tf.Tensor:
    dtype, count = dtype_of(feature), tf.shape(part)[0]
    shape = [count, *(dim or 0 for dim in feature.shape)]
    if dtype == tf.bool:
        return tf.reshape(part > 0, shape)
    if dtype.size == 1:
        return tf.reshape(part if dtype == tf.uint8 else tf.bitcast(part, dtype), shape)
    return tf.reshape(tf.bitcast(tf.reshape(part, [count, -1, dtype.size]), dtype), shape)


def are_numbers(schema: Schema) -> bool:
    """Examples have only numbers, each feature a fixed count, and few in all."""
    sizes = [feature.size for feature in schema.values() if feature.encoding != "bytes"]
    return len(sizes) == len(schema) and all(sizes) and 8 * sum(size or 0 for size in sizes) <= _MOST_BYTES


def stored(schema: Schema) -> list[tuple[str, str, int]]:
    """Return a schema of numbers in the form that `tfdist.native.Records.parse_records` takes."""
    found = []
    for name, feature in schema.items():
        size = feature.size or 0
        is_raw = feature.encoding == "raw"
        found.append((name, *(("bytes", size * dtype_of(feature).size) if is_raw else (feature.encoding, size))))
    return found


def from_stored(schema: Schema, values: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """The features of what `parse_records` returned."""
    found = {}
    for (name, feature), value in zip(schema.items(), values, strict=True):
        shape = [-1, *(dim or 0 for dim in feature.shape)]  # of features that have values
        is_raw = feature.encoding == "raw"
        found[name] = from_bytes(feature, value) if is_raw else tf.reshape(_cast(feature, value), shape)
    return found


def with_shapes(schema: Schema, features: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in features.items():
        if isinstance(value, tf.Tensor):
            value.set_shape(shape_of(schema[name]))
    return dict(features)


class ColumnReader(Protocol):
    """Reads columns by the numbers of examples; `specs` is what `early` returns for about `examples` of them.

    `parses` is True if it parses most records itself, and another reader reads batches with records that it does not.
    """

    specs: list[Spec]
    examples: int
    parses: bool

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        """Return arrays, examples first."""

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        """Return the columns of one batch from its part of the arrays, and float32 1 for each sound example."""


class ByNumpy:
    """Reads several batches at once, when the numbers are known."""

    parses = False

    def __init__(self, fetcher: ColumnFetcher) -> None:
        self._fetcher = fetcher
        self._specs = _column_specs(fetcher)
        self.specs = [
            *(self._specs[name] for name in fetcher.names if not _is_empty(self._specs[name])),
            (tf.float32, []),
        ]
        manifest = fetcher.examples.manifest
        self.mean_bytes = max(1, manifest.total_bytes // max(1, manifest.examples))
        self.examples = min(_EARLY_EXAMPLES, max(1, _EARLY_BYTES // self.mean_bytes))

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        columns, sound = self._fetcher(ids)
        return [*(columns[name] for name in self._fetcher.names if not _is_empty(self._specs[name])), sound]

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        """The columns that were read; whole payloads are parsed."""
        given = iter(found[:-1])
        columns = {name: _given(self._specs[name], given, ids) for name in self._fetcher.names}
        return _parsed(self._fetcher, columns), found[-1]


class WhenAsked(ByNumpy):
    """Reads one batch when its columns are asked for, because they may be known already."""

    def __init__(self, fetcher: ColumnFetcher) -> None:
        super().__init__(fetcher)
        self._read = self.specs
        self.specs = []
        is_mapped = isinstance(fetcher, Fetcher) and isinstance(fetcher.source, MappedBytes)
        self.is_serial = is_mapped and PAYLOAD not in fetcher.names
        self.examples = _EARLY_EXAMPLES

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        return []

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        dtypes = [dtype for dtype, _ in self._read]
        read = self._fetcher.failures.noted(super().early)
        values = tf.numpy_function(read, [ids], dtypes, stateful=False)
        return super().late(ids, shaped(values, [[None, *shape] for _, shape in self._read]))


class ByForms(ByNumpy):
    """Parses records of few forms early, in NumPy; ``odd`` reads any batch with a record of another form."""

    parses = True

    def __init__(self, fetcher: Fetcher, forms: Forms, odd: ColumnReader) -> None:
        super().__init__(fetcher)
        self._parsed = functools.partial(fetcher.parsed, forms)
        self._names = list(fetcher.examples.schema)
        self._odd = odd
        features = fetcher.examples.schema.values()
        self.specs = [*((dtype_of(one), shape_of(one)[1:]) for one in features), (tf.bool, []), (tf.float32, [])]

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        columns, sound = self._parsed(ids)
        return [*(columns[name] for name in self._names), columns[PAYLOAD], sound]

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        *columns, done, sound = found
        return either_read(
            tf.reduce_all(done),
            lambda: (dict(zip(self._names, columns, strict=True)), sound),
            lambda: self._odd.late(ids, []),
        )


class ByOps:
    """Finds places early, and reads by the compiled ops, without Python; every checksum is checked.

    `parses`: the ops also parse records of the generic layout; else TensorFlow does. A batch with a corrupt example or
    of a replaced file goes to NumPy and TensorFlow, and one with an odd record to ``odd``.
    """

    examples = _EARLY_EXAMPLES

    def __init__(self, fetcher: Fetcher, ops: Any, paths: list[str], odd: ColumnReader) -> None:
        self._fetcher = fetcher
        self._ops = ops
        self._paths = paths
        self._states = fetcher.examples.binding.states()
        self._directory: Examples = fetcher.examples
        self._texts = texts_of(self._directory.schema, self._directory.manifest.layout)
        self.parses = PAYLOAD in fetcher.names and are_numbers(self._directory.schema) and self._can_parse()
        self._asked = odd if self.parses else WhenAsked(fetcher)
        place: list[Spec] = [(tf.int32, []), (tf.int64, []), (tf.int64, [])]
        extents: list[Spec] = [(tf.int64, [])] * (2 * len(self._texts))
        specs = _column_specs(fetcher)
        self._values = {name: specs[name] for name in fetcher.names if name in fetcher.values}
        self.specs = [*place, *extents, *(spec for spec in self._values.values() if not _is_empty(spec))]

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        """Shard, offset and length of each record, the extents of its texts, and its values in the index."""
        extents = [bound for name in self._texts for bound in self._fetcher.extent(name, ids)]
        values = self._fetcher.values_of(ids)
        present = [values[name] for name, spec in self._values.items() if not _is_empty(spec)]
        return [*self._directory.locate(ids), *extents, *present]

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        columns, ok = self._parsed_by_ops(found) if self.parses else self._by_ops(found)
        return either_read(
            tf.reduce_all(ok),
            lambda: (_parsed(self._fetcher, columns), tf.ones_like(ids, tf.float32)),
            lambda: self._asked.late(ids, []),
        )

    def _can_parse(self) -> bool:
        """The op parses the records of a sample: both ways in one graph would lengthen every epoch's start."""
        if not len(self._fetcher.sample):
            return False
        with tf.init_scope():
            _, ok = self._parsed_by_ops(list(map(tf.constant, self._directory.locate(self._fetcher.sample))))
            return bool(tf.reduce_all(ok))

    def _parsed_by_ops(self, found: list[tf.Tensor]) -> Read:
        file, offset, length = found
        schema = self._directory.schema
        check = tf.fill(tf.shape(file), self._fetcher.verify != "never")
        values, ok = self._ops.parse_records(
            tf.constant(self._paths), file, offset, length, check, stored(schema), state=self._states
        )
        return from_stored(schema, values), ok

    def _by_ops(self, found: list[tf.Tensor]) -> Read:
        file, offset, length, *rest = found
        check = tf.fill(tf.shape(file), self._fetcher.verify != "never")
        files = tf.constant(self._paths)
        if self._directory.manifest.layout == FIXED:
            template = self._directory.template
            assert template is not None
            rows, ok = self._ops.read_rows(files, file, offset, check, length=template.length, state=self._states)
            return {name: _column(template, name, rows) for name in template.schema}, ok
        if PAYLOAD in self._fetcher.names:
            begins = tf.zeros_like(length)
            payload, ok = self._ops.read_records(files, file, offset, length, begins, length, check, state=self._states)
            return {PAYLOAD: payload}, ok
        extents = 2 * len(self._texts)
        given = iter(rest[extents:])
        columns: Columns = {name: _given(spec, given, file) for name, spec in self._values.items()}
        ok = tf.ones_like(check)
        for place, name in enumerate(self._texts):
            start, size = rest[2 * place : 2 * place + 2]
            # a payload has one checksum, so it is enough to look at it once
            looks = check if not place else tf.zeros_like(check)
            columns[name], sound = self._ops.read_records(
                files, file, offset, length, start, size, looks, state=self._states
            )
            ok = tf.logical_and(ok, sound)
        return {name: columns[name] for name in self._fetcher.names}, ok


def is_serial(reader: ColumnReader) -> bool:
    """Nearly all of the late part needs Python's lock, so only one batch at a time can be made."""
    return isinstance(reader, WhenAsked) and reader.is_serial


def either_read(holds: tf.Tensor, one: Callable[[], Read], other: Callable[[], Read]) -> Read:
    """One or the other; their columns may be ragged."""
    structure: list[Any] = []

    def flat(branch: Callable[[], Read]) -> list[tf.Tensor]:
        structure[:] = [branch()]
        return list(tf.nest.flatten(structure[0], expand_composites=True))

    found = tf.cond(holds, lambda: flat(one), lambda: flat(other))
    columns, sound = tf.nest.pack_sequence_as(structure[0], found, expand_composites=True)
    return columns, sound


def _parsed(fetcher: ColumnFetcher, columns: Columns) -> Columns:
    schema = fetcher.examples.schema
    if PAYLOAD in columns:
        return parsed(schema, columns[PAYLOAD])
    lists = {name: from_raw(schema[name], columns[name]) for name in columns if _is_list(schema[name])}
    return {**columns, **lists}


def _column_specs(fetcher: ColumnFetcher) -> dict[str, Spec]:
    if PAYLOAD in fetcher.names:
        return {PAYLOAD: (tf.string, [])}
    return {
        name: (tf.string, []) if _is_list(feature) else (dtype_of(feature), shape_of(feature)[1:])
        for name, feature in fetcher.examples.schema.items()
    }


def _is_list(feature: Feature) -> bool:
    """Return whether a feature is a list of any length, which a fetcher that does not parse gives as bytes."""
    return feature.size is None


def _is_empty(spec: Spec) -> bool:
    """Return whether an array has no values: `unbatch` cannot cut such arrays, so they are made where needed."""
    return 0 in spec[1]


def _given(spec: Spec, given: Iterator[tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
    dtype, shape = spec
    return tf.zeros([tf.size(rows), *(dim or 0 for dim in shape)], dtype) if _is_empty(spec) else next(given)


def arrays_of(reader: ColumnReader, ids: Ids) -> list[NDArray[Any]]:
    """Return the early part of several batches, ``[batches, rows, ...]``, given their examples ``[batches, rows]``."""
    return [np.reshape(array, (*ids.shape, *array.shape[1:])) for array in reader.early(ids.reshape(-1))]


def shaped(values: list[tf.Tensor], shapes: Sequence[list[int | None]]) -> list[tf.Tensor]:
    for value, shape in zip(values, shapes, strict=True):
        value.set_shape(shape)
    return values


def cut(data: Any, slices: tf.Tensor, count: int) -> tuple[Any, ...]:
    return tuple(
        (slices[place, 0], tf.nest.map_structure(lambda v, p=place: v[slices[p, 1] : slices[p, 2]], data))
        for place in range(count)
    )


def after(condition: tf.Tensor, call: Callable[[], np.bool_], data: Any) -> Any:
    """Return the data, after a call of Python if the condition holds."""
    done = tf.cond(condition, lambda: tf.numpy_function(call, [], tf.bool), lambda: tf.constant(False))
    with tf.control_dependencies([done]):
        return tf.nest.map_structure(tf.identity, data)


def _forms_of(fetcher: ColumnFetcher) -> tuple[Fetcher, Forms] | None:
    """Return the fetcher and the forms of its records, if these have few forms and NumPy reads the files."""
    if not isinstance(fetcher, Fetcher) or not isinstance(fetcher.source, MappedBytes):
        return None
    schema = fetcher.examples.schema
    forms = fetcher.forms_of(schema) if fetcher.names == [PAYLOAD] and are_numbers(schema) else None
    return None if forms is None else (fetcher, forms)


def reader_of(
    fetcher: ColumnFetcher, global_batch_size: int, asked: WhenAsked, odd: ColumnReader, *, uses_ops: bool, caches: bool
) -> ColumnReader:
    """Return the fastest reader of these examples.

    ``asked`` reads one batch when its columns are asked for, which is right if a cache may have the batch. ``odd``
    reads batches with records that the other readers cannot parse.
    """
    if caches:
        return asked
    if uses_ops and isinstance(fetcher, Fetcher) and isinstance(fetcher.source, MappedBytes):
        ops = native.records()
        if ops is not None:
            return ByOps(fetcher, ops, fetcher.source.paths, odd)
    # cutting several large batches apart takes longer than a call for each
    if asked.mean_bytes * global_batch_size > _LARGE_BATCH:
        return asked
    found = _forms_of(fetcher)
    return ByNumpy(fetcher) if found is None else ByForms(*found, odd)
