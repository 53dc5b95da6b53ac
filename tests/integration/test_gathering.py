"""Weights that a step gathers: when, how many at once, and again for the backward pass."""

from typing import Any

import pytest
import tensorflow as tf

from tfdist.compat.tensorflow.meshes.weight_gathering import Gathers

LAYERS, SIZE = 8, 3
BYTES = SIZE * SIZE * 4


def gathered(part: tf.Tensor, name: str) -> tf.Tensor:
    """Stand for a collective: an operation with a name."""
    return tf.multiply(part, 1.0, name=name)


def step(gathers: Gathers, cast: bool) -> Any:
    """Return a function of the parts of all weights and of an input: the gradients of a chain of layers."""

    @tf.custom_gradient
    def whole(part: tf.Tensor, number: tf.Tensor) -> Any:
        return gathered(part, "gather"), lambda gradient: (gradient, None)

    @tf.function(autograph=False)
    def gradients(parts: list[tf.Tensor], x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(parts)
            for number, part in enumerate(parts):

                def first(part: tf.Tensor = part, number: int = number) -> tf.Tensor:
                    return whole(part, tf.constant(number))

                def again(part: tf.Tensor = part) -> tf.Tensor:
                    return gathered(part, "gather_again")

                weight = gathers.in_turn(first, again)
                weight = tf.cast(tf.cast(weight, tf.float64), tf.float32) if cast else weight
                x = tf.tanh(tf.matmul(x, weight))
            loss = tf.reduce_sum(x)
        found = tape.gradient(loss, parts)
        gathers.gather_again()
        return found

    return gradients


def inputs() -> tuple[list[tf.Tensor], tf.Tensor]:
    rng = tf.random.Generator.from_seed(5)
    return [rng.normal([SIZE, SIZE]) for _ in range(LAYERS)], rng.normal([2, SIZE])


def ancestors(op: tf.Operation) -> set[str]:
    """Return the names of what has to run before an operation."""
    found: set[str] = set()
    left = [op]
    while left:
        one = left.pop()
        for before in [*(given.op for given in one.inputs), *one.control_inputs]:
            if before.name not in found:
                found.add(before.name)
                left.append(before)
    return found


def users(op: tf.Operation) -> list[tf.Operation]:
    """Return the operations that take a gathered weight, through casts and copies of it."""
    found = []
    for user in op.outputs[0].consumers():
        found += users(user) if user.type in ("IdentityN", "Identity", "Cast") else [user]
    return found


@pytest.mark.parametrize("cast", [False, True], ids=["as it is", "cast"])
def test_a_weight_is_gathered_when_those_before_it_were_used(cast: bool) -> None:
    gathers = Gathers(1, may_gather_again=True)
    gathers.expect(BYTES)
    parts, x = inputs()
    graph = step(gathers, cast).get_concrete_function(parts, x).graph
    every = [op for op in graph.get_operations() if op.type == "Mul" and "gather" in op.name]
    forward = [op for op in every if "again" not in op.name]
    backward = [op for op in every if "again" in op.name]
    # two stay from the forward pass; the gradient by the input, which the first weight would be for, nobody asks for
    assert (len(forward), len(backward)) == (LAYERS, LAYERS - 3)
    waits = {op.name: ancestors(op) for op in every}
    for one in every:
        beside = [
            other.name
            for other in every
            if other is not one
            and one.name not in waits[other.name]
            and other.name not in waits[one.name]
            and not all(user.name in waits[one.name] for user in users(other))
            and not all(user.name in waits[other.name] for user in users(one))
        ]
        assert len(beside) <= 2, f"{one.name} is there together with {beside}"


@pytest.mark.parametrize("may_gather_again", [False, True])
@pytest.mark.parametrize("window", [1, 3 * BYTES, 100 * BYTES])
def test_the_gradients_are_those_of_whole_weights(window: int, may_gather_again: bool) -> None:
    parts, x = inputs()
    with tf.GradientTape() as tape:
        tape.watch(parts)
        there = x
        for part in parts:
            there = tf.tanh(tf.matmul(there, part))
        loss = tf.reduce_sum(there)
    expected = tape.gradient(loss, parts)
    gathers = Gathers(window, may_gather_again=may_gather_again)
    gathers.expect(BYTES)
    for mine, theirs in zip(step(gathers, cast=False)(parts, x), expected, strict=True):
        tf.debugging.assert_near(mine, theirs, rtol=1e-6, atol=1e-7)
