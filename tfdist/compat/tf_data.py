"""tf.data: sharding by files, and elements without a value.

Private name, read in TensorFlow 2.21.0: `auto_shard_dataset`, which rewrites a pipeline so that a worker reads its own
files; `Dataset.shard` cannot reach the files inside a pipeline.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset


def shard_by_files(dataset: tf.data.Dataset, workers: int, index: int) -> tf.data.Dataset:
    """Return the dataset read from every ``workers``-th file only."""
    return _AutoShardDataset(dataset, workers, index, num_replicas=None)


def without_optionals(spec: Any) -> Any:
    """Return an element spec with None where Keras put an empty optional for "no value"."""
    return tf.nest.map_structure(lambda s: None if isinstance(s, tf.OptionalSpec) else s, spec)


def without_nones(spec: Any) -> Any:
    """Return an element spec with a plain None where tf.data has a spec for None."""
    return tf.nest.map_structure(lambda s: None if _is_none(s) else s, spec)


def _is_none(spec: Any) -> bool:
    return spec is None or type(spec).__name__ == "NoneTensorSpec"


def none_for_optionals(data: Any) -> Any:
    """Return an element with None where Keras put an empty optional for "no value"."""
    return tf.nest.map_structure(
        lambda v: None if isinstance(v, tf.experimental.Optional) else v, data, expand_composites=False
    )


def one_row(spec: Any) -> Any:
    """Return an element of this spec whose tensors have one row of zeros; unknown inner dimensions become 1."""

    def value(leaf: Any) -> Any:
        if _is_none(leaf):
            return None
        shape = [1 if dim is None else dim for dim in leaf.shape]
        dense = tf.fill(shape, tf.constant("" if leaf.dtype == tf.string else 0, leaf.dtype))
        if isinstance(leaf, tf.RaggedTensorSpec):
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=leaf.ragged_rank)
        return tf.sparse.from_dense(dense) if isinstance(leaf, tf.SparseTensorSpec) else dense

    return tf.nest.map_structure(value, spec, expand_composites=False)


class Wrapped(tf.data.Dataset):
    """A dataset that is another one, with methods of its own; to TensorFlow and Keras it is that dataset.

    The other one is made when it is first looked at: that takes tenths of a second, and a strategy may need none of it.

    Private names: `_variant_tensor`, `_inputs`, through which datasets of TensorFlow are made of each other.

    Args:
        make: makes the other one; it has no options of its own.
    """

    def __init__(self, make: Callable[[], tf.data.Dataset]) -> None:
        self._make = make
        self._made: tf.data.Dataset | None = None
        super().__init__(None)

    @property
    def wrapped(self) -> tf.data.Dataset:
        """The dataset that this one is."""
        if self._made is None:
            with tf.init_scope():  # also when a function that is being traced is the first to look
                self._made = self._make()
        return self._made

    @property
    def _variant_tensor(self) -> tf.Tensor:
        return self.wrapped._variant_tensor

    def _inputs(self) -> list[tf.data.Dataset]:
        return [] if self._made is None else [self._made]

    @property
    def element_spec(self) -> Any:
        """What the elements look like."""
        return self.wrapped.element_spec


# By their names: the classes move between versions. An element of such a dataset is made of one element of its input.
_ONE_TO_ONE = frozenset({"_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "_OptionsDataset", "_ModelDataset"})


def one_to_one_source(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset that is mapped and prefetched here, each element to one; itself if none is."""
    while type(dataset).__name__ in _ONE_TO_ONE:
        (dataset,) = dataset._inputs()
    return dataset


def sources(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Return a dataset and all that it is made of."""
    return [dataset, *(deeper for source in dataset._inputs() for deeper in sources(source))]
