"""Keras' Adam, with what it computes from the step's number and the rate computed once, not for each variable.

Keras computes the corrected rate, some twenty operations, anew for every variable: half of an update's operations, and
a quarter of a small step's. Each of them is traced, optimized and run. The numbers are the same, bit for bit.

Private names, read in Keras 3.15.1 (`keras/src/optimizers/adam.py`, `keras/src/backend/tensorflow/optimizer.py`):

- `_backend_update_step`: calls `update_step` for every variable; the step's number and the rate do not change within
- `_momentums`, `_velocities`, `_velocity_hats`, `_get_variable_index`: the slots of a variable
"""

import threading
from typing import Any, NamedTuple

import tensorflow as tf
from keras import ops
from keras.optimizers import Adam, Optimizer


class _Scalars(NamedTuple):
    """The factors of an update, as tensors of the variable's dtype."""

    alpha: tf.Tensor
    of_momentum: tf.Tensor
    of_velocity: tf.Tensor
    epsilon: tf.Tensor


class _Kept(threading.local):
    """The scalars of the update that this thread traces, by what they depend on; None outside of one."""

    scalars: dict[tuple[Any, ...], tuple[_Scalars, Any]] | None = None


def let_variables_share_scalars(optimizer: Optimizer) -> None:
    """Give one optimizer object an `update_step` that shares scalars, if its class has the `update_step` of Adam."""
    kind = type(optimizer)
    if kind.update_step is not Adam.update_step:
        return
    kept = _Kept()

    def update_all(gradients: Any, variables: Any, learning_rate: Any) -> None:
        outer, kept.scalars = kept.scalars, {}
        try:
            kind._backend_update_step(optimizer, gradients, variables, learning_rate)
        finally:
            kept.scalars = outer

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        can_share = isinstance(gradient, tf.Tensor) and not tf.executing_eagerly()
        if kept.scalars is None or not can_share:
            Adam.update_step(optimizer, gradient, variable, learning_rate)
        else:
            _update(optimizer, gradient, variable, _scalars_of(optimizer, kept.scalars, variable, learning_rate))

    vars(optimizer).update(_backend_update_step=update_all, update_step=update_step)


def _scalars_of(optimizer: Adam, known: dict[tuple[Any, ...], Any], variable: Any, learning_rate: Any) -> _Scalars:
    graph = tf.compat.v1.get_default_graph()
    key = (graph, variable.device, variable.dtype, id(learning_rate))
    if key not in known:
        # The first update may wait for its own gradient; the others must not wait for that.
        with tf.control_dependencies(None):
            known[key] = (_scalars(optimizer, variable.dtype, learning_rate), learning_rate)
    return known[key][0]


def _scalars(optimizer: Adam, dtype: tf.DType, learning_rate: Any) -> _Scalars:
    rate = ops.cast(learning_rate, dtype)
    number = ops.cast(optimizer.iterations + 1, dtype)
    power_1 = ops.power(ops.cast(optimizer.beta_1, dtype), number)
    power_2 = ops.power(ops.cast(optimizer.beta_2, dtype), number)
    return _Scalars(
        rate * ops.sqrt(1 - power_2) / (1 - power_1),
        *(tf.constant(one, dtype) for one in (1 - optimizer.beta_1, 1 - optimizer.beta_2, optimizer.epsilon)),
    )


def _update(optimizer: Adam, gradient: tf.Tensor, variable: Any, scalars: _Scalars) -> None:
    """Update a variable by the operations of Keras, in Keras' order."""
    gradient = ops.cast(gradient, variable.dtype)
    index = optimizer._get_variable_index(variable)
    momentum, velocity = optimizer._momentums[index], optimizer._velocities[index]
    optimizer.assign_add(momentum, ops.multiply(ops.subtract(gradient, momentum), scalars.of_momentum))
    change = ops.multiply(ops.subtract(ops.square(gradient), velocity), scalars.of_velocity)
    optimizer.assign_add(velocity, change)
    if optimizer.amsgrad:
        largest = optimizer._velocity_hats[index]
        optimizer.assign(largest, ops.maximum(largest, velocity))
        velocity = largest
    step = ops.divide(ops.multiply(momentum, scalars.alpha), ops.add(ops.sqrt(velocity), scalars.epsilon))
    optimizer.assign_sub(variable, step)
