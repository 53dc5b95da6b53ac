"""The step that a replica is in: how many examples it has, and how many all replicas have together."""

import threading
from types import TracebackType
from typing import Any

import tensorflow as tf

from tfdist.training import reduction

_current = threading.local()


class Step:
    """One replica's share of one step; current while the user's `train_step` or `test_step` runs.

    Inside it the code is that of one device: the strategy says that there is one replica, so Keras neither divides
    losses by the number of replicas nor multiplies them back, and a loss is the mean over the examples this replica
    has. What replicas contribute is then weighted by `share`, so that the sum over replicas is the mean over all
    examples.

    A replica without examples (a batch smaller than the number of replicas) computes on a copy of one, because
    kernels and statistics are not made for none; its share is zero, and whatever it counts is dropped.

    Args:
        rows: examples of this replica, int32 scalar.
        global_rows: examples of all replicas in this step, int32 scalar; None to ask the other replicas.
        weighs_loss: whether the loss is weighted by `share` where the optimizer scales it; else its gradients are.
        index: which of the replicas this is, int32 scalar; None where the strategy's replica context tells.
    """

    def __init__(
        self,
        *,
        rows: tf.Tensor,
        global_rows: tf.Tensor | None,
        weighs_loss: bool = False,
        index: tf.Tensor | None = None,
    ) -> None:
        self.rows = rows
        self.index = index
        self.weighs_loss = weighs_loss
        if global_rows is None:
            # Asked first thing, so that the answer travels while the forward pass computes; as a float, because an
            # integer on a GPU lies in the host's memory, which NCCL does not reach.
            (total,) = reduction.sum_over_replicas([tf.cast(rows, tf.float32)])
            global_rows = tf.cast(total, tf.int32)
        self.global_rows = global_rows
        #: this replica's part of the examples, float64 scalar; the shares of all replicas sum to 1
        self.share = tf.math.divide_no_nan(tf.cast(self.rows, tf.float64), tf.cast(self.global_rows, tf.float64))
        #: 1 where this replica has examples, else 0, float32 scalar
        self.present = tf.cast(self.rows > 0, tf.float32)
        #: optimizers whose loss was weighted by `share` before its gradient was taken
        self.weighted: set[int] = set()

    def __enter__(self) -> "Step":
        _current.step = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.step = None


def current() -> Step | None:
    """Return the step that this thread's replica is in, or None."""
    return getattr(_current, "step", None)


def rows_of(data: Any) -> tf.Tensor:
    """Return the number of examples in a batch: the leading dimension of its first tensor that has one."""
    for leaf in tf.nest.flatten(data, expand_composites=False):
        if leaf is None:
            continue
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int32)
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.int32)
        if leaf.shape.rank != 0:
            return tf.shape(leaf)[0]
    return tf.constant(1)


def slice_rows(data: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    """Return rows ``begin`` to ``end`` of every tensor in a batch; scalars are left whole."""

    def rows(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            shape = tf.unstack(leaf.dense_shape)
            start = tf.stack([tf.cast(begin, tf.int64)] + [tf.zeros([], tf.int64)] * (len(shape) - 1))
            return tf.sparse.slice(leaf, start, tf.stack([tf.cast(end - begin, tf.int64), *shape[1:]]))
        return leaf if leaf.shape.rank == 0 else leaf[begin:end]

    return tf.nest.map_structure(rows, data, expand_composites=False)


def part_of(data: Any, part: int, parts: int) -> tuple[tf.Tensor, Any]:
    """Return one of ``parts`` contiguous parts of a batch, and its number of rows; sizes differ by at most one.

    A part without rows is given as one row, a copy of a neighbour's, with the number 0.
    """
    rows = rows_of(data)
    begin, end = rows * part // parts, rows * (part + 1) // parts
    first = tf.minimum(begin, tf.maximum(rows - 1, 0))
    return end - begin, slice_rows(data, first, tf.maximum(end, first + 1))
