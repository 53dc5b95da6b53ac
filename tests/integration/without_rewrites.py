"""Lets tf.data run its pipelines as they are written, in every process forked from this one.

For each iterator it writes the pipeline down as a graph, searches the graph for what could be fused or run in parallel,
and makes the pipeline anew from it. So iterators take a fifteenth of a short training. The elements are the same.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.eager import context

_dataset_ops = iterator_ops.gen_dataset_ops
_make = _dataset_ops.make_iterator
_options = tf.data.Options()
_options.experimental_optimization.apply_default_optimizations = False
_options.experimental_optimization.inject_prefetch = False
_options.experimental_optimization.seq_interleave_prefetch = False
_as_written = _options._to_proto().SerializeToString()  # once: to merge them in Python takes as long as the iterator


def _make_iterator(dataset: Any, iterator: Any, name: Any = None) -> Any:
    if context.executing_eagerly():
        shape = {"output_types": (tf.variant,), "output_shapes": ((),)}  # which no code reads
        dataset = _dataset_ops.options_dataset(dataset, _as_written, **shape)
    return _make(dataset, iterator, name)


_dataset_ops.make_iterator = _make_iterator
# of the numbers of `enumerate`, for a service that shares datasets out
dataset_ops.apply_rewrite = lambda dataset, rewrite: dataset
