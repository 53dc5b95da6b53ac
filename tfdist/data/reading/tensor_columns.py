"""Columns of examples as tensors, by NumPy or by the compiled ops: what is prepared for many batches, and what for one.

A reader has an early part, NumPy for the examples of several batches, and a late one, a graph for one batch.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.data.format.record_layout import FIXED
from tfdist.data.format.shard_index import texts_of
from tfdist.data.order.epoch_orders import Ids
from tfdist.data.reading import feature_tensors
from tfdist.data.reading.examples import Examples
from tfdist.data.reading.fetch import PAYLOAD, Fetcher

_EARLY_BYTES = 4 << 20  # of records, that NumPy reads at once
_EARLY_EXAMPLES = 8192

Columns = dict[str, Any]
Read = tuple[Columns, tf.Tensor]
#: dtype and shape of an array of the early part, without examples
Spec = tuple[tf.DType, list[int | None]]


class ColumnReader(Protocol):
    """Reads columns of examples by their numbers.

    Attributes:
        specs: what `early` returns.
        examples: about how many examples `early` is to be given.
    """

    specs: list[Spec]
    examples: int

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        """Return arrays, examples first."""

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        """Return the columns of one batch from its part of the arrays, and float32 1 for each sound example."""


class ByNumpy:
    """Reads when the numbers are known, several batches at once."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._specs = _column_specs(fetcher)
        self.specs = [
            *(self._specs[name] for name in fetcher.names if not _is_empty(self._specs[name])),
            (tf.float32, []),
        ]
        self.examples = _examples_at_once(fetcher)

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        """Return the columns, and 1 for each sound example."""
        columns, sound = self._fetcher(ids)
        return [*(columns[name] for name in self._fetcher.names if not _is_empty(self._specs[name])), sound]

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        """Return what was read; whole payloads are parsed."""
        given = iter(found[:-1])
        columns = {name: _given(self._specs[name], given, ids) for name in self._fetcher.names}
        return _parsed(self._fetcher, columns), found[-1]


class WhenAsked(ByNumpy):
    """Reads one batch when its columns are asked for: where they may be known already."""

    def __init__(self, fetcher: Fetcher) -> None:
        super().__init__(fetcher)
        self._read = self.specs
        self.specs = []
        self.examples = _EARLY_EXAMPLES

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        """Return nothing."""
        return []

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        """Read."""
        dtypes = [dtype for dtype, _ in self._read]
        read = self._fetcher.failures.noted(super().early)
        values = tf.numpy_function(read, [ids], dtypes, stateful=False)
        for value, (_, shape) in zip(values, self._read, strict=True):
            value.set_shape([None, *shape])
        return super().late(ids, values)


