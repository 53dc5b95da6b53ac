#!/usr/bin/env bash
# Finding: the gradient of an entropy by `tf.math.xlogy(p, p)` is NaN as soon as one probability underflows to 0.
#
# Versions: TensorFlow 2.22.0rc0, Python 3.11. TensorFlow 2.21.0 gives 0 for such a probability.
# Behaviour: `xlogy(x, y)` is x log(y), and 0 where x is 0 even if y is. Its derivative by x was 0 there, too, whatever
# y was; it is log(y) now. For a constant y that is right at last. Where both are the same probability, it is minus
# infinity, and the softmax behind it multiplies that by 0. The loss still is a number; all gradients of the row are
# NaN after one confident row. Entropy bonuses of policies, mixture weights and attention are written this way because
# the function was safe at 0. `xlog1py(-p, -p)` does the same at 1. Compute an entropy from the logits, by log_softmax.
# Output seen: logits 200, 0, 1: entropy 0.0, gradients nan, nan, nan; by log_softmax 0.0, 0.0, 0.0; d/dx xlogy(x, 0.25)
# at 0 is -1.386
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --pre tensorflow-cpu==2.22.0rc0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import numpy as np
import tensorflow as tf


def by_xlogy(logits):
    probabilities = tf.nn.softmax(logits)
    return -tf.reduce_sum(tf.math.xlogy(probabilities, probabilities))


def by_logarithms(logits):
    return -tf.reduce_sum(tf.nn.softmax(logits) * tf.nn.log_softmax(logits))


def of(function, *values):
    """Return a function of the values and its gradient by the first."""
    values = [tf.constant(value) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(values[0])
        found = function(*values)
    return found.numpy(), tape.gradient(found, values[0]).numpy()


confident = [200.0, 0.0, 1.0]
entropy, gradient = of(by_xlogy, confident)
_, right = of(by_logarithms, confident)
_, derivative = of(tf.math.xlogy, 0.0, 0.25)
_, at_one = of(lambda p: tf.math.xlog1py(1 - p, -p), 1.0)
print("logits 200, 0, 1: entropy", abs(entropy), end=", ")
print("gradients", ", ".join(map(str, gradient)), end="; ")
print("by log_softmax", ", ".join(str(abs(one)) for one in right), end="; ")
print(f"d/dx xlogy(x, 0.25) at 0 is {derivative:.3f}")
assert entropy == 0 and np.isnan(gradient).all(), "the behaviour has changed"
assert not right.any() and not np.isfinite(at_one), "the behaviour has changed"
assert abs(derivative - np.log(0.25)) < 1e-6, "the behaviour has changed"
assert np.isfinite(of(by_xlogy, [10.0, 0.0, 1.0])[1]).all()
PROGRAM
