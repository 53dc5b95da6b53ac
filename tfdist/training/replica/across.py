"""Gathering and reducing in the middle of a step, with the gradients of one device.

With w_r the weight with which the loss of replica r enters the loss of all, and g_r the gradient of that loss with
respect to what was exchanged, one device has the gradient sum_r w_r g_r. TensorFlow's own `all_gather` and `all_reduce`
send back sum_r g_r. A replica's gradients are multiplied by its own weight afterwards, unless its loss was before: what
comes back is divided by that weight here.

Code that has to see all examples at once, such as a loss that compares examples, gets the rows of all replicas. Its
gradients go back through a replica's own rows alone, so the replicas' gradients add up to that of the whole batch, and
nothing travels in the backward pass.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.collectives.wire_dtypes import has_fractions
from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import traced_uses
from tfdist.compat.tensorflow.steps import gradient_uses, replica_contexts, row_decisions
from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import replica_sums
from tfdist.training.replica import current_step

_OF_A_GRADIENT = (
    "A train_step takes the gradient of a gradient through %s, which replicas compute together. That is the gradient "
    "of one device where the inner one is of a mean over the batch, or where every replica has as many examples. Else, "
    "let the inner gradient depend on each example alone; of normalization, keras.layers.LayerNormalization does."
)
_REDUCED = "tfdist.training.reduced_gradients"
_GATHERED = "tf.distribute.get_replica_context().all_gather"
_REDUCED_BY_USER = "tf.distribute.get_replica_context().all_reduce"

_Tensors = list[tf.Tensor]


def summed(tensors: _Tensors, what: str, current: current_step.Step) -> _Tensors:
    """Return the sums over replicas of tensors on which every replica's loss depends."""
    if current.weighs_loss:
        return current.sum_in_the_middle(tensors, what=what)

    def sums(given: _Tensors) -> _Tensors:
        return current.sum_in_the_middle(given, what=what)

    return _exchanged(sums, current.all_reduce, tensors, what, current)


def reduced_gradients(gradients: Any) -> Any:
    """Return the gradients of the global batch, for a `train_step` that uses its gradients before it applies them.

    Each replica has the gradients of its own examples. Norms, limits and decisions based on these differ from those of
    one device; based on the result of this function, they are the same. The result, or values computed from it, may be
    passed to the optimizer.

    Args:
        gradients: the gradients, a nest of tensors, `tf.IndexedSlices` and None, as `tape.gradient` returns it. All
            replicas must call this function in the same order.
    Returns:
        The same nest with reduced gradients, equal on every replica. Without a strategy, or on one replica, it is the
        given one.
    Raises:
        UnsupportedError: weights, and so gradients, are in parts (`ModelParallelStrategy`, stage 3); XLA compiles the
            step (``jit_compile=True``); gradients are sparse in a model with ``run_eagerly=True``; or the function is
            called in `strategy.run` outside of `fit`.

    Example:
        >>> import tfdist.training
        >>> gradients = tfdist.training.reduced_gradients([tf.constant([3.0, 4.0]), None])
        >>> clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        >>> norm.numpy().item()
        5.0
    """
    current = current_step.current()
    if current is None:
        if tf_strategies.replicas_here() > 1:
            raise UnsupportedError(
                f"{_REDUCED} was called in strategy.run, outside of fit, where nothing says how many examples each "
                "replica has. Divide the loss by the global batch, and add up its gradients by "
                "tf.distribute.get_replica_context().all_reduce; or train with model.fit."
            )
        return gradients
    if getattr(tf.distribute.get_strategy(), "cuts_weights", False):
        raise UnsupportedError(
            f"{_REDUCED} was called under {type(tf.distribute.get_strategy()).__name__}, which keeps weights in parts: "
            "a step has gradients in parts too, and a norm of these is none of the whole. Give the optimizer "
            "global_clipnorm, clipnorm or clipvalue, which heed that, or take a strategy that keeps weights whole."
        )
    flat = tf.nest.flatten(gradients)
    own = [gradient for gradient in flat if gradient is not None]
    is_alone = current.group.size == 1
    if tf.executing_eagerly() and not is_alone and any(isinstance(one, tf.IndexedSlices) for one in own):
        raise UnsupportedError(
            f"{_REDUCED} was given tf.IndexedSlices, as embeddings have them, in a model with run_eagerly=True, where "
            "an optimizer cannot tell rows of all replicas from those of its own. Leave run_eagerly out, or pass "
            "tf.convert_to_tensor(gradient)."
        )
    weight = current.weight_of("gradient", own, name=_REDUCED)
    current.will_apply_reduced()
    current.meetings += 1
    sums = current.sum_in_the_middle([replica_sums.weighted(gradient, weight) for gradient in own], what=_REDUCED)
    arrived = iter([gradient_uses.reduced(gradient, is_alone=is_alone) for gradient in sums])
    return tf.nest.pack_sequence_as(gradients, [None if gradient is None else next(arrived) for gradient in flat])


def exchanging(current: current_step.Step) -> AbstractContextManager[None]:
    """Return a context in which `tf.distribute`'s `all_gather` and `all_reduce` concern the examples of a step."""
    return replica_contexts.exchanging_by(
        all_gather=functools.partial(_gathered, current), all_reduce=functools.partial(_reduced, current)
    )


