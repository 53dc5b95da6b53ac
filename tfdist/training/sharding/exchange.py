"""What travels: gradients to the workers that update their parts, and the new weights from there to all.

Both go in buckets that fill in the order in which gradients are made, as an all_reduce does, and move as many bytes
together: a reduce_scatter is its first half, an all_gather its second.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfdist.collectives import buckets
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow import strategies as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded
from tfdist.training.multi_worker import agreement
from tfdist.training.reduction import reducer
from tfdist.training.sharding.parts import Everywhere, Owned, Part, Stretch

#: buckets of new weights that are under way at most: each is there twice until it is assigned
_UNDER_WAY = 4


class ReduceScatter(reducer.Stateless):
    """The exchange that leaves on each worker the sum of its part, see `reducer.GradientReducer`.

    Rows of tables, and gradients of variables that are not divided, are added up on all workers, of which each keeps
    its part.

    Args:
        traced: carries them.
        parts: of the gradients that `reduce` will be given, in their order.
    """

    def __init__(self, traced: TracedCollective, parts: Sequence[Part]) -> None:
        self._traced = traced
        self._parts = list(parts)

    def reduce(self, gradients: list[reducer.Gradient]) -> list[reducer.Gradient]:
        """Return the sums of this worker's parts, in the order given."""
        parts = self._parts
        divided = [i for i, one in enumerate(gradients) if isinstance(parts[i], Stretch) and _is_dense(one)]
        others = [i for i in range(len(gradients)) if i not in set(divided)]
        sums = list(gradients)
        order = sorted(divided, key=lambda i: gradients[i].turn)
        dense = {i: tf.convert_to_tensor(gradients[i].value) for i in order}
        for bucket in buckets.in_buckets(dense, self._traced.bucket_bytes):
            shaped = {i: _stretch(parts[i]) for i in bucket}
            rows = joined([shaped[i].spread(dense[i]) for i in bucket])
            label = " and ".join(f"gradient of {gradients[i].path}" for i in bucket)
            mine = tf.reshape(self._traced.reduce_scatter(rows, label), [-1])
            pieces = tf.split(mine, [shaped[i].width for i in bucket]) if len(bucket) > 1 else [mine]
            for i, piece in zip(bucket, pieces, strict=True):
                sums[i] = replace(gradients[i], value=piece[: shaped[i].shape[0]])
        arrived = reducer.AllReduce().reduce([gradients[i] for i in others]) if others else []
        for i, whole in zip(others, arrived, strict=True):
            sums[i] = replace(whole, value=parts[i].of(whole.value))
        return sums


def reduced(
    traced: TracedCollective,
    gradients: list[reducer.Gradient],
    parts: Sequence[Part],
    over_replicas: reducer.OverReplicas,
    choices: reducer.Choices,
) -> list[reducer.Gradient]:
    """Return this worker's parts of the gradients of the global batch.

    Args:
        traced: carries them.
        gradients: of this worker, weighted.
        parts: of each.
        over_replicas: the way for whole gradients, which codecs and Adasum need.
        choices: the optimizer's.
    """
    needs_whole = choices.kind == "adasum" or choices.compression is not None
    if needs_whole or tf_strategies.replicas_here() == 1:
        arrived = over_replicas.reduce(gradients)
        return [replace(one, value=part.of(one.value)) for one, part in zip(arrived, parts, strict=True)]
    return reducer.composed(choices, ReduceScatter(traced, parts)).reduce(gradients)


def assign_wholes(
    traced: TracedCollective, variables: Sequence[Any], parts: Sequence[Part], values: Sequence[Any]
) -> None:
    """Give variables on all workers what each worker has of their new values.

    Args:
        traced: carries them.
        variables: Keras variables.
        parts: of each.
        values: of this worker's parts.
    """
    tensors = {i: tf.convert_to_tensor(value) for i, value in enumerate(values)}
    for i in [i for i in tensors if _is_divided(variables[i]) and isinstance(parts[i], Stretch)]:
        sharded.part_of(variables[i]).assign(tensors.pop(i))  # nobody has the whole
    paths = agreement.relative_paths([variable.path for variable in variables])
    for kind, send in ((Stretch, _send_stretches), (Owned, _send_owned)):
        mine = {i: tensors[i] for i in tensors if isinstance(parts[i], kind)}
        wholes = {i: tf.TensorSpec(variables[i].shape, tensors[i].dtype) for i in mine}
        done: list[tf.Tensor] = []
        for bucket in buckets.in_buckets(wholes, traced.bucket_bytes):
            label = " and ".join(f"new {paths[i]}" for i in bucket)
            with tf.control_dependencies(done[-_UNDER_WAY:][:1] if len(done) >= _UNDER_WAY else []):
                arrived = send(traced, [mine[i] for i in bucket], [parts[i] for i in bucket], label)
            for i, value in zip(bucket, arrived, strict=True):
                variables[i].assign(value)
            last = variables[bucket[-1]]
            held = sharded.part_of(last) if _is_divided(last) else last.value
            done.append(tf.convert_to_tensor(held))  # comes after the assignment, copies nothing
    for i, tensor in tensors.items():
        if isinstance(parts[i], Everywhere):
            variables[i].assign(tensor)


def _send_stretches(traced: TracedCollective, values: list[Any], parts: list[Any], label: str) -> list[Any]:
    mine = joined([part.padded(value) for value, part in zip(values, parts, strict=True)])
    widths = [part.width for part in parts]
    rows = tf.reshape(traced.all_gather(mine, label), [traced.size, sum(widths)])
    pieces = tf.split(rows, widths, axis=1) if len(parts) > 1 else [rows]
    return [part.joined(piece) for piece, part in zip(pieces, parts, strict=True)]


def _send_owned(traced: TracedCollective, values: list[Any], parts: list[Any], label: str) -> list[Any]:
    flat = [tf.reshape(value, [-1]) for value in values]  # nothing where it is another's
    order = sorted(range(len(parts)), key=lambda i: parts[i].owner)  # as the rows of workers come, one after the other
    counts = [Stretch(parts[i].whole, 0, 1).count for i in order]
    rows = tf.reshape(traced.all_gather(tf.concat(flat, axis=0), label), [sum(counts)])
    pieces = dict(zip(order, tf.split(rows, counts), strict=True))
    return [tf.reshape(pieces[i], parts[i].whole) for i in range(len(parts))]


def joined(rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return matrices of as many rows side by side; one alone as it is, which copies nothing."""
    return rows[0] if len(rows) == 1 else tf.concat(rows, axis=1)


def _is_divided(variable: Any) -> bool:
    return sharded.sharding_of(variable) is not None


def _stretch(part: Part) -> Stretch:
    assert isinstance(part, Stretch)
    return part


def _is_dense(gradient: reducer.Gradient) -> bool:
    return not isinstance(gradient.value, tf.IndexedSlices)
