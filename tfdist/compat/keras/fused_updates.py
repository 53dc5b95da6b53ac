"""Keras' SGD in one pass over memory, by a TensorFlow op that reads a gradient and changes the variable.

Keras first makes a tensor of the gradient times the rate: five times the variable's bytes instead of three, with
momentum eleven instead of five. Where several workers share a host, that time is a step's. The numbers are the same,
bit for bit.

Private names, read in Keras 3.15.1 (`keras/src/optimizers/sgd.py`) and TensorFlow 2.21.0:

- `_get_variable_index`: the place of a variable, and of its `momentums`
- `ResourceVariable`: the class whose `handle` such an op can change
- `DistributedVariable`: has a copy on each replica; an update receives a copy, its slots are not copies
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.optimizers import SGD, Optimizer
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

# 16-bit floats are rounded between Keras' operations, and not within one op.
_DTYPES = (tf.float32, tf.float64)
# an update consists of these; a class that overrides one of them keeps its own update
_OF_AN_UPDATE = ("update_step", "assign", "assign_add", "assign_sub", "iterations")


def let_update_in_one_pass(optimizer: Optimizer) -> None:
    """Give one optimizer object an `update_step` of one op, if its class updates as Keras' SGD does."""
    let_try_first(optimizer, SGD, lambda *given: _updated(optimizer, *given))


def let_try_first(optimizer: Optimizer, kind: type[Optimizer], updated: Callable[[Any, Any, Any], bool]) -> None:
    """Let an optimizer call `updated`, and Keras' update if that returns False, if its class updates as ``kind``."""
    if not all(getattr(type(optimizer), name) is getattr(kind, name) for name in _OF_AN_UPDATE):
        return

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        if not updated(gradient, variable, learning_rate):
            kind.update_step(optimizer, gradient, variable, learning_rate)

    vars(optimizer)["update_step"] = update_step


def _updated(optimizer: SGD, gradient: Any, variable: Any, learning_rate: Any) -> bool:
    """Update a variable, if that can be done by one op; return whether it was."""
    if not (is_whole(variable) and isinstance(gradient, tf.Tensor) and gradient.shape == variable.shape):
        return False  # a part of a variable, rows of a table, or a shape that is known later
    gradient, rate = (tf.cast(value, variable.dtype) for value in (gradient, learning_rate))
    if not optimizer.momentum:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
        return True
    momentum = copy_beside(optimizer.momentums[optimizer._get_variable_index(variable)].value, variable)
    if momentum is None:
        return False
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=momentum.handle,
        lr=rate,
        grad=gradient,
        momentum=tf.cast(optimizer.momentum, variable.dtype),
        use_nesterov=bool(optimizer.nesterov),
    )
    return True


def is_whole(variable: Any) -> bool:
    return type(variable) is ResourceVariable and variable.dtype in _DTYPES


def copy_beside(slot: Any, variable: tf.Variable, dtype: tf.DType | None = None) -> Any:
    """Return the copy of a slot that lies where a replica's variable does, with its dtype; None if there is none."""
    copies = list(slot.values) if isinstance(slot, DistributedVariable) else [slot]
    near = [one for one in copies if type(one) is ResourceVariable and one.device == variable.device]
    return near[0] if len(near) == 1 and near[0].dtype == (dtype or variable.dtype) else None
