"""Arguments of TensorFlow's reductions in a replica: values with their operation, and options.

Private names, read in TensorFlow 2.21.0: `collective_util.Options`, the class behind
`tf.distribute.experimental.CommunicationOptions`.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_util


class ValueOptions(collective_util.Options):
    """Communication options with the labels of one `all_reduce`'s values; TensorFlow passes them on unchanged."""

    def __init__(self, labels: Sequence[str], *, keep_duplicate_indices: bool = True) -> None:
        super().__init__()
        self.labels = list(labels)
        self.keep_duplicate_indices = keep_duplicate_indices


def owned(value: Any) -> Any:
    """Give a captured function input an op of its own: a collective on a bare input has no device to go to."""
    return tf.nest.map_structure(_owned, value, expand_composites=False)


def _owned(value: Any) -> Any:
    if not isinstance(value, tf.IndexedSlices):
        return tf.identity(value)
    if value.dense_shape is None or tf.is_tensor(value.dense_shape):
        return value
    # A shape in Python's numbers is as good, but TensorFlow's collectives of rows look at its dtype.
    return tf.IndexedSlices(value.values, value.indices, tf.convert_to_tensor(value.dense_shape))


def told(options: Any) -> dict[str, Any]:
    """Return what communication options say of the values, for `reduced_by`."""
    known = isinstance(options, ValueOptions)
    return {
        "labels": options.labels if known else None,
        "keep_duplicate_indices": options.keep_duplicate_indices if known else True,
    }


def packed(options: Any, bucket_bytes: int) -> Any:
    """Return communication options with a size for packs, where they have none."""
    if options is not None and options.bytes_per_pack:
        return options
    return (options or tf.distribute.experimental.CommunicationOptions()).merge(
        tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bucket_bytes)
    )
