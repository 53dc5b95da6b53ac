"""The part of a variable that a worker updates: taken from the whole, and joined with the other parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from tfdist.gradients.sharding import shard_layout


class Part(Protocol):
    """One worker's part of one variable."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part."""

    def of(self, value: Any) -> Any:
        """Return this part of a tensor or of `tf.IndexedSlices` for the whole variable."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive elements of the flattened variable.

    Attributes:
        whole: the shape of the variable.
        index: the index of the worker.
        size: the number of workers.
    """

    whole: tuple[int, ...]
    index: int
    size: int

    @property
    def count(self) -> int:
        """The number of elements of the whole."""
        return math.prod(self.whole)

    @property
    def bounds(self) -> tuple[int, int]:
        return shard_layout.stretch(self.count, self.index, self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        begin, end = self.bounds
        return (end - begin,)

    @property
    def width(self) -> int:
        """The number of elements of the longest stretch, which is what each worker sends."""
        return -(-self.count // self.size)

    def of(self, value: Any) -> Any:
        """Return this worker's elements; for rows of a table, each element as a row of its own."""
        if isinstance(value, tf.IndexedSlices):
            return self._of_rows(value)
        begin, end = self.bounds
        return tf.reshape(value, [-1])[begin:end]

    def _of_rows(self, rows: tf.IndexedSlices) -> tf.IndexedSlices:
        begin, end = self.bounds
        wide = math.prod(self.whole[1:])
        if self.count > tf.int32.max:  # then the place of an element is no int32
            rows = tf.IndexedSlices(rows.values, tf.cast(rows.indices, tf.int64), rows.dense_shape)
        if end == begin or not wide:
            return tf.IndexedSlices(tf.zeros([0], rows.dtype), tf.zeros([0], rows.indices.dtype), tf.constant([0]))
        inside = (rows.indices >= begin // wide) & (rows.indices <= (end - 1) // wide)
        indices = tf.boolean_mask(rows.indices, inside)
        values = tf.reshape(tf.boolean_mask(rows.values, inside), [-1])
        places = tf.reshape(indices[:, tf.newaxis] * wide + tf.range(wide, dtype=indices.dtype), [-1])
        mine = (places >= begin) & (places < end)  # the first and the last row may be another's in part
        return tf.IndexedSlices(
            tf.boolean_mask(values, mine), tf.boolean_mask(places, mine) - begin, tf.constant([end - begin])
        )

    def spread(self, value: tf.Tensor) -> tf.Tensor:
        """Return a row of elements for each worker, shape (size, width); short rows end with a zero."""
        flat, more = tf.reshape(value, [-1]), self.count % self.size
        if not more:
            return tf.reshape(flat, [self.size, self.width])
        long, short = flat[: more * self.width], flat[more * self.width :]
        rows = tf.reshape(short, [self.size - more, self.width - 1])
        return tf.concat([tf.reshape(long, [more, self.width]), tf.pad(rows, [[0, 0], [0, 1]])], axis=0)

    def padded(self, mine: tf.Tensor) -> tf.Tensor:
        """Return this worker's elements as a row of `spread`, shape (1, width)."""
        return tf.pad(mine, [[0, self.width - self.shape[0]]])[tf.newaxis]

    def joined(self, rows: tf.Tensor) -> tf.Tensor:
        """Return the whole variable from the result of `spread`."""
        more = self.count % self.size
        if more:
            parts = [tf.reshape(rows[:more], [-1]), tf.reshape(rows[more:, : self.width - 1], [-1])]
            rows = tf.concat(parts, axis=0)
        return tf.reshape(rows, self.whole)


@dataclass(frozen=True)
class Owned:
    """A whole variable on one worker, and nothing on the others.

    Attributes:
        whole: the shape of the variable.
        owner: the index of the worker that has it.
        index: the index of this worker.
    """

    whole: tuple[int, ...]
    owner: int
    index: int

    @property
    def is_mine(self) -> bool:
        return self.owner == self.index

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole on the owner; elsewhere a shape with as many axes and no elements."""
        return self.whole if self.is_mine else (0,) * max(1, len(self.whole))

    def of(self, value: Any) -> Any:
        return value if self.is_mine else tf.zeros(self.shape, value.dtype)


@dataclass(frozen=True)
class Everywhere:
    """A whole variable on every worker, such as one that is overwritten by its gradient."""

    shape: tuple[int, ...]

    def of(self, value: Any) -> Any:
        return value


def balanced(shapes: Sequence[tuple[int, ...]], index: int, size: int) -> list[Owned]:
    """Return the parts of variables that are not divided; see `shard_layout.owners`."""
    chosen = shard_layout.owners([math.prod(shape) for shape in shapes], size)
    return [Owned(tuple(shape), owner, index) for shape, owner in zip(shapes, chosen, strict=True)]
