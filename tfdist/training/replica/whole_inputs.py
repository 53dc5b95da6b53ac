"""Inputs of a batch that are no examples, such as the edges of a graph of which the examples are nodes.

Every replica is given them whole. The user names them (`strategy.whole_inputs`). From where a batch is cut to the step
of a replica such an input is a `Whole`, which all that counts, cuts or joins rows leaves as it is. In the step it is
what the dataset gave. Its values are marked as equal on all replicas, so a table that is looked up by them has the
gradient of one device.
"""

import typing
from collections.abc import Collection, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.tensorflow import sparse_rows
from tfdist.compat.tensorflow import tf_data as tf_data
from tfdist.errors import ConfigError

# what Keras calls the elements of a batch that is a tuple
_PARTS = ("x", "y", "sample_weight")


class Whole(tf.experimental.ExtensionType):
    """An input that is not cut.

    Attributes:
        value: what the dataset gave.
    """

    value: typing.Union[tf.Tensor, tf.RaggedTensor, tf.SparseTensor]  # noqa: UP007 - TensorFlow reads no other form


def named(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a batch with their names, such as "x/edges"."""
    for path, leaf in keras.tree.flatten_with_path(data):
        if type(data) is not tuple:
            path = ("x", *path)
        elif len(data) <= len(_PARTS):
            path = (_PARTS[path[0]], *path[1:])
        yield "/".join(map(str, path)), leaf


def wrapped(data: Any, names: Collection[str]) -> Any:
    """Return a batch in which the inputs of these names are `Whole`."""
    if not names:
        return data
    leaves = list(named(data))
    inputs = [name for name, leaf in leaves if leaf is not None and name.partition("/")[0] not in _PARTS[1:]]
    asked = [name if name in inputs else f"x/{name}" for name in names]
    missing = [name for name, full in zip(names, asked, strict=True) if full not in inputs]
    there = ", ".join(map(repr, inputs))
    if missing:
        raise ConfigError(
            f"strategy.whole_inputs names {', '.join(map(repr, missing))}, and the inputs of a batch are {there}. Name "
            "those of them that belong to all examples.",
            name="whole_inputs",
            received=tuple(missing),
        )
    if set(asked) == set(inputs):
        raise ConfigError(
            f"strategy.whole_inputs names all inputs of a batch, {there}; at least one must have a row for each "
            "example. Leave that one out.",
            name="whole_inputs",
            received=tuple(names),
        )
    found = [Whole(leaf) if name in asked else leaf for name, leaf in leaves]
    return keras.tree.pack_sequence_as(data, found)


def plain(data: Any) -> Any:
    """Return a batch with what the dataset gave in the place of each `Whole`; in a graph its values are marked."""

    def mark(tensor: tf.Tensor) -> tf.Tensor:
        return sparse_rows.marked(tensor, sparse_rows.RowKind.COMMON)

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, Whole):
            return leaf
        is_eager = tf.executing_eagerly()
        return leaf.value if is_eager else tf.nest.map_structure(mark, leaf.value, expand_composites=True)

    return tf.nest.map_structure(value, data, expand_composites=False)


def plain_spec(spec: Any) -> Any:
    """Return the spec of what `plain` returns, given that of a batch."""

    def inner(leaf: Any) -> Any:
        return leaf.value if isinstance(leaf, Whole.Spec) else leaf

    return tf.nest.map_structure(inner, spec)


def joined(*leaves: Any) -> Any:
    """Return the rows of several parts of a batch as one tensor; of what each part has whole, the first."""
    one = leaves[0]
    if one is None or isinstance(one, Whole) or one.shape.rank == 0:
        return one
    return tf_data.joined(*leaves)


def first(data: Any) -> Whole | None:
    """Return the first input of a batch if it is whole: Keras takes its rows for the weight of the batch's loss."""
    leaf = next((leaf for name, leaf in named(data) if leaf is not None and name.partition("/")[0] == "x"), None)
    return leaf if isinstance(leaf, Whole) else None
