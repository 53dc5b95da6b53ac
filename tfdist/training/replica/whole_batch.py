"""The whole batch inside one replica's step, for code that has to see all examples at once.

A loss that compares examples, or a metric that is no sum over them, is right where it is given the rows of all
replicas: each replica then computes what one device computes. Gradients go back through a replica's own rows alone, so
that the replicas' gradients add up to the one of the whole batch, and nothing travels in the backward pass.
"""

from typing import Any

import tensorflow as tf

from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow import traced_uses
from tfdist.training.replica import current_step


def can_gather(nest: Any) -> bool:
    """Return whether the rows of a nest can be gathered: dense numbers or bools, and not inside a condition or loop."""
    leaves = [leaf for leaf in tf.nest.flatten(nest, expand_composites=False) if leaf is not None]
    dense = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.shape.rank and leaf.dtype != tf.string]
    return bool(leaves) and len(dense) == len(leaves) and (tf.executing_eagerly() or not traced_uses.in_condition())


def gathered(nest: Any, current: current_step.Step, *, what: str) -> Any:
    """Return the rows of all replicas of each tensor of a nest, in the order of the replicas; None stays None.

    A tensor that was gathered in the step before is not gathered again. Rows of a replica without examples are left
    out. A mask of Keras goes with its tensor.
    """

    def whole(leaf: Any) -> Any:
        if leaf is None:
            return None
        known = current.gathered.get(id(leaf))
        if known is None:
            known = current.gathered[id(leaf)] = (leaf, _whole(leaf, current, what))
        return known[1]

    return tf.nest.map_structure(whole, nest, expand_composites=False)


def of_each_replica(value: tf.Tensor, current: current_step.Step) -> tf.Tensor:
    """Return a loss of the whole batch as each replica hands it on, weighted by its share.

    Its value is that of the whole batch on every replica; its gradient, of this replica's own rows, is no mean over
    replicas but a part of their sum.
    """
    scaled = tf.math.divide_no_nan(value, tf.cast(current.share, value.dtype))
    return scaled + tf.stop_gradient(value - scaled)


def _whole(tensor: tf.Tensor, current: current_step.Step, what: str) -> tf.Tensor:
    if current.noted is not None:  # where a step is tried, what there is is the whole
        return tensor
    current.require_others(what)
    label = f"rows of the whole batch {len(current.gathered)}"
    mask = graphs.mask_of(tensor)
    with current.meeting():
        rows = _rows(tensor, current, label)
        return rows if mask is None else graphs.with_mask(rows, _rows(mask, current, f"{label}, mask"))


def _rows(tensor: tf.Tensor, current: current_step.Step, label: str) -> tf.Tensor:
    own = tensor[: tf.where(current.rows > 0, tf.int32.max, 0)]
    if current.group.size == 1:
        return own
    count = tf.shape(own)[0]
    whole = tf.stop_gradient(current.group.rows(own, label))
    before = tf.reduce_sum(current.group.rows(count[tf.newaxis], f"{label}, counted")[: current.group.index])
    joined = tf.concat([whole[:before], own, whole[before + count :]], axis=0)
    return tf.ensure_shape(joined, [None, *own.shape[1:]])
