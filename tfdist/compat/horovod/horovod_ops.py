"""Horovod's operations under names of our own, and the Horovod optimizers that a model must not have.

Private names, read in Horovod 0.28.1: `mpi_ops._grouped_allreduce`, because the public one takes no name and tensors'
names differ between ranks; the module `horovod._keras` of the class that `DistributedOptimizer` makes.
"""

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

#: dtypes that Horovod reduces
REDUCED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.int8)

_OPS = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}


def all_reduce(tensors: list[tf.Tensor], name: str, process_set: Any, *, op: str = "sum") -> list[tf.Tensor]:
    with _carrying_device():
        return list(
            mpi_ops._grouped_allreduce(tensors, name=name, op=_OPS[op], ignore_name_scope=True, process_set=process_set)
        )


def all_gather(tensor: tf.Tensor, name: str, process_set: Any) -> tf.Tensor:
    """Return the rows of all ranks, in the order of the ranks; ranks may have different numbers of rows."""
    with _carrying_device():
        return hvd.allgather(tensor, name=name, ignore_name_scope=True, process_set=process_set)


def all_to_all(tensor: tf.Tensor, splits: tf.Tensor, name: str, process_set: Any) -> tf.Tensor:
    """Return the rows that the ranks send to this one, in their order."""
    with _carrying_device():
        return hvd.alltoall(tensor, splits=splits, name=name, ignore_name_scope=True, process_set=process_set)[0]


def zero(dtype: tf.DType) -> tf.Tensor:
    """Return a scalar 0 that TensorFlow cannot know before the function runs."""
    return tf.cast(tf.minimum(hvd.size_op(), 0), dtype)


def _carrying_device() -> Any:
    # Without NCCL Horovod has kernels for the CPU alone.
    return tf.device(None) if hvd.nccl_built() else tf.device("/device:CPU:0")
