"""Optimizers in a tfdist scope: reduce, then unscale, then check, then clip, then apply.

Keras unscales, checks, clips and decays what one replica has, and reduces last. Here the gradients are reduced as
they enter `apply`, so everything behind it works on the gradient of the global batch, equal on every replica, and no
condition (loss scaling, accumulation, moving averages) can be decided differently by two replicas.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras_optimizer
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.training import agreement, reduction, step


def adapt(optimizer: Any, strategy: tf.distribute.Strategy, apply: Callable[..., None] | None = None) -> None:
    """Let one optimizer object, created in the strategy's scope, apply the gradient of the global batch.

    Args:
        optimizer: the object.
        strategy: whose scope it was created in.
        apply: takes the optimizer, gradients and variables in the place of a reduction over replicas.
    Raises:
        UnsupportedError: Horovod has wrapped it.
        ConfigError: the optimizer was created outside the scope, so each replica would count and update on its own; or
            it wraps one that reduces by itself.
    """
    reduces = getattr(optimizer, "reduces_by_itself", False)
    if keras_optimizer.is_horovods(optimizer):
        raise UnsupportedError(
            f"the optimizer {type(optimizer).__name__!r} is wrapped in Horovod's DistributedOptimizer. Under Keras 3 "
            "it averages nothing, because Keras no longer calls the methods that it overrides, and the strategy "
            "reduces gradients by itself. Pass the plain Keras optimizer to compile()."
        )
    if keras_optimizer.created_under(optimizer) is not strategy:
        raise ConfigError(
            f"the optimizer {optimizer.name!r} was created outside the scope of {type(strategy).__name__}; it must be "
            "created inside, so that its variables exist on every replica. Create it and call model.compile() under "
            "`with strategy.scope():`."
        )
    if apply is None and not reduces:
        apply = functools.partial(_apply, strategy=strategy)
    keras_optimizer.override(
        optimizer,
        apply=None if apply is None else functools.partial(apply, optimizer),
        scale_loss=functools.partial(_scale_loss, optimizer),
    )
    inner = keras_optimizer.inner_optimizer(optimizer)
    while inner is not None:  # a wrapping optimizer hands on gradients that are reduced already
        if getattr(inner, "reduces_by_itself", False):
            raise ConfigError(
                f"the optimizer {optimizer.name!r} wraps {inner.name!r}, which reduces gradients by itself: its own "
                "options stand around every other optimizer. Pass what it shall do to DistributedOptimizer, such as "
                'loss_scale="dynamic".'
            )
        keras_optimizer.override(inner)
        inner = keras_optimizer.inner_optimizer(inner)


def _apply(optimizer: Any, grads: Any, trainable_variables: Any = None, *, strategy: tf.distribute.Strategy) -> None:
    replica_context = tf.distribute.get_replica_context()
    if replica_context is not None and replica_context.strategy is strategy:
        grads = _reduce(optimizer, list(grads), labels(grads, trainable_variables))
    type(optimizer).apply(optimizer, grads, trainable_variables)


def labels(grads: Any, variables: Any) -> list[str]:
    """Return what each gradient is of, for messages."""
    paths = agreement.relative_paths([getattr(variable, "path", "a variable") for variable in variables or ()])
    return [f"gradient of {path}" for path in paths] if len(paths) == len(grads) else ["gradient"] * len(grads)


def _reduce(optimizer: Any, grads: list[Any], names: list[str]) -> list[Any]:
    """Return the gradients of the global batch; in a step the mean over its examples, else TensorFlow's plain sum."""
    present = [index for index, grad in enumerate(grads) if grad is not None]
    values = [grads[index] for index in present]
    values = weighted(optimizer, values)
    present_names = [names[index] for index in present]
    sums = reduction.sum_over_replicas(values, labels=present_names, rows_matter=keras_optimizer.clips(optimizer))
    for index, value in zip(present, sums, strict=True):
        grads[index] = value
    return grads


def weighted(optimizer: Any, values: list[Any]) -> list[Any]:
    """Return gradients weighted by the replica's share of the examples, unless its loss was; as they are elsewhere."""
    current = step.current()
    if current is None or id(optimizer) in current.weighted:
        return values
    return [None if value is None else reduction.weighted(value, current.share) for value in values]


def _scale_loss(optimizer: Any, loss: Any) -> Any:
    loss = type(optimizer).scale_loss(optimizer, loss)
    current = step.current()
    if current is not None and current.weighs_loss:
        # One multiplication of a scalar instead of one of every gradient. In a step of the user's own, what is scaled
        # and what is applied need not belong together.
        current.weighted.add(id(optimizer))
        loss = reduction.weighted(loss, current.share)
    return loss
