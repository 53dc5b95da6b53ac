"""Reductions by Horovod: over TCP by gloo, or MPI, or NCCL, whatever it was built with.

Every operation has a name that follows from what the function has reduced before it. Horovod brings together
operations of one name, in whatever order ranks come to them; ranks that run different functions do not meet.
Eagerly all sums share one name, so that ranks which reduce different things are told at once instead of waiting.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import carriers, tracing
from tfdist.compat import horovod_ops

__all__ = ["Ring"]

_SUMMED_BY_BOTH = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

# A table of embeddings up to this size is summed whole, with the dense gradients; for a larger one ranks ask each other
# first how many rows they have.
_SMALL_TABLE_BYTES = 1 << 20


class Ring:
    """The ranks of a Horovod process set, which reduce among each other.

    Args:
        process_set: the ranks that take part; this process is one of them.
        size: how many.
        rank: this process's number among them.
        bucket_bytes: tensors are reduced in groups of about this size: large enough to fill the wire, and small enough
            that the first can leave while the backward pass goes on.

    Example:
        >>> ring.sums([tf.ones([3])])                            # doctest: +SKIP
        [<tf.Tensor: shape=(3,), dtype=float32, numpy=array([2., 2., 2.], dtype=float32)>]
    """

    def __init__(self, process_set: Any, *, size: int, rank: int, bucket_bytes: int) -> None:
        self.size = size
        self.rank = rank
        self._process_set = process_set
        self._bucket_bytes = bucket_bytes

    def sums(self, values: Sequence[Any], labels: Sequence[str] = (), *, rows_matter: bool = True) -> list[Any]:
        """Return the sums over ranks, in the order given.

        Groups are formed from the last value to the first, the order in which a backward pass makes gradients, and
        each waits for its own values alone.

        Args:
            values: tensors alike on every rank, or `tf.IndexedSlices` of alike tables.
            labels: what the values are, for messages; equal on every rank.
            rows_matter: whether rows of `tf.IndexedSlices` must stay apart, as one device has them.
        Returns:
            Dense sums; in a function those of 16 bits are added in float32. Of slices, the rows of all ranks; unless
            rows matter, the sum of the table where that is small, and every row of the table where that is fewer bytes
            than the ranks' rows.
        """
        if self.size == 1:
            return list(values)
        names = list(labels) or [""] * len(values)
        results: list[Any] = [None] * len(values)
        dense: dict[int, tf.Tensor] = {}
        for index, value in enumerate(values):
            if isinstance(value, tf.IndexedSlices) and (rows_matter or not _is_small_table(value)):
                results[index] = self._sum_of_slices(value, names[index], rows_matter)
            else:
                dense[index] = tf.convert_to_tensor(value)
        carried = {index: self._carried(tensor) for index, tensor in dense.items()}
        for group in _groups({index: tensor for index, (tensor, _) in carried.items()}, self._bucket_bytes):
            entries = [_described("sum", dense[index], names[index]) for index in group]
            members = [carried[index][0] for index in group]
            tensors = (self._sum_of_halves if _is_half(members[0]) else self._group_sum)(members, entries)
            for index, total in zip(group, tensors, strict=True):
                results[index] = carried[index][1](total)
        return results

    def _carried(self, tensor: tf.Tensor) -> tuple[tf.Tensor, carriers.Restore]:
        return (tensor, lambda total: total) if _is_half(tensor) else carriers.for_sum(tensor, horovod_ops.SUMMED)

    def carried(self, tensor: tf.Tensor) -> tuple[tf.Tensor, carriers.Restore]:
        """Return the tensor in a dtype that TensorFlow's collectives sum as well as Horovod, and the way back."""
        return carriers.for_sum(tensor, _SUMMED_BY_BOTH)

    def rows(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return the rows of all ranks in their order; the numbers of rows may differ, all else may not.

        Args:
            tensor: numbers or bools, shape (rows, ...).
            label: what it is, for messages.
        """
        if self.size == 1:
            return tensor
        carried, restore = carriers.for_copy(tensor)
        shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
        name = _name(_described("rows", tensor, label, shape))
        gathered = restore(horovod_ops.rows(_not_folded(carried), name, self._process_set))
        gathered.set_shape(shape)
        return gathered

    def from_first(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return the first rank's value, bit for bit.

        Args:
            tensor: numbers or bools, of the same shape and dtype on every rank.
            label: what it is, for messages.
        """
        if self.size == 1:
            return tensor
        # A sum with zeros, so that a rank that is about to do something else is told (see the head of this file).
        carried, restore = carriers.for_copy(tensor)
        mine = carried if self.rank == 0 else tf.zeros_like(carried)
        (total,) = self._group_sum([mine], [_described("first", tensor, label)])
        return restore(total)

    def _group_sum(self, tensors: list[tf.Tensor], entries: list[str]) -> list[tf.Tensor]:
        name = [_name(entry) for entry in entries][-1]
        return horovod_ops.sums([_not_folded(tensors[0]), *tensors[1:]], name, self._process_set)

    def _sum_of_halves(self, tensors: list[tf.Tensor], entries: list[str]) -> list[tf.Tensor]:
        """Return the sums of tensors of 16 bits: they travel as they are, and are added in float32 and rounded once.

        Every rank adds up its part of the tensors, which the others send to it, and hands it to all: as many bytes as a
        ring moves.
        """
        name, dtype = [_name(entry) for entry in entries][-1], tensors[0].dtype
        sizes = [tf.size(tensor) for tensor in tensors]
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        bits, restore = carriers.for_copy(tf.pad(flat, [[0, tf.math.floormod(-tf.size(flat), self.size)]]))
        own = tf.reshape(restore(horovod_ops.exchanged(_not_folded(bits), name, self._process_set)), [self.size, -1])
        part = tf.cast(tf.reduce_sum(tf.cast(own, tf.float32), axis=0), dtype)
        whole = self.rows(part, "of 16 bits")[: tf.size(flat)]
        sums = tf.split(whole, sizes, num=len(tensors))
        return [tf.ensure_shape(tf.reshape(s, tf.shape(t)), t.shape) for s, t in zip(sums, tensors, strict=True)]

    def _sum_of_slices(self, slices: tf.IndexedSlices, label: str, rows_matter: bool) -> tf.IndexedSlices:
        def gathered() -> tuple[tf.Tensor, tf.Tensor]:
            return self.rows(slices.values, f"{label} values"), self.rows(slices.indices, f"{label} indices")

        def whole() -> tuple[tf.Tensor, tf.Tensor]:
            height = tf.cast(slices.dense_shape[0], slices.indices.dtype)
            (total,) = self.sums([tf.math.unsorted_segment_sum(slices.values, slices.indices, height)], [label])
            return total, tf.range(height)

        if rows_matter or slices.dense_shape is None:
            return tf.IndexedSlices(*gathered(), slices.dense_shape)
        # Every rank has to take the same way, so they add up how many rows they have: known in the forward pass.
        (rows,) = self.sums([tf.cast(tf.size(slices.indices), tf.int64)], [f"{label} number of rows"])
        # From the shape: a worker without a row must come to the same.
        row_bytes = tf.reduce_prod(tf.shape(slices.values, tf.int64)[1:]) * slices.values.dtype.size
        # A gather moves every rank's rows to every other; a ring moves a table about twice.
        height = tf.cast(slices.dense_shape[0], tf.int64)
        cheaper = rows * (row_bytes + slices.indices.dtype.size) < 2 * height * row_bytes
        values, indices = tf.cond(cheaper, gathered, whole)
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _groups(tensors: dict[int, tf.Tensor], bucket_bytes: int) -> list[list[int]]:
    """Return groups of indices, of one dtype each, from the last tensor to the first."""
    groups: list[list[int]] = []
    open_groups: dict[tf.DType, tuple[list[int], int]] = {}
    for index in sorted(tensors, reverse=True):
        tensor = tensors[index]
        size = (tensor.shape.num_elements() or 1) * tensor.dtype.size
        group, held = open_groups.get(tensor.dtype, ([], 0))
        if not group or held + size > bucket_bytes:
            group, held = [], 0
            groups.append(group)
        group.append(index)
        open_groups[tensor.dtype] = (group, held + size)
    return groups


def _is_half(tensor: tf.Tensor) -> bool:
    """Return whether a tensor is added in float32. Eagerly all sums have one name, and take one way."""
    return tensor.dtype in (tf.float16, tf.bfloat16) and not tf.executing_eagerly()


def _is_small_table(slices: tf.IndexedSlices) -> bool:
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return shape is not None and int(shape.prod()) * slices.values.dtype.size <= _SMALL_TABLE_BYTES


def _described(kind: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None) -> str:
    shape = tensor.shape if shape is None else shape
    return " ".join(filter(None, [kind, tensor.dtype.name, str(shape), label]))


def _name(entry: str) -> str:
    traced = tracing.current_signature()
    return "tfdist_eager" if traced is None else f"tfdist_{traced.add(entry)}"


def _not_folded(tensor: tf.Tensor) -> tf.Tensor:
    """Keep TensorFlow from reducing a constant once for all when it optimises a function.

    One worker may trace anew where another does not, and would be alone in that reduction.
    """
    return tensor if tf.executing_eagerly() or _varies(tensor) else tensor + horovod_ops.zero(tensor.dtype)


def _varies(tensor: tf.Tensor) -> bool:
    """Return whether a tensor of a traced function depends on an input, a variable or another state."""
    seen, ahead = set(), [tensor.op]
    while ahead:
        op = ahead.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "Placeholder" or op.op_def.is_stateful:
            return True
        ahead.extend(value.op for value in op.inputs)
    return False
