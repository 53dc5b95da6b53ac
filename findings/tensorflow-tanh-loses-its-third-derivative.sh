#!/usr/bin/env bash
# Finding: the third derivative of `tf.tanh` in float64 is 0 at 0, where it is -2.
#
# Versions: TensorFlow 2.22.0rc0, Python 3.11. TensorFlow 2.21.0 gives the right one, and so does float32.
# Behaviour: to be exact for large inputs, the gradient of tanh in float64 is now computed from exp(-2 * abs(x)). The
# first and second derivatives are right. The third one goes through abs twice, whose gradient at 0 is 0, so the term is
# lost. An input of exactly 0 is common: biases begin at 0, so at the origin, or on an edge that lies there, all units
# of the first layer get 0. Networks that solve differential equations use tanh and float64. The gradient of their loss
# needs third derivatives already for an equation of second order. Move the origin, or write tanh(x) as
# 2 * sigmoid(2 * x) - 1.
# Output seen: the third derivative of tanh at 0 is 0.0 in float64, -2.0 in float32, -2.0 by sigmoid
# at the origin, gradients of u'' have norm 0.00 in float64, 8.58 in float32, 8.58 by sigmoid
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --pre tensorflow-cpu==2.22.0rc0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np
import tensorflow as tf


def by_sigmoid(x):
    return 2 * tf.sigmoid(2 * x) - 1


def third(function, kind):
    """Return the third derivative of a function at 0."""
    x = tf.constant(0, kind)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as middle:
            middle.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = function(x)
            first = inner.gradient(y, x)
        second = middle.gradient(first, x)
    return float(outer.gradient(second, x))


def of_network(activation, kind):
    """Return the norm of the gradients of u''(0) for the weights of a network u with one hidden layer."""
    layers = [keras.layers.Dense(16, activation, dtype=kind), keras.layers.Dense(1, dtype=kind)]
    network = keras.Sequential([keras.Input((1,), dtype=kind), *layers])
    generator = np.random.default_rng(0)
    network.set_weights([generator.normal(size=one.shape) * (len(one.shape) > 1) for one in network.weights])
    x = tf.zeros((1, 1), kind)
    with tf.GradientTape() as weights:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                u = network(x)
            first = inner.gradient(u, x)
        second = outer.gradient(first, x)
    gradients = weights.gradient(second, [one.value for one in network.trainable_variables])
    return float(np.sqrt(sum(np.sum(one.numpy() ** 2) for one in gradients if one is not None)))


cases = [(tf.tanh, "float64"), (tf.tanh, "float32"), (by_sigmoid, "float64")]
derivatives = [third(*case) for case in cases]
shown = "{} {} in float64, {} in float32, {} by sigmoid"
print(shown.format("the third derivative of tanh at 0 is", *derivatives))
norms = [of_network(*case) for case in cases]
print(shown.format("at the origin, gradients of u'' have norm", *(f"{norm:.2f}" for norm in norms)))
assert derivatives == [0, -2, -2], "the behaviour has changed"
assert norms[0] == 0 and norms[1] > 1 and abs(norms[1] - norms[2]) < 1e-4, "the behaviour has changed"
PROGRAM
