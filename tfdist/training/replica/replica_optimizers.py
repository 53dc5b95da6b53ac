"""Optimizers in a tfdist scope, which reduce, then unscale, check, clip and apply.

Keras unscales, checks, clips and decays one replica's gradients, and reduces last. Here gradients are reduced as they
enter `apply`. All that follows works on the gradient of the global batch, equal on every replica, so no condition (loss
scaling, accumulation, moving averages) can be decided differently by two replicas.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.keras import keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.gradients.reduction import reducer, replica_sums
from tfdist.gradients.sharding import sharded_slots
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.recording import graph_stamps
from tfdist.training import loss_scale
from tfdist.training.replica import current_step, partial_update

_OF_A_TABLE = (
    "the model runs eagerly, where tfdist cannot tell how replicas look up the table {!r}. The rows of its gradient "
    "count as rows of examples. Where they are not (positions, the distinct words of a batch, a sparse input, "
    "strategy.whole_inputs), {} makes another update than on one device. Leave run_eagerly=True out."
)
_OF_FLOAT8 = (
    "{!r} trains layers in float8 in a step of your own. Their scales follow the gradients of each replica's own loss, "
    "which are larger than those of the whole batch, so numbers are rounded unlike on one device. Override "
    "compute_loss in place of train_step."
)


def adapt(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Let one optimizer object, created in the strategy's scope, apply the gradient of the global batch."""
    if keras_optimizer.is_horovods(optimizer):
        raise UnsupportedError(
            f"the optimizer {type(optimizer).__name__!r} is wrapped in Horovod's DistributedOptimizer. Under Keras 3 "
            "it averages nothing, because Keras no longer calls the methods that it overrides, and the strategy "
            "reduces gradients by itself. Pass the plain Keras optimizer to compile().",
            name=type(optimizer).__name__,
        )
    require_scope(optimizer, strategy)
    for inner in keras_optimizer.wrapped(optimizer):  # is handed gradients that are reduced already
        if isinstance(inner, reducer.ReducesItself):
            raise ConfigError(
                f"the optimizer {optimizer.name!r} wraps {inner.name!r}, which reduces gradients itself: it must be "
                "the outermost optimizer. Pass what the other is for to DistributedOptimizer, such as "
                'loss_scale="dynamic".',
                name=optimizer.name,
                received=inner.name,
            )
    keras_optimizer.override(
        optimizer,
        apply=functools.partial(_apply, optimizer),
        apply_pairs=functools.partial(_apply_pairs, optimizer),
        scale_loss=functools.partial(_scale_loss, optimizer),
    )


