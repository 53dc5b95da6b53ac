"""The exchange of sharded updates: gradients are reduced to the workers of their parts, new weights gathered on all.

Both use buckets in backward-pass order, and together move as many bytes as an all_reduce, of which a reduce_scatter is
the first half and an all_gather the second.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective, in_buckets, relative_paths
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes import graph_rewrites, sharded_variable
from tfdist.gradients.reduction import reducer
from tfdist.gradients.sharding.variable_parts import Everywhere, Owned, Part, Stretch
from tfdist.planner.bucket_filling import RoomUnderWay


class ReduceScatter(reducer.GradientReducer):
    """The exchange that leaves on each worker the sum of its part.

    Rows of tables, and gradients of variables that are not divided, are summed on all workers, and each keeps its part.
    """

    def __init__(self, traced: TracedCollective, parts: Sequence[Part]) -> None:
        self._traced = traced
        self._parts = list(parts)

    def reduce(self, gradients: list[reducer.Gradient]) -> list[reducer.Gradient]:
        parts = self._parts
        rows = [isinstance(one.value, tf.IndexedSlices) for one in gradients]
        divided = [i for i in range(len(gradients)) if isinstance(parts[i], Stretch) and not rows[i]]
        others = [i for i in range(len(gradients)) if i not in set(divided)]
        sums = list(gradients)
        dense = {i: tf.convert_to_tensor(gradients[i].value) for i in divided}
        under_way = RoomUnderWay(self._traced.bucket_bytes, map(_bytes, dense.values()))
        for bucket in in_buckets(dense, self._traced.bucket_bytes):
            wholes = [dense[i] for i in bucket]
            graph_rewrites.hold_back(wholes, under_way.before(sum(map(_bytes, wholes))))
            shaped = {i: part for i in bucket if isinstance(part := parts[i], Stretch)}
            spread = joined([shaped[i].spread(dense[i]) for i in bucket])
            label = " and ".join(f"gradient of {gradients[i].path}" for i in bucket)
            mine = tf.reshape(self._traced.reduce_scatter(spread, label), [-1])
            under_way.left_by(mine)
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
    """Return this worker's parts of the gradients of the global batch."""
    needs_whole = choices.kind == "adasum" or choices.compression is not None
    if needs_whole or tf_strategies.replicas_here() == 1:
        arrived = over_replicas.reduce(gradients)
        return [replace(one, value=part.of(one.value)) for one, part in zip(arrived, parts, strict=True)]
    return reducer.composed(choices, ReduceScatter(traced, parts)).reduce(gradients)


def assign_wholes(
    traced: TracedCollective, variables: Sequence[Any], parts: Sequence[Part], value: Callable[[int], Any]
) -> None:
    """Assign variables on all workers from each worker's parts of the new values, a few at a time."""
    every = range(len(variables))
    apart = [i for i in every if _is_divided(variables[i]) and isinstance(parts[i], Stretch)]  # no worker has the whole
    everywhere = [i for i in every if isinstance(parts[i], Everywhere)]
    paths = relative_paths([variable.path for variable in variables])
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in variables]
    under_way = RoomUnderWay(traced.bucket_bytes, map(_bytes, specs))
    for i in apart:
        with tf.control_dependencies(under_way.before(_bytes(specs[i]))):
            part = sharded_variable.part_of(variables[i])
            part.assign(value(i))
            under_way.left_by(tf.convert_to_tensor(part))
    assigned: list[Any] = []  # of what travelled last; reading it comes after the assignment, and copies nothing
    for kind, send in ((Stretch, _send_stretches), (Owned, _send_owned)):
        wholes = {i: specs[i] for i in every if isinstance(parts[i], kind) and i not in set(apart)}
        for bucket in in_buckets(wholes, traced.bucket_bytes):
            label = " and ".join(f"new {paths[i]}" for i in bucket)
            with tf.control_dependencies(under_way.before(sum(_bytes(specs[i]) for i in bucket))):
                mine = [tf.convert_to_tensor(value(i)) for i in bucket]
            with tf.control_dependencies(assigned):  # the whole is there twice until then
                arrived = send(traced, mine, [parts[i] for i in bucket], label)
                for i, whole in zip(bucket, arrived, strict=True):
                    variables[i].assign(whole)
                last = variables[bucket[-1]]
                assigned = [tf.convert_to_tensor(sharded_variable.part_of(last) if _is_divided(last) else last.value)]
            under_way.left_by(assigned[0])
    for i in everywhere:
        variables[i].assign(value(i))


def _send_stretches(traced: TracedCollective, values: list[Any], parts: list[Any], label: str) -> list[Any]:
    mine = joined([part.padded(value) for value, part in zip(values, parts, strict=True)])
    widths = [part.width for part in parts]
    rows = tf.reshape(traced.all_gather(mine, label, equal_rows=True), [traced.size, sum(widths)])
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
    """Concatenate matrices side by side; a single one is not copied."""
    return rows[0] if len(rows) == 1 else tf.concat(rows, axis=1)


def _bytes(tensor: tf.Tensor) -> int:
    return int((tensor.shape.num_elements() or 0) * tensor.dtype.size)


def _is_divided(variable: Any) -> bool:
    return sharded_variable.sharding_of(variable) is not None
