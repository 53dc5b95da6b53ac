"""Lets Keras cut arrays into batches by slices where their order is kept, in every process forked from this one.

Keras numbers the rows, cuts the numbers into batches and gathers the rows of each: three functions of tf.data, which
TensorFlow prepares anew for each iterator and runs for each batch. That takes a tenth of a short training. The batches
are the same. A shuffled order, and what is no dense array, are left to Keras.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from tensorflow.python.eager import context
from tensorflow.python.framework.ops import EagerTensor

_of_keras = ArrayDataAdapter.get_tf_dataset
_options = tf.data.Options()  # those of Keras
_options.experimental_optimization.apply_default_optimizations = False
_options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA


def _dataset(adapter: Any) -> tf.data.Dataset:
    if adapter._shuffle or not context.executing_eagerly():
        return _of_keras(adapter)
    arrays = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    if not all(isinstance(one, np.ndarray | EagerTensor) for one in tree.flatten(arrays)):
        return _of_keras(adapter)
    arrays, size = tree.lists_to_tuples(arrays), adapter._batch_size
    whole = adapter._num_samples // size * size

    def each(cut: Callable[[Any], Any]) -> Any:
        return tree.map_structure(cut, arrays)

    dataset = tf.data.Dataset.from_tensor_slices(each(lambda one: _reshaped(one[:whole], size)))
    if adapter._partial_batch_size:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(each(lambda one: one[whole:])))
    return dataset.with_options(_options).prefetch(tf.data.AUTOTUNE)


def _reshaped(rows: Any, size: int) -> Any:
    """Return full batches of rows, along a first axis of their own."""
    shape = (len(rows) // size, size, *rows.shape[1:])
    return rows.reshape(shape) if isinstance(rows, np.ndarray) else tf.reshape(rows, shape)


ArrayDataAdapter.get_tf_dataset = _dataset
