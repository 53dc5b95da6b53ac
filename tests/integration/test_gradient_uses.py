"""The uses that steps make of their own gradients, and their decisions by a batch, as read from their graphs."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfdist.compat.tensorflow.steps import gradient_uses, row_decisions

FIRST, SECOND = tf.Variable(tf.ones((4, 3))), tf.Variable(tf.ones((3, 1)))
WEIGHTS = [FIRST, SECOND]
TABLE = tf.Variable(tf.ones((5, 2)))


def network(x: tf.Tensor, moves: Any = (0.0, 0.0)) -> tf.Tensor:
    # silu defines its own gradient, whose operations no tape makes
    return tf.nn.silu(x @ (FIRST + moves[0])) @ (SECOND + moves[1])


def gradients(x: tf.Tensor, function: Callable[[Any], Any] = network) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(function(x)))
    found: list[tf.Tensor] = tape.gradient(loss, WEIGHTS)
    return found


def of_a_function(x: tf.Tensor) -> list[tf.Tensor]:
    return gradients(x, tf.function(network))


def clipped(found: list[Any]) -> list[Any]:
    return list(tf.clip_by_global_norm(found, 1e9)[0])


def penalty(x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            made = network(x)
        norms = tf.sqrt(tf.reduce_sum(tf.square(inner.gradient(made, x)), axis=1))
        loss = tf.reduce_mean(tf.square(norms - 1.0)) + tf.reduce_mean(made)
    found: list[tf.Tensor] = tape.gradient(loss, WEIGHTS)
    return found


def sharpness(x: tf.Tensor) -> list[tf.Tensor]:
    first = gradients(x)
    norm = tf.linalg.global_norm(first)
    return gradients(x, lambda x: network(x, [0.1 * one / norm for one in first]))


def rows(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.gather(TABLE, tf.cast(x[:, 0], tf.int32))))
    return tape.gradient(loss, TABLE)


def looped(x: tf.Tensor, body: Callable[[Any], Any]) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, one: (i + 1, body(one)), (0, gradients(x)[0]))[1]


LINEAR: dict[str, Callable[[tf.Tensor], Any]] = {
    "none": gradients,
    "of a function": of_a_function,
    "scaled": lambda x: [0.5 * tf.cast(one, tf.float32) for one in gradients(x)],
    "centred, decayed": lambda x: [
        g - tf.reduce_mean(g, 0) + 0.1 * w for g, w in zip(gradients(x), WEIGHTS, strict=True)
    ],
    "micro-batches": lambda x: [a + b for a, b in zip(gradients(x[:2]), gradients(x[2:]), strict=True)],
    "a penalty of each example": penalty,
    "scaled in a loop": lambda x: looped(x, lambda one: 2.0 * one),
    "scaled in a function": lambda x: tf.function(lambda one: 2.0 * one)(gradients(x)[0]),
    "reduced": lambda x: clipped([gradient_uses.reduced(one) for one in gradients(x)]),
    "rows": rows,
    "reduced rows": lambda x: clipped([gradient_uses.reduced(rows(x))]),
}
OTHER: dict[str, Callable[[tf.Tensor], Any]] = {
    "clipped": lambda x: clipped(gradients(x)),
    "clipped rows": lambda x: clipped([rows(x)]),
    "a norm of rows": lambda x: tf.norm(rows(x).values),
    "clipped, of a function": lambda x: clipped(of_a_function(x)),
    "clipped in a function": lambda x: tf.function(clipped)(gradients(x)),
    "clipped by value": lambda x: [tf.clip_by_value(one, -1e9, 1e9) for one in gradients(x)],
    "clipped each": lambda x: [tf.clip_by_norm(one, 1e9) for one in gradients(x)],
    "clipped before it is reduced": lambda x: [gradient_uses.reduced(one) for one in clipped(gradients(x))],
    "a norm": lambda x: tf.linalg.global_norm(gradients(x)),
    "signs": lambda x: tf.sign(gradients(x)[0]),
    "a decision": lambda x: tf.where(tf.reduce_all(tf.math.is_finite(gradients(x)[0])), 1.0, 0.0),
    "a condition": lambda x: tf.cond(tf.linalg.global_norm(gradients(x)) > 1.0, lambda: 1.0, lambda: 2.0),
    "sharpness": sharpness,
    "squared in a loop": lambda x: looped(x, tf.square),
}


def use_of(step: Callable[[tf.Tensor], Any]) -> str | None:
    """Return the use of gradients that is read from the graph of a step."""
    found: list[str | None] = []

    def traced(x: tf.Tensor) -> None:
        found[:] = gradient_uses.uses([step(x)])

    tf.function(traced, autograph=False).get_concrete_function(tf.TensorSpec([None, 4]))
    (use,) = found
    return use


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_in_gradients_is_left_alone(name: str) -> None:
    assert use_of(LINEAR[name]) is None


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not_linear_in_gradients_is_found(name: str) -> None:
    assert use_of(OTHER[name]) is not None


def test_the_operations_of_a_tape_are_told_by_their_names() -> None:
    weight = tf.Variable([[1.0]])

    @tf.function
    def called(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ weight)

    @tf.function
    def gradient(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            plain, inside = tf.tanh(x @ weight), called(x)
        return [tape.gradient(plain, weight), tape.gradient(inside, weight)]

    graph = gradient.get_concrete_function(tf.TensorSpec([None, 1])).graph
    plain, inside = (output.op.inputs[0].op for output in graph.outputs)
    assert "gradient_tape/" in plain.name
    function = graph._get_function(inside.get_attr("f").name).graph
    assert "gradients/" in function.outputs[0].op.inputs[0].op.name


def loss_of(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.square(network(x)))


def scaled_by(factor: Callable[[tf.Tensor], Any]) -> Callable[[tf.Tensor], Any]:
    return lambda x: [factor(x) * one for one in gradients(x)]


DECIDED: dict[str, tuple[Callable[[tf.Tensor], Any], str | None]] = {
    "none": (gradients, None),
    "by each example": (lambda x: tf.reduce_mean(tf.abs(network(x))), None),
    "by a weight": (scaled_by(lambda x: tf.where(FIRST[0, 0] > 0.5, 1.0, 0.0)), None),
    "by a count": (scaled_by(lambda x: tf.where(tf.cast(tf.shape(x)[0], tf.float32) > 3.0, 1.0, 0.0)), None),
    "by the loss": (scaled_by(lambda x: tf.cast(loss_of(x) < 9.0, tf.float32)), "Less"),
    "by its finiteness": (scaled_by(lambda x: tf.cast(tf.math.is_finite(loss_of(x)), tf.float32)), "IsFinite"),
    "in a condition": (lambda x: tf.cond(loss_of(x) > 9.0, lambda: 0.0, lambda: 1.0), "Greater"),
    "flooding": (lambda x: tf.abs(loss_of(x) - 0.1) + 0.1, "Abs"),
    "a limit": (lambda x: tf.minimum(loss_of(x), 9.0), "Minimum"),
    "by all replicas": (scaled_by(lambda x: tf.cast(row_decisions.of_all(loss_of(x)) < 9.0, tf.float32)), None),
    "by reduced gradients": (
        scaled_by(lambda x: tf.cast(tf.norm(gradient_uses.reduced(gradients(x)[0])) < 9.0, tf.float32)),
        None,
    ),
    "before all replicas": (lambda x: row_decisions.of_all(tf.minimum(loss_of(x), 9.0)), "Minimum"),
}


@pytest.mark.parametrize("name", DECIDED)
def test_decisions_by_one_number_of_a_batch_are_found(name: str) -> None:
    step, expected = DECIDED[name]
    found: list[str | None] = []

    def traced(x: tf.Tensor) -> None:
        found[:] = row_decisions.of([step(x)], [x])

    tf.function(traced, autograph=False).get_concrete_function(tf.TensorSpec([None, 4]))
    assert found == [expected]
