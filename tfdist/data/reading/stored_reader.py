"""A reader of unencoded values in files of other libraries."""

from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from tfdist import native
from tfdist.data.examples.computed_examples import ComputedFetcher
from tfdist.data.order.epoch_orders import Ids
from tfdist.data.reading.tensor_columns import Columns, Read, Spec, WhenAsked, either_read, from_bytes

_EXAMPLES = 8192  # number of examples whose places are found at once


class StoredByOps:
    """Finds the places of values early, and copies the values once, by the compiled ops; made by `stored_reader`.

    If a file was replaced, NumPy reads the batch, and reports the file.
    """

    examples = _EXAMPLES
    parses = False

    def __init__(self, fetcher: ComputedFetcher, ops: native.Records, paths: list[str]) -> None:
        self._fetcher = fetcher
        self._ops = ops
        self._paths = paths
        self._states = fetcher.examples.binding.states()
        self._schema = fetcher.examples.schema
        self._widths = fetcher.stored()
        place: Spec = (tf.int64, [])
        self._lengths = [name for name in self._schema if self._widths[name] is None]
        self.specs: list[Spec] = [(tf.int32, []), *[place] * (len(self._schema) + len(self._lengths)), (tf.float32, [])]

    def early(self, ids: Ids) -> list[NDArray[Any]]:
        """Return the file of each example, the first byte of each feature, variable sizes, and weights."""
        file, places, sound = self._fetcher.places(ids)
        begins, sizes = [places[name][0] for name in self._schema], [places[name][1] for name in self._lengths]
        return [file, *begins, *sizes, sound]

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> Read:
        """Read a batch."""
        file, *rest, sound = found
        begins = dict(zip(self._schema, rest, strict=False))
        sizes = dict(zip(self._lengths, rest[len(self._schema) :], strict=True))
        files, unchecked, ok = tf.constant(self._paths), tf.zeros_like(file, tf.bool), tf.ones_like(file, tf.bool)
        columns: Columns = {}
        for name, feature in self._schema.items():
            begin, width = begins[name], self._widths[name]
            if width is None:
                size = sizes[name]
                columns[name], is_there = self._ops.read_records(
                    *(files, file, begin, size, tf.zeros_like(size), size, unchecked), state=self._states, framed=False
                )
            else:
                rows, is_there = self._ops.read_rows(
                    *(files, file, begin, unchecked, width), state=self._states, framed=False
                )
                columns[name] = from_bytes(feature, rows)
            ok = tf.logical_and(ok, is_there)
        return either_read(tf.reduce_all(ok), lambda: (columns, sound), lambda: WhenAsked(self._fetcher).late(ids, []))


def stored_reader(fetcher: ComputedFetcher) -> StoredByOps | None:
    """Return a reader by the compiled ops; None if they are missing, or if values must be computed."""
    if fetcher.stored().keys() != set(fetcher.names):
        return None
    if (ops := native.records()) is None:
        return None
    examples = fetcher.examples
    paths = [str(Path(str(examples.storage.local), shard.file)) for shard in examples.manifest.shards]
    return StoredByOps(fetcher, ops, paths)