def _reduced(current: current_step.Step, reduce_op: Any, value: Any, options: Any = None) -> Any:
    """Return a nest reduced over the replicas that have examples; a mean is one over examples."""
    del options  # how tensors travel is the strategy's affair
    current.meetings += 1
    if current.group.size == 1:
        current.all_reduce([])  # raises where a part of a batch cannot ask others
        return value if current.noted is None else row_decisions.of_all(value)
    is_mean = str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"
    weight = current.share if is_mean else current.present
    return tf.nest.map_structure(lambda one: _total(tf.convert_to_tensor(one), weight, current), value)


def _total(tensor: tf.Tensor, weight: tf.Tensor, current: current_step.Step) -> tf.Tensor:
    if has_fractions(tensor.dtype):
        return summed([replica_sums.weighted(tensor, weight)], _REDUCED_BY_USER, current)[0]
    numbers = replica_sums.weighted(tf.cast(tensor, tf.float64), weight)
    (total,) = current.sum_in_the_middle([numbers], what=_REDUCED_BY_USER)
    return tf.cast(total, tensor.dtype)


def _gathered(current: current_step.Step, value: Any, axis: Any, options: Any = None) -> Any:
    """Return a nest with the rows of all replicas that have examples, as `tf.distribute.ReplicaContext.all_gather`."""
    del options  # how rows travel is the strategy's affair
    axis = int(tf.get_static_value(axis))
    tensors = [tf.convert_to_tensor(one) for one in tf.nest.flatten(value)]
    return tf.nest.pack_sequence_as(value, [_rows_along(axis, one, current) for one in tensors])


def _rows_along(axis: int, tensor: tf.Tensor, current: current_step.Step) -> tf.Tensor:
    if axis % (tensor.shape.rank or 1) == 0:
        return _rows(tensor, current)
    order = list(range(tensor.shape.rank))
    order.insert(0, order.pop(axis))
    inverse = [order.index(place) for place in range(len(order))]
    return tf.transpose(_rows(tf.transpose(tensor, order), current), inverse)


def _rows(tensor: tf.Tensor, current: current_step.Step) -> tf.Tensor:
    group = current.group
    current.meetings += 1
    if group.size == 1:
        current.all_reduce([])  # raises where a part of a batch cannot ask others
        return tensor if current.noted is None else row_decisions.of_all(tensor)
    if current.is_one_program:
        raise current_step.cannot_add_up(_GATHERED)
    what = f"rows of all_gather {current.meetings}"
    mine = tf.where(current.rows > 0, tf.shape(tensor)[0], 0)

    def gathered(given: _Tensors) -> _Tensors:
        with current.meeting():
            return [group.rows(given[0][:mine], what)]

    def own(given: _Tensors) -> _Tensors:
        total = group.total(given[0], f"gradient of {what}")
        first = tf.reduce_sum(group.rows(mine[tf.newaxis], f"numbers of {what}")[: group.index])
        absent = [[0, tf.shape(tensor)[0] - mine], *([[0, 0]] * (len(tensor.shape) - 1))]
        return [tf.ensure_shape(tf.pad(total[first : first + mine], absent), tensor.shape)]

    if not has_fractions(tensor.dtype):
        return gathered([tensor])[0]
    return _exchanged(gathered, own, [tensor], _GATHERED, current)[0]


def _exchanged(
    forward: Callable[[_Tensors], _Tensors],
    back: Callable[[_Tensors], _Tensors],
    tensors: _Tensors,
    what: str,
    current: current_step.Step,
) -> _Tensors:
    @tf.custom_gradient
    def onward(*given: tf.Tensor) -> Any:
        return forward(list(given)), backward

    @tf.custom_gradient
    def backward(*upstream: tf.Tensor) -> Any:
        if current.weighs_loss:
            return back(list(upstream)), again
        weight = current.weight_of_loss()
        sums = back([replica_sums.weighted(one, weight) for one in upstream])
        return [tf.math.divide_no_nan(one, tf.cast(weight, one.dtype)) for one in sums], again

    def again(*upstream: tf.Tensor) -> Any:
        current_step.warn_once(_OF_A_GRADIENT % what)
        return onward(*upstream)

    return list(onward(*tensors))


def can_gather(nest: Any) -> bool:
    """True for a nest of dense numbers or bools, outside of conditions and loops."""
    leaves = [leaf for leaf in tf.nest.flatten(nest, expand_composites=False) if leaf is not None]
    dense = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.shape.rank and leaf.dtype != tf.string]
    return bool(leaves) and len(dense) == len(leaves) and (tf.executing_eagerly() or not traced_uses.in_condition())


def gathered(nest: Any, current: current_step.Step, *, what: str) -> Any:
    """Return the rows of all replicas of each tensor of a nest, in the order of the replicas; None stays None.

    A tensor is gathered once per step. Rows of a replica without examples are left out. A mask of Keras goes with its
    tensor.
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
    """Return a loss of the whole batch as each replica returns it, weighted by its share.

    The value is that of the whole batch on every replica; the gradient, of this replica's rows, is a part of a sum.
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
        rows = _whole_rows(tensor, current, label)
        return rows if mask is None else graphs.with_mask(rows, _whole_rows(mask, current, f"{label}, mask"))


def _whole_rows(tensor: tf.Tensor, current: current_step.Step, label: str) -> tf.Tensor:
    own = tensor[: tf.where(current.rows > 0, tf.int32.max, 0)]
    if current.group.size == 1:
        return own
    count = tf.shape(own)[0]
    whole = tf.stop_gradient(current.group.rows(own, label))
    before = tf.reduce_sum(current.group.rows(count[tf.newaxis], f"{label}, counted")[: current.group.index])
    joined = tf.concat([whole[:before], own, whole[before + count :]], axis=0)
    return tf.ensure_shape(joined, [None, *own.shape[1:]])