class ByOps:
    """Finds places early, and reads by the compiled ops, without Python; every checksum is checked.

    Attributes:
        parses: whether the ops parse records of the layout generic as well; else TensorFlow does.
    """

    examples = _EARLY_EXAMPLES

    def __init__(self, fetcher: Fetcher, ops: Any, paths: list[str]) -> None:
        self._fetcher = fetcher
        self._ops = ops
        self._paths = paths
        self._states = fetcher.examples.binding.states()
        self._directory: Examples = fetcher.examples
        self._texts = texts_of(self._directory.schema, self._directory.manifest.layout)
        self.parses = (
            PAYLOAD in fetcher.names and feature_tensors.are_numbers(self._directory.schema) and self._can_parse()
        )
        place: list[Spec] = [(tf.int32, []), (tf.int64, []), (tf.int64, [])]
        extents: list[Spec] = [(tf.int64, [])] * (2 * len(self._texts))
        specs = _column_specs(fetcher)
        self._values = {name: specs[name] for name in fetcher.names if name in fetcher.values}
        self.specs = [*place, *extents, *(spec for spec in self._values.values() if not _is_empty(spec))]

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        """Return shard, offset and length of each record, the extents of its texts, and its values in the index."""
        extents = [bound for name in self._texts for bound in self._fetcher.extent(name, ids)]
        values = self._fetcher.values_of(ids)
        present = [values[name] for name, spec in self._values.items() if not _is_empty(spec)]
        return [*self._directory.locate(ids), *extents, *present]

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        """Read by the ops; a batch with an example that is corrupt or strange goes to NumPy and to TensorFlow.

        So does one of a file that is not the one that was looked at when reading began: NumPy looks again.
        """
        columns, ok = self._parsed_by_ops(found) if self.parses else self._by_ops(found)
        asked = WhenAsked(self._fetcher)
        return _either(
            tf.reduce_all(ok),
            lambda: (_parsed(self._fetcher, columns), tf.ones_like(ids, tf.float32)),
            lambda: asked.late(ids, []),
        )

    def _can_parse(self) -> bool:
        """Whether the op parses the records of a sample: both ways in one graph would lengthen every epoch's start."""
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
            tf.constant(self._paths), file, offset, length, check, feature_tensors.stored(schema), state=self._states
        )
        return feature_tensors.from_stored(schema, values), ok

    def _by_ops(self, found: list[tf.Tensor]) -> Read:
        file, offset, length, *rest = found
        check = tf.fill(tf.shape(file), self._fetcher.verify != "never")
        files = tf.constant(self._paths)
        if self._directory.manifest.layout == FIXED:
            template = self._directory.template
            assert template is not None
            rows, ok = self._ops.read_rows(files, file, offset, check, length=template.length, state=self._states)
            return feature_tensors.from_rows(template, rows), ok
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


def _either(holds: tf.Tensor, one: Callable[[], Read], other: Callable[[], Read]) -> Read:
    """Return one or the other; their columns may be ragged."""
    structure: list[Any] = []

    def flat(branch: Callable[[], Read]) -> list[tf.Tensor]:
        structure[:] = [branch()]
        return list(tf.nest.flatten(structure[0], expand_composites=True))

    found = tf.cond(holds, lambda: flat(one), lambda: flat(other))
    columns, sound = tf.nest.pack_sequence_as(structure[0], found, expand_composites=True)
    return columns, sound


def _examples_at_once(fetcher: Fetcher) -> int:
    manifest = fetcher.examples.manifest
    mean = max(1, manifest.total_bytes // max(1, manifest.examples))
    return min(_EARLY_EXAMPLES, max(1, _EARLY_BYTES // mean))


def _parsed(fetcher: Fetcher, columns: Columns) -> Columns:
    return feature_tensors.parsed(fetcher.examples.schema, columns[PAYLOAD]) if PAYLOAD in columns else columns


def _column_specs(fetcher: Fetcher) -> dict[str, Spec]:
    return {PAYLOAD: (tf.string, [])} if PAYLOAD in fetcher.names else _specs_of(fetcher)


def _specs_of(fetcher: Fetcher) -> dict[str, Spec]:
    schema = fetcher.examples.schema
    return {
        name: (feature_tensors.dtype_of(schema[name]), feature_tensors.shape_of(schema[name])[1:]) for name in schema
    }


def _is_empty(spec: Spec) -> bool:
    """Return whether it has no values: such arrays are made where they are needed, `unbatch` cannot cut them."""
    return 0 in spec[1]


def _given(spec: Spec, given: Iterator[tf.Tensor], rows: tf.Tensor) -> tf.Tensor:
    dtype, shape = spec
    return tf.zeros([tf.size(rows), *(dim or 0 for dim in shape)], dtype) if _is_empty(spec) else next(given)


def arrays_of(reader: ColumnReader, ids: Ids) -> list[NDArray[Any]]:
    """Return the early part of several batches, ``[batches, rows, ...]``, for their examples ``[batches, rows]``."""
    return [np.reshape(array, (*ids.shape, *array.shape[1:])) for array in reader.early(ids.reshape(-1))]
