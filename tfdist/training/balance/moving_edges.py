"""The edges of shares that move while an input is read, as a tensor that the input's graph reads for each batch."""

import itertools

import numpy as np
import tensorflow as tf

from tfdist.cluster.shares import Shares

_numbers = itertools.count()


class Edges:
    """The shares of each batch of an epoch; a graph reads their `Shares.edges`.

    The number of a batch decides, not the time at which it is cut, so workers may cut batches ahead, each as far as it
    gets, as long as no change holds from a batch that one of them may have cut.
    """

    def __init__(self, shares: Shares) -> None:
        self._length = len(shares.edges)
        with tf.init_scope(), tf.device("/device:CPU:0"):  # no variable of a strategy's, and of no model's
            name, shape = f"tfdist_edges_{next(_numbers)}", [None, 1 + self._length]
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=shape, shared_name=name)
        self._set([(0, shares)])

    @property
    def changes_at(self) -> int:
        """The batch from which the last shares hold."""
        return self._changes[-1][0]

    def change(self, shares: Shares, batch: int, *, position: int) -> None:
        """Let shares hold from a batch on, at this position of taken batches, which are not cut again."""
        changes = [*self._changes, (batch, shares)]
        needed = max(place for place, (first, _) in enumerate(changes) if first <= position)
        self._set(changes[needed:])

    def resume(self, former: Shares, shares: Shares, batch: int) -> None:
        """Let shares hold from a batch on, and former shares before it."""
        self._set([(0, former), (batch, shares)])

    def begin(self) -> None:
        """Begin an epoch, whose batches are all cut by the last shares."""
        if self.changes_at:
            self._set([(0, self._changes[-1][1])])

    def read(self, batch: tf.Tensor) -> tf.Tensor:
        """Return the edges of a batch, an int64 scalar, in a graph."""
        table = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int32)
        begun = tf.math.count_nonzero(table[:, 0] <= tf.cast(batch, tf.int32), dtype=tf.int32)
        return tf.ensure_shape(table[begun - 1, 1:], [self._length])

    def _set(self, changes: list[tuple[int, Shares]]) -> None:
        self._changes = changes
        with tf.init_scope(), tf.device("/device:CPU:0"):
            table = np.array([[first, *shares.edges] for first, shares in changes], np.int32)
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.constant(table))
