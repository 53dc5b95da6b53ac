"""The rows of a batch: counted, compared, cut by `Shares`, and joined; and inputs that every replica has whole.

The user names inputs that are not examples (`strategy.whole_inputs`), such as the edges of a graph whose nodes are the
examples. From the cut to a replica's step such an input is a `Whole`, which counting, cutting and joining leave as it
is. In the step its values are marked as equal on all replicas, so a table that is looked up by them has the gradient of
one device.
"""

import contextlib
import itertools
import re
import typing
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import quote, unquote

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.shares import Share, Shares
from tfdist.compat.tensorflow import sparse_rows, tf_data
from tfdist.errors import ConfigError, UnsupportedError

# Keras' names for the elements of a batch that is a tuple
_PARTS = ("x", "y", "sample_weight")
# all that a custom training loop sees of the refusal, in TensorFlow's own error
_MARK = (
    "Inputs of one batch have unlike numbers of rows, and replicas share a batch by its rows. Give every input one row "
    "for each example, or name those that belong to all examples: strategy.whole_inputs = [...]. Rows of "
)
_SAID = re.compile(re.escape(_MARK) + r"(\S*)\] \[([\d ]+)\]")


class Whole(tf.experimental.ExtensionType):
    """An input that is not cut."""

    value: typing.Union[tf.Tensor, tf.RaggedTensor, tf.SparseTensor]  # noqa: UP007 - TensorFlow reads no other form


def named(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a batch with their names, such as "x/edges"."""
    for path, leaf in keras.tree.flatten_with_path(data):
        if type(data) is not tuple:
            path = ("x", *path)
        elif len(data) <= len(_PARTS):
            path = (_PARTS[path[0]], *path[1:])
        yield "/".join(map(str, path)), leaf


def with_whole(data: Any, names: Collection[str]) -> Any:
    """Mark the inputs with these names as `Whole`."""
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
    """Replace each `Whole` by the dataset's values, which are marked in a graph."""

    def mark(tensor: tf.Tensor) -> tf.Tensor:
        return sparse_rows.marked(tensor, sparse_rows.RowKind.COMMON)

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, Whole):
            return leaf
        is_eager = tf.executing_eagerly()
        return leaf.value if is_eager else tf.nest.map_structure(mark, leaf.value, expand_composites=True)

    return tf.nest.map_structure(value, data, expand_composites=False)


def plain_spec(spec: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf.value if isinstance(leaf, Whole.Spec) else leaf, spec)


def whole_first_input(data: Any) -> Whole | None:
    """Return the first input, if it is `Whole`: Keras takes its rows for the weight of the batch's loss."""
    leaf = next((leaf for name, leaf in named(data) if leaf is not None and name.partition("/")[0] == "x"), None)
    return leaf if isinstance(leaf, Whole) else None


def require_alike(data: Any) -> None:
    """Raise if inputs of a batch have unlike numbers of rows, such as 12 nodes and 20 edges.

    No row of one would belong to a row of another, so a replica's rows would be cut by the first input alone. Numbers
    that are unknown in a trace are compared in the graph, by an assertion whose text `refusal_in` recognizes.
    """
    names, rows = [], []
    for name, leaf in named(data):
        if leaf is not None and not isinstance(leaf, Whole) and leaf.shape.rank != 0:
            names.append(name)
            rows.append(_known_rows(leaf))
    known = {count for count in rows if isinstance(count, int)}
    if len(known) > 1:
        raise _refusal(names, rows)
    if len(rows) > 1 and not all(isinstance(count, int) for count in rows):
        counts = tf.stack(rows)
        alike = tf.reduce_all(counts == counts[0])
        # quoted, names come back from a message of TensorFlow unchanged
        said = _MARK + ",".join(quote(name) for name in names)
        tf.raw_ops.Assert(condition=alike, data=[said, counts], summarize=len(rows))


def refusal_in(text: str) -> UnsupportedError | None:
    """Return the error of `require_alike` that a text of TensorFlow's quotes."""
    found = _SAID.search(text)
    if found is None:
        return None
    return _refusal([unquote(name) for name in found[1].split(",")], [int(count) for count in found[2].split()])


def _refusal(names: list[str], rows: list[Any]) -> UnsupportedError:
    counted = ", ".join(
        f"{name!r} has {count}" for name, count in zip(names, rows, strict=True) if isinstance(count, int)
    )
    return UnsupportedError(
        f"inputs of one batch have unlike numbers of rows: {counted}. Replicas share a batch by its rows, so every "
        "input must have one row for each example. If an example is a graph or a set, give each input one row for each "
        "of them: a tf.RaggedTensor, or rows padded to one length. If one input has several rows for each row of "
        "another, as unlabelled examples may, give it one more dimension: unlabelled.batch(3).batch(8) beside "
        "labelled.batch(8), and reshape it in the step. Inputs that belong to all examples of a batch are given whole "
        "to every replica if they are named: strategy.whole_inputs = [...]. What never changes may be in the model, as "
        "a constant or a weight that does not train.",
        name=names[0],
        received=counted,
    )


def _known_rows(leaf: Any) -> int | tf.Tensor:
    """Return the number of rows of a tensor: Python's, if it is known."""
    count = leaf.shape[0] if leaf.shape.rank else None
    if count is not None:
        return int(count)
    if isinstance(leaf, tf.RaggedTensor):
        count = leaf.nrows()
    else:
        count = leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0]
    return int(count) if tf.executing_eagerly() else tf.cast(count, tf.int32)


