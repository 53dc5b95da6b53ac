"""A function in the place of a method: AutoGraph converts it exactly if it would convert the method."""

import functools

import keras
import pytest
import tensorflow as tf

from tfdist.compat import planted


def _sign(factor: int, value: tf.Tensor) -> tf.Tensor:
    if value > 0:  # a graph can decide this only if AutoGraph converts the function
        return tf.constant(factor)
    return tf.constant(-factor)


class Own(keras.optimizers.SGD):
    def apply(self, grads: list[tf.Tensor], trainable_variables: list[keras.Variable] | None = None) -> None:
        super().apply(grads, trainable_variables)


def _traced(kind: type) -> int:
    return int(tf.function(planted.in_place_of(kind.apply, functools.partial(_sign, 3)))(tf.constant(-1)))


def test_autograph_converts_a_function_in_the_place_of_a_users_method() -> None:
    assert _traced(Own) == -3


def test_autograph_leaves_a_function_in_the_place_of_a_method_of_keras() -> None:
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        _traced(keras.optimizers.SGD)
