"""tf.data: sharding by files, optional elements, and empty batches.

Private name, read in TensorFlow 2.21.0: `auto_shard_dataset`, which rewrites a pipeline so that a worker reads its own
files; `Dataset.shard` cannot reach the files inside a pipeline.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset


def shard_by_files(dataset: tf.data.Dataset, workers: int, index: int) -> tf.data.Dataset:
    """Return the dataset read from every ``workers``-th file only."""
    return _AutoShardDataset(dataset, workers, index, num_replicas=None)


def without_optionals(spec: Any) -> Any:
    """Return an element spec with None where Keras put an empty optional for "no value"."""
    return tf.nest.map_structure(lambda s: None if isinstance(s, tf.OptionalSpec) else s, spec)


def none_for_optionals(data: Any) -> Any:
    """Return an element with None where Keras put an empty optional for "no value"."""
    return tf.nest.map_structure(
        lambda v: None if isinstance(v, tf.experimental.Optional) else v, data, expand_composites=False
    )


def empty(spec: Any) -> Any:
    """Return an element of this spec whose tensors have no rows; unknown inner dimensions become 1."""

    def tensor(leaf: Any) -> Any:
        if leaf is None or not isinstance(leaf, tf.TensorSpec):
            return _empty_composite(leaf)
        if leaf.shape.rank == 0:
            return tf.zeros([], leaf.dtype)
        inner = [1 if dim is None else dim for dim in leaf.shape[1:]]
        return tf.zeros([0, *inner], leaf.dtype) if leaf.dtype != tf.string else tf.constant([], tf.string, [0, *inner])

    return tf.nest.map_structure(tensor, spec, expand_composites=False)


def _empty_composite(spec: Any) -> Any:
    if spec is None or type(spec).__name__ == "NoneTensorSpec":
        return None
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensor.from_row_lengths(tf.zeros([0, *spec.shape[2:]], spec.dtype), tf.constant([], tf.int64))
    inner = [1 if dim is None else dim for dim in spec.shape[1:]]
    return tf.SparseTensor(tf.zeros([0, len(inner) + 1], tf.int64), tf.zeros([0], spec.dtype), [0, *inner])
