"""Keras' Adam as a call of one function for each variable, instead of forty operations.

A trace of Keras' own update takes as long as half of the forward and backward pass, for each variable on each replica.
The function is traced once. TensorFlow puts its operations in the place of each call before it optimizes the graph, so
they are those of Keras, in Keras' order, and the numbers are the same, bit for bit.

Private names, read in Keras 3.15.1 (`keras/src/optimizers/adam.py`, `base_optimizer.py`) and TensorFlow 2.21.0:

- `_get_variable_index`: the place of a variable, and of its `_momentums`, `_velocities` and `_velocity_hats`
- `_iterations`: the variable that counts updates
- `DistributedVariable`: has a copy on each replica
- `ConcreteFunction._call_flat`: the call of a traced function without matching its arguments
"""

from typing import Any

import tensorflow as tf
from keras.optimizers import Adam, Optimizer
from tensorflow.python.distribute.values import DistributedVariable

from tfdist.compat.keras.fused_updates import copy_beside, is_whole, let_try_first


def let_call_updates(optimizer: Optimizer) -> None:
    """Give one optimizer object an `update_step` that calls a function, if its class updates as Keras' Adam does."""
    traced: dict[Any, Any] = {}
    let_try_first(optimizer, Adam, lambda *given: _called(traced, optimizer, *given))


def _called(traced: dict[Any, Any], optimizer: Optimizer, gradient: Any, variable: Any, learning_rate: Any) -> bool:
    """Update a variable by a call in the graph that is traced, if that can be done; return whether it was."""
    if tf.executing_eagerly() or not (is_whole(variable) and isinstance(gradient, tf.Tensor)):
        return False
    if optimizer.gradient_accumulation_steps:  # the count is not that of updates
        return False
    numbers = (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon)
    if gradient.shape != variable.shape or not all(isinstance(one, float) for one in numbers):
        return False
    index = optimizer._get_variable_index(variable)
    slots = [optimizer._momentums[index], optimizer._velocities[index]]
    slots += [optimizer._velocity_hats[index]] if optimizer.amsgrad else []
    if not all(isinstance(slot.value, DistributedVariable) for slot in slots):
        return False  # parts, which Keras' operations know, or a variable of a parameter server
    beside = [copy_beside(slot.value, variable) for slot in slots]
    count = copy_beside(optimizer._iterations.value, variable, optimizer._iterations.value.dtype)
    if count is None or any(slot is None for slot in beside):
        return False
    key = (variable.dtype, count.dtype, optimizer.amsgrad, *numbers)
    if key not in traced:
        traced[key] = _traced(variable.dtype, count.dtype, len(slots), *numbers)
    rate = tf.cast(learning_rate, variable.dtype)
    handles = [one.handle for one in (variable, count, *beside)]
    traced[key]._call_flat([tf.cast(gradient, variable.dtype), rate, *handles], [])
    return True


def _traced(dtype: tf.DType, counts: tf.DType, slots: int, beta_1: float, beta_2: float, epsilon: float) -> Any:
    """Return the function of an update: of its gradient, the rate, the variable, the count of updates and the slots."""

    def update(gradient: tf.Tensor, rate: tf.Tensor, variable: Any, count: Any, *held: Any) -> None:
        step = tf.cast(_read(count, counts) + tf.cast(1, counts), dtype)
        first_power, second_power = tf.pow(tf.cast(beta_1, dtype), step), tf.pow(tf.cast(beta_2, dtype), step)
        alpha = rate * tf.sqrt(1 - second_power) / (1 - first_power)
        momentum, velocity, *largest = held
        _add(momentum, (gradient - _read(momentum, dtype)) * (1 - beta_1))
        _add(velocity, (tf.square(gradient) - _read(velocity, dtype)) * (1 - beta_2))
        for hat in largest:
            tf.raw_ops.AssignVariableOp(resource=hat, value=tf.maximum(_read(hat, dtype), _read(velocity, dtype)))
            velocity = hat
        moved = (_read(momentum, dtype) * alpha) / (tf.sqrt(_read(velocity, dtype)) + epsilon)
        tf.raw_ops.AssignSubVariableOp(resource=variable, value=moved)

    tensors = [tf.TensorSpec(None, dtype), tf.TensorSpec([], dtype)]
    resources = [tf.TensorSpec([], tf.resource)] * (2 + slots)
    with tf.init_scope(), tf.device(None):  # the operations run where a call is
        return tf.function(update, autograph=False).get_concrete_function(*tensors, *resources)


def _read(resource: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.raw_ops.ReadVariableOp(resource=resource, dtype=dtype)


def _add(resource: Any, value: tf.Tensor) -> None:
    tf.raw_ops.AssignAddVariableOp(resource=resource, value=value)