def require_scope(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Raise `ConfigError` if an optimizer, or one that it wraps, was created outside the strategy's scope."""
    for one in keras_optimizer.chain(optimizer):
        under = keras_optimizer.created_under(one)
        if under is not strategy:
            kind = type(strategy).__name__
            where = (
                "outside the scope of" if not tf_strategies.is_own(under) else "in the scope of another strategy than"
            )
            raise ConfigError(
                f"the optimizer {one.name!r} was created {where} {kind}; it must be created inside, so that its "
                "variables exist on every replica. Create it and call model.compile() under `with strategy.scope():`.",
                name=one.name,
            )


def _apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
    """Take gradients from Keras or a user; in a step, hand them to the step's sink.

    Keras' arguments do not name the replica, and replicas are traced with one optimizer: this thread's step knows both.
    """
    current = current_step.current()
    if current is not None and id(optimizer) in current.finished:
        type(optimizer).apply(optimizer, grads, trainable_variables)
    elif current is None or current.sink is None:
        apply_here(optimizer, list(grads), trainable_variables)
    else:
        grads = list(grads)
        if tf.executing_eagerly() and current.group.size > 1:
            _warn_of_tables(optimizer, grads, trainable_variables)
        current.sink.apply(optimizer, grads, trainable_variables)


def _apply_pairs(optimizer: Any, grads_and_vars: Any) -> Any:
    """Let an `apply_gradients` of the user's have the gradients of the global batch, as its `apply` does."""
    current = current_step.current()
    pairs = list(grads_and_vars)
    if current is None:
        return type(optimizer).apply_gradients(optimizer, pairs)
    with current.pairing(optimizer):
        optimizer.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
    return optimizer.iterations


def in_pairs(optimizer: Any) -> bool:
    """Return whether the gradients that an optimizer is given in this step came by its own `apply_gradients`."""
    current = current_step.current()
    return current is not None and id(optimizer) in current.in_pairs


def _warn_of_tables(optimizer: Any, grads: list[Any], variables: Any) -> None:
    if reducer.keeps_duplicate_indices(optimizer):
        for gradient, table in zip(grads, variables or (), strict=False):
            if isinstance(gradient, tf.IndexedSlices):
                current_step.warn_once(_OF_A_TABLE.format(table.path, type(optimizer).__name__))


def apply_here(optimizer: Any, grads: list[Any], variables: Any) -> None:
    """Apply gradients to this replica's own variables, reduced over replicas if there are several.

    In a step the gradient is the mean over the examples of all replicas; elsewhere their sum, as in TensorFlow.
    """
    variables = None if variables is None else list(variables)
    own = services(keras_optimizer.created_under(optimizer))
    sharding = sharded_slots.of(optimizer) if own.sharding is not None else None
    if sharding is not None:
        with sharding.updating(optimizer, variables):
            if not isinstance(optimizer, reducer.ReducesItself):
                build(optimizer, variables)  # which decides what part each worker updates
            _reduce_and_apply(optimizer, grads, variables)
        return
    build(optimizer, variables)
    with partial_update.updated(optimizer, variables) if own.weights is not None else contextlib.nullcontext():
        _reduce_and_apply(optimizer, grads, variables)


def _reduce_and_apply(optimizer: Any, grads: list[Any], variables: Any) -> None:
    if not isinstance(optimizer, reducer.ReducesItself):
        known = keras_optimizer.known_variables(optimizer) if variables is None else variables
        direct = [i for i, variable in enumerate(known) if reducer.is_overwritten(variable)]
        sums = [None if i in direct else gradient for i, gradient in enumerate(grads)]
        gradients = reducer.present(sums, variables, optimizer)
        weighted = reducer.weighted(gradients, weight(optimizer, gradients))
        over_replicas = reducer.OverReplicas(reducer.choices_of(optimizer))
        scale = functools.partial(loss_scale.variable_of, optimizer)
        arrived = reducer.in_their_places(reduced(optimizer, weighted, variables, over_replicas, scale), len(grads))
        for i, value in _largest(optimizer, {i: grads[i] for i in direct if grads[i] is not None}).items():
            arrived[i] = value
        grads = arrived
    own_apply(optimizer, grads, variables, in_pairs=in_pairs(optimizer))


def own_apply(optimizer: Any, gradients: list[Any], variables: Any, *, in_pairs: bool) -> None:
    """Apply reduced gradients by the optimizer's class: by `apply`, or by an `apply_gradients` that calls it.

    This thread's step says that they are reduced: in an eager model other replicas use the same optimizer meanwhile.
    """
    current = current_step.current()
    if current is None:
        type(optimizer).apply(optimizer, gradients, variables)
        return
    before, current.updating = current.updating, optimizer
    try:
        if in_pairs:
            with current.finishing(optimizer):
                type(optimizer).apply_gradients(optimizer, list(zip(gradients, variables, strict=True)))
        else:
            type(optimizer).apply(optimizer, gradients, variables)
    finally:
        current.updating = before


def _largest(optimizer: Any, values: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
    """Return the largest values of all replicas, of "gradients" that Keras assigns to variables as they are.

    They are the scales and the latest maxima of float8, of which Keras itself keeps the larger of two micro-batches.
    """
    if not values or tf_strategies.replicas_here() == 1:
        return values
    current = current_step.current()
    if current is None or id(optimizer) not in current.weighted:
        step_clock().warn(_OF_FLOAT8.format(optimizer.name))
    stacks = replica_sums.gathered_from_replicas(list(values.values()), f"values that {optimizer.name} assigns")
    return {i: tf.reduce_max(stack, axis=0) for i, stack in zip(values, stacks, strict=True)}


def reduced(
    optimizer: Any,
    gradients: list[reducer.Gradient],
    variables: Any,
    over_replicas: reducer.OverReplicas,
    scale: Callable[[], Any],
) -> list[reducer.Gradient]:
    """Return the gradients of the global batch: whole ones, or this worker's parts where the optimizer is sharded."""
    if services(keras_optimizer.created_under(optimizer)).sharding is None:
        return reducer.stamped(over_replicas.reduce(gradients), scale)
    known = keras_optimizer.known_variables(optimizer) if variables is None else variables
    there = [known[one.index] for one in gradients]
    sharding = sharded_slots.of(optimizer)
    assert sharding is not None
    return reducer.stamped(sharding.reduced(optimizer, gradients, there, over_replicas), scale)


def build(optimizer: Any, variables: Any) -> None:
    """Build an optimizer in its first step, outside of the trace, with equal values on all replicas.

    Inside a graph a variable that begins with a value, rather than a function, would begin with a tensor of that graph.
    The first replica makes the variables of all, and assigns to its own copies only.
    """
    if variables is None or optimizer.built:
        return
    with tf.init_scope():
        keras_optimizer.build(optimizer, variables)
        for one in keras_optimizer.chain(optimizer):
            for variable in one.variables:
                tf_strategies.equalise_copies(keras_variables.value_of(variable))


def weight(optimizer: Any, gradients: list[reducer.Gradient]) -> tf.Tensor | None:
    """Return the factor of a replica's gradients before they meet others; None for none.

    It is the replica's share of the examples, unless its loss was multiplied by it; gradients that are sums over
    examples add up.
    """
    current = current_step.current()
    if current is None or id(optimizer) in current.weighted:
        return None
    return current.weight_of("gradient", [gradient.value for gradient in gradients], name=optimizer.name)


def _scale_loss(optimizer: Any, loss: Any) -> Any:
    stamps = graph_stamps.current()
    if stamps is not None:
        stamps.loss(loss)
    loss = type(optimizer).scale_loss(optimizer, loss)
    current = current_step.current()
    if current is not None and current.weighs_loss:
        # One multiplication of a scalar instead of one of every gradient. In a step of the user's own, what is scaled
        # and what is applied need not belong together.
        current.weighted.add(id(optimizer))
        loss = replica_sums.weighted(loss, current.weight_of_loss())
    return loss
