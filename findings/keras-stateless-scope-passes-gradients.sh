#!/usr/bin/env bash
# Finding: in a keras.StatelessScope (so in Layer.stateless_call) gradients flow through an assigned variable.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: a layer assigns a state from its input and uses the state in its output. Called as usual, the gradient
# stops at the variable. Under stateless_call the assigned value is a tensor of the graph, and the gradient goes on
# through it. So a step written with stateless_call trains to other weights than one that calls the layer.
# Output seen: called: 0.0; stateless_call: 0.5
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import keras
import tensorflow as tf


class Moves(keras.layers.Layer):
    def build(self, shape):
        self.state = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.state.assign(0.5 * self.state + 0.5 * keras.ops.mean(inputs))
        return self.state * keras.ops.ones_like(inputs)


def gradient(call):
    inputs = tf.constant([1.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = call(inputs)
    found = tape.gradient(outputs, inputs, unconnected_gradients="zero")
    return float(found[0])


layer = Moves()
layer.build((2,))
called = gradient(layer)
layer.state.assign(0.0)
stateless = gradient(lambda inputs: layer.stateless_call([], [layer.state.value], inputs)[0])
print(f"called: {called}; stateless_call: {stateless}")
assert (called, stateless) == (0.0, 0.5), "the behaviour has changed"
PROGRAM
