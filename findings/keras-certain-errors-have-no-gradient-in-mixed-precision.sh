#!/usr/bin/env bash
# Finding: whether a confident wrong prediction has a gradient depends on the policy, and on a Reshape.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: a cross-entropy of probabilities clips them at 1e-7, so beyond a loss of 16.1 the gradient is zero. On
# TensorFlow, Keras looks for the logits before a softmax and uses those, which keeps the gradient. Under a mixed policy
# the loss first casts the probabilities to float32, and finds no logits; nor does it find them through a Reshape. The
# model is the same and its loss is smaller, but the examples with the largest errors never change it. sigmoid and
# binary_crossentropy behave alike. A separate softmax with dtype="float32", or from_logits=True, keeps the gradient.
# Output seen: plain: loss 80.00, weight 40 -> 39; mixed_bfloat16: loss 16.12, weight 40 -> 40;
# Reshape: loss 16.12, weight 40 -> 40; mixed_bfloat16 with a softmax in float32: loss 80.00, weight 40 -> 39
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np


def train(policy="float32", activation="softmax", behind=()):
    """Return the loss of a step on an example of class 1 that is taken for class 0, and the weight after it."""
    dense = keras.layers.Dense(2, activation=activation, use_bias=False, dtype=policy)
    model = keras.Sequential([keras.Input((1,)), dense, *behind])
    dense.kernel.assign([[40.0, -40.0]])
    model.compile(keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy")
    loss = model.fit(np.ones((4, 1)), np.ones(4), verbose=0).history["loss"][0]
    return round(loss, 2), float(dense.kernel.numpy()[0, 0])


found = {
    "plain": train(),
    "mixed_bfloat16": train("mixed_bfloat16"),
    "Reshape": train(behind=[keras.layers.Reshape((2,))]),
    "mixed_bfloat16 with a softmax in float32": train("mixed_bfloat16", None, [keras.layers.Softmax(dtype="float32")]),
}
print("; ".join(f"{name}: loss {loss:.2f}, weight 40 -> {weight:.0f}" for name, (loss, weight) in found.items()))
# By hand: the loss is 40 - -40, and its gradient is 1 to within exp(-80). A clipped loss has the gradient 0.
right, clipped = (80.0, 39.0), (round(-np.log(1e-7), 2), 40.0)
assert list(found.values()) == [right, clipped, clipped, right], "the behaviour has changed"
PROGRAM
