#!/usr/bin/env bash
# Finding: `tf.norm` of a float16 vector that is shorter than 0.0078 is 0.0078, and has no gradient.
#
# Versions: TensorFlow 2.22.0rc0, Python 3.11. TensorFlow 2.21.0 returns the lengths.
# Behaviour: so that a vector of zeros has a gradient without NaN, the sum of squares is raised to the smallest normal
# number of its type before the root is taken. For float32 that is 1e-38 and changes nothing that matters. For float16
# it is 6.1e-5, the square of 0.0078. A vector of zeros keeps its length 0; every other short vector gets 0.0078 and
# the gradient 0. Gradients and differences in float16 often are that short. Divided by such a norm, a vector does not
# become one of length 1, and a penalty on a distance no longer pulls near points together. bfloat16 is treated as
# float32, and norms of another order are right. Compute the norm in float32.
# Output seen: lengths 0, 0.0005, 0.002, 0.005, 0.05 have norms 0, 0.0078, 0.0078, 0.0078, 0.05; (0.003, 0.004) divided
# by its norm has length 0.64; its norm has the gradient (0, 0)
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


def norm(length):
    """Return the norm of a float16 vector of this length, and its gradient."""
    vector = tf.constant([0.6 * length, 0.8 * length], tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(vector)
        found = tf.norm(vector)
    return float(found), tape.gradient(found, vector).numpy()


lengths = (0.0, 0.0005, 0.002, 0.005, 0.05)
norms = [norm(length)[0] for length in lengths]
vector = tf.constant([0.003, 0.004], tf.float16)
unit = np.linalg.norm(tf.cast(vector / tf.norm(vector), tf.float32))
print("lengths", ", ".join(f"{one:g}" for one in lengths), end=" ")
print("have norms", ", ".join(f"{one:.2g}" for one in norms), end="; ")
print(f"(0.003, 0.004) divided by its norm has length {unit:.2f};", end=" ")
print("its norm has the gradient ({:g}, {:g})".format(*norm(0.005)[1]))
assert norms[:4] == [0.0, 0.0078125, 0.0078125, 0.0078125], "the behaviour has changed"
assert abs(norms[4] - 0.05) < 1e-4 and abs(unit - 0.64) < 0.01, "the behaviour has changed"
assert not norm(0.005)[1].any() and np.allclose(norm(0.05)[1], [0.6, 0.8], atol=2e-3), "the behaviour has changed"
for dtype in (tf.bfloat16, tf.float32):
    assert abs(float(tf.norm(tf.cast([0.003, 0.004], dtype))) - 0.005) < 5e-5
PROGRAM
