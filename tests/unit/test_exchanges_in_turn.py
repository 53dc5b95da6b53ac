"""Exchanges whose operations run one after the other: the order is in the graph, not left to the executor."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.compression.codec_exchange import InTurn


class _Alone:
    """The operations of a group with one member, each with a name of its own in the graph."""

    def all_reduce(self, tensors: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        return [tf.negative(tensor, name=label) for tensor, label in zip(tensors, labels, strict=True)]

    def all_to_all(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        return tf.negative(rows, name=label)

    def all_gather(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        return tf.negative(rows, name=label)


def _depends(late: tf.Operation, early: tf.Operation) -> bool:
    return early is late or any(
        _depends(one, early) for one in (*late.control_inputs, *(tensor.op for tensor in late.inputs))
    )


def test_each_operation_waits_for_the_former_one() -> None:
    with tf.Graph().as_default() as graph:
        carrier, one = InTurn(_Alone()), tf.constant([1.0])
        carrier.all_gather(one, "first")
        carrier.all_reduce([one, one], ["second", "third"])
        carrier.all_to_all(one, "fourth")
        names = ["first", "second", "third", "fourth"]
        found = [graph.get_operation_by_name(name) for name in names]
    assert all(_depends(late, early) for early, late in itertools.pairwise(found))
    assert not _depends(found[0], found[1])
