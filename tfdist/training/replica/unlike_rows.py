"""The refusal of a batch whose inputs have unlike numbers of rows, such as 12 nodes and 20 edges.

A replica computes with its own rows of a global batch. Where inputs have unlike numbers of rows, no row of one belongs
to a row of another, so a replica's rows would be cut by the first input, and the rest of the others would be lost.
Numbers that are known while a function is traced are compared there. The others are compared in the graph, for each
batch, by an assertion whose text `found_in` recognises.
"""

import re
from typing import Any
from urllib.parse import quote, unquote

import tensorflow as tf

from tfdist.errors import UnsupportedError
from tfdist.training.replica.whole_inputs import Whole, named

# all that a custom training loop sees of the refusal, in TensorFlow's own error
_MARK = (
    "Inputs of one batch have unlike numbers of rows, and replicas share a batch by its rows. Give every input one row "
    "for each example, or name those that belong to all examples: strategy.whole_inputs = [...]. Rows of "
)
_SAID = re.compile(re.escape(_MARK) + r"(\S*)\] \[([\d ]+)\]")


def require_none(data: Any) -> None:
    """Raise if inputs of a batch have unlike numbers of rows; in a graph, also when a batch comes that has."""
    names, rows = [], []
    for name, leaf in named(data):
        if leaf is not None and not isinstance(leaf, Whole) and leaf.shape.rank != 0:
            names.append(name)
            rows.append(_rows(leaf))
    known = {count for count in rows if isinstance(count, int)}
    if len(known) > 1:
        raise _refusal(names, rows)
    if len(rows) > 1 and not all(isinstance(count, int) for count in rows):
        counts = tf.stack(rows)
        alike = tf.reduce_all(counts == counts[0])
        tf.raw_ops.Assert(condition=alike, data=[_MARK + _quoted(names), counts], summarize=len(rows))


def found_in(text: str) -> UnsupportedError | None:
    """Return the error that is behind TensorFlow's, given its text; None if it is another one."""
    found = _SAID.search(text)
    return None if found is None else _refusal(_unquoted(found[1]), [int(count) for count in found[2].split()])


def _quoted(names: list[str]) -> str:
    """Return names as TensorFlow shows them in a message, unchanged."""
    return ",".join(quote(name) for name in names)


def _unquoted(text: str) -> list[str]:
    return [unquote(name) for name in text.split(",")]


def _refusal(names: list[str], rows: list[Any]) -> UnsupportedError:
    counted = ", ".join(
        f"{name!r} has {count}" for name, count in zip(names, rows, strict=True) if isinstance(count, int)
    )
    return UnsupportedError(
        f"inputs of one batch have unlike numbers of rows: {counted}. Replicas share a batch by its rows, so every "
        "input must have one row for each example. If an example is a graph or a set, give each input one row for each "
        "of them: a tf.RaggedTensor, or rows padded to one length. Inputs that belong to all examples of a batch are "
        "given whole to every replica if they are named: strategy.whole_inputs = [...]. What never changes may be in "
        "the model, as a constant or a weight that does not train.",
        name=names[0],
        received=counted,
    )


def _rows(leaf: Any) -> int | tf.Tensor:
    """Return the number of rows of a tensor, Python's if it is known."""
    count = leaf.shape[0] if leaf.shape.rank else None
    if count is not None:
        return int(count)
    if isinstance(leaf, tf.RaggedTensor):
        count = leaf.nrows()
    else:
        count = leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0]
    return int(count) if tf.executing_eagerly() else tf.cast(count, tf.int32)