@contextlib.contextmanager
def size_explained(data: Any, replicas: int) -> Iterator[None]:
    """Explain an error about a replica's rows and those of the whole batch, as code with a fixed batch size raises."""
    try:
        yield
    except Exception as error:
        leaves = (leaf for _, leaf in named(data) if isinstance(leaf, tf.Tensor) and leaf.shape.rank)
        rows = next((leaf.shape[0] for leaf in leaves), None)
        if rows and replicas > 1 and {str(rows), str(rows * replicas)} <= set(re.findall(r"\d+", str(error))):
            error.add_note(
                f"tfdist: this replica has {rows} of the {rows * replicas} rows of the batch. Code of a step that "
                "makes tensors of a fixed batch size must take it from its data instead, as by tf.shape(x)[0]."
            )
        raise


def rows_of(data: Any) -> tf.Tensor:
    """Return the number of examples: the leading dimension of the first tensor that has one and is cut."""
    for leaf in tf.nest.flatten(data, expand_composites=False):
        if leaf is None or isinstance(leaf, Whole):
            continue
        if isinstance(leaf, tf.RaggedTensor):
            return tf.cast(leaf.nrows(), tf.int32)
        if isinstance(leaf, tf.SparseTensor):
            return tf.cast(leaf.dense_shape[0], tf.int32)
        if leaf.shape.rank != 0:
            return tf.shape(leaf)[0]
    return tf.constant(1)


def slice_rows(data: Any, begin: Any, end: Any) -> Any:
    """Take rows ``begin`` to ``end`` of every tensor; scalars and `Whole` inputs stay as they are."""

    def rows(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, Whole):
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            shape = tf.unstack(leaf.dense_shape)
            start = tf.stack([tf.cast(begin, tf.int64)] + [tf.zeros([], tf.int64)] * (len(shape) - 1))
            part = tf.sparse.slice(leaf, start, tf.stack([tf.cast(end - begin, tf.int64), *shape[1:]]))
            part.set_shape([None, *leaf.shape[1:]])  # a layer that is built in the step asks for the number of features
            return part
        return leaf if leaf.shape.rank == 0 else leaf[begin:end]

    return tf.nest.map_structure(rows, data, expand_composites=False)


def part_of(data: Any, index: int, shares: Shares) -> tuple[tf.Tensor, Any]:
    """Return one replica's number of rows and its data, see `parts_of`."""
    return parts_of(data, Share(index, 1, shares))[0]


def bounds_of(data: Any, share: Share) -> tf.Tensor:
    """Return the first row of each part of a process, and the end of the last: `Shares.bounds` in a graph."""
    if share.shares.are_equal:
        # all edges at once, because each operation takes time to trace
        return _edges_in_rows(rows_of(data), np.array(share.edges, np.int32), share.shares.edges[-1])
    return uneven_bounds(rows_of(data), np.array(share.shares.edges, np.int32))[
        share.first : share.first + share.count + 1
    ]


def uneven_bounds(rows: tf.Tensor, edges: Any) -> tf.Tensor:
    """Return `Shares.bounds` in a graph, for shares with these edges, which may be a tensor."""
    replicas = edges.shape[0] - 1
    places = np.arange(replicas + 1, dtype=np.int32)
    found = _edges_in_rows(rows, edges, edges[-1])
    # each edge is at least one row behind all before it, where there are rows enough
    before = tf.where(np.tri(replicas + 1, dtype=bool), (found - places)[tf.newaxis, :], tf.int32.min)
    lifted = tf.minimum(places + tf.reduce_max(before, axis=1), rows - replicas + places)
    return tf.where(rows < replicas, found, lifted)


def _edges_in_rows(rows: tf.Tensor, edges: Any, total: Any) -> tf.Tensor:
    """Return ``rows * edges // total`` in int32, which need not hold the product."""
    return rows // total * edges + rows % total * edges // total


def parts_of(data: Any, share: Share, edges: tf.Tensor | None = None) -> list[tuple[tf.Tensor, Any]]:
    """Return the parts of a batch that a process takes, each with its number of rows.

    A part without rows is given as one row, a copy of a neighbour's, with the number 0. A batch in one part is not cut,
    so there its inputs may have unlike numbers of rows. ``edges`` are those of shares that move.
    """
    rows = rows_of(data)
    if len(share.shares.weights) == 1:
        return [(rows, data)]
    own = slice(share.first, share.first + share.count + 1)
    bounds = bounds_of(data, share) if edges is None else uneven_bounds(rows, edges)[own]
    begins, ends = bounds[:-1], bounds[1:]
    firsts = tf.minimum(begins, tf.maximum(rows - 1, 0))
    slices = zip(tf.split(firsts, share.count), tf.split(tf.maximum(ends, firsts + 1), share.count), strict=True)
    parts = itertools.starmap(lambda begin, end: _between(data, begin, end), slices)
    return list(zip(tf.unstack(ends - begins, share.count), parts, strict=True))


def _between(data: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    """Take rows as `slice_rows` does, between vectors of one element."""

    def rows(leaf: Any) -> Any:
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            return tf.strided_slice(leaf, begin, end)
        return slice_rows(leaf, begin[0], end[0])

    return tf.nest.map_structure(rows, data, expand_composites=False)


def joined(*leaves: Any) -> Any:
    """Return the rows of one input in several parts of a batch; the first part's, where each part has it whole."""
    one = leaves[0]
    if one is None or isinstance(one, Whole) or one.shape.rank == 0:
        return one
    return tf_data.joined(*leaves)
