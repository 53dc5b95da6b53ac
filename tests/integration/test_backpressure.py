"""Tensors that are made when others have been used up: what waits, and what cannot."""

from collections.abc import Callable

import tensorflow as tf

from tests.integration.test_gathering import ancestors
from tfdist.compat.tensorflow.meshes import graph_rewrites


def held(make: Callable[[tf.Tensor], tuple[tf.Tensor, str]]) -> bool:
    """Trace a tensor that is to wait for another one, and return whether an operation that it is made by waits.

    Args:
        make: returns the tensor of an input, and the name of the operation.
    """
    found = []

    @tf.function(autograph=False)
    def traced(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        until = tf.identity(x, name="until")
        tensor, name = make(x)
        graph_rewrites.hold_back([tensor], [until])
        found.append("until" in ancestors(tf.compat.v1.get_default_graph().get_operation_by_name(name)))
        return tensor, until

    x = tf.random.normal([3, 3])
    tf.debugging.assert_equal(traced(x)[0].shape, tf.TensorShape([3, 3]))
    return found[0]


def test_what_makes_a_tensor_waits() -> None:
    assert held(lambda x: (tf.matmul(x, x, name="made"), "made"))


def test_what_makes_the_numbers_waits_where_they_are_scaled_or_cast_after_it() -> None:
    def scaled(x: tf.Tensor) -> tuple[tf.Tensor, str]:
        made = tf.matmul(x, x, name="made")
        weighted = tf.math.multiply_no_nan(2.0 * made, tf.reduce_sum(x))
        return tf.reshape(tf.cast(weighted, tf.float16), [3, 3]), "made"

    assert held(scaled)


def test_what_is_used_elsewhere_does_not_wait() -> None:
    def used(x: tf.Tensor) -> tuple[tf.Tensor, str]:
        made = tf.matmul(x, x, name="made")
        tf.reduce_sum(made)
        return 2.0 * made, "made"

    assert not held(used)


def test_what_has_an_effect_does_not_wait() -> None:
    assert not held(lambda x: (tf.random.normal([3, 3], name="made") + 0.0 * x, "made/RandomStandardNormal"))


def test_an_input_cannot_wait_and_eager_tensors_are_there() -> None:
    assert not held(lambda x: (x, "x"))
    graph_rewrites.hold_back([tf.ones([2])], [tf.ones([1])])
