#!/usr/bin/env bash
# Finding: some of TensorFlow's maxima drop a NaN, and with XLA on a CPU reduce_max does too.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11, x86-64 Linux.
# Behaviour: tf.reduce_max and tf.maximum return NaN if there is one. MaxPooling returns the largest of the others,
# and the lowest float for NaN alone, so that a NaN never reaches the loss; GlobalMaxPooling of the same values is
# NaN. segment_max forgets what stood before the NaN: the true maximum is gone too. With jit_compile=True reduce_max
# drops NaN as well, wherever it stands. So a check for overflow by reduce_max(abs(x)), usual for scales of float8,
# passes once it is compiled.
# Output seen: of 1, NaN, -1, 0.5: reduce_max nan, compiled 1.0; MaxPooling 1.0, GlobalMaxPooling nan; segment_max 0.5
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
import tensorflow as tf

values = tf.constant([1.0, np.nan, -1.0, 0.5])
image = tf.reshape(values, (1, 2, 2, 1))
empty = tf.fill((1, 2, 2, 1), np.nan)
compiled = tf.function(lambda x: tf.reduce_max(tf.abs(x)), jit_compile=True, autograph=False)
found = {
    "reduce_max": tf.reduce_max(values),
    "compiled": compiled(values),
    "MaxPooling": keras.layers.MaxPooling2D(2)(image),
    "nothing": keras.layers.MaxPooling2D(2)(empty),
    "GlobalMaxPooling": keras.layers.GlobalMaxPooling2D()(image),
    "segment_max": tf.math.segment_max(values, [0, 0, 0, 0]),
}
found = {name: float(tf.reshape(value, ())) for name, value in found.items()}
print("of 1, NaN, -1, 0.5: reduce_max {reduce_max}, compiled {compiled}; ".format(**found), end="")
print("MaxPooling {MaxPooling}, GlobalMaxPooling {GlobalMaxPooling}; segment_max {segment_max}".format(**found))
assert np.isnan([found["reduce_max"], found["GlobalMaxPooling"]]).all(), "the behaviour has changed"
assert (found["MaxPooling"], found["compiled"], found["segment_max"]) == (1.0, 1.0, 0.5), "the behaviour has changed"
assert found["nothing"] == float(np.finfo("float32").min), "the behaviour has changed"
for position in range(33):  # wherever it stands
    ones = np.ones(33, "float32")
    ones[position] = np.nan
    assert float(compiled(ones)) == 1.0 and np.isnan(float(tf.reduce_max(ones))), "the behaviour has changed"
PROGRAM
