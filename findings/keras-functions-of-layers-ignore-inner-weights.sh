#!/usr/bin/env bash
# Finding: a layer whose `call` is a `tf.function` ignores the weights of its inner layers, which are never trained.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: Keras builds a Sequential model with an Input by a symbolic call. In that call, inner layers are built too,
# and their weights have no variables yet: reading one gives what its initializer draws. `tf.function` keeps the trace
# of this call, with these draws as constants, and all later calls with this kind of input reuse it. So the layer
# computes with constants: the weights get no gradient, and those that are set or loaded from a file have no effect.
# Keras only warns in `fit` that gradients do not exist, as for layers that are not used. Leave the decorator out:
# `fit` and `predict` make one graph of the whole model.
# Output seen: largest change of each weight by a step of training: plain 0.023, 0.002, 0.028; tf.function 0.000,
# 0.000, 0.028
# largest prediction after all inner weights were set to 0: plain 0.00, tf.function 1.04
# The script fails if that changes; sizes other than 0 may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


class Plain(keras.layers.Layer):
    """Calls an inner layer."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(4)

    def call(self, inputs):
        return self.inner(inputs)


class Compiled(Plain):
    call = tf.function(Plain.call)


def tried(layer):
    """Return the largest change of each weight in a step of training, and the largest prediction of inner zeros."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layer(), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.fit(x, x[:, :1], verbose=0)
    changes = [float(np.abs(one - other).max()) for one, other in zip(model.get_weights(), before, strict=True)]
    model.layers[0].inner.set_weights([0 * one for one in before[:2]])
    return changes, float(np.abs(model.predict(x, verbose=0)).max())


(right, zero), (wrong, other) = tried(Plain), tried(Compiled)
shown = [", ".join(f"{one:.3f}" for one in sizes) for sizes in (right, wrong)]
print(f"largest change of each weight by a step of training: plain {shown[0]}; tf.function {shown[1]}")
print(f"largest prediction after all inner weights were set to 0: plain {zero:.2f}, tf.function {other:.2f}")
assert wrong[:2] == [0, 0] and min(wrong[2], *right) > 1e-4, "the behaviour has changed"
assert zero == 0 and other > 0.1, "the behaviour has changed"
PROGRAM
