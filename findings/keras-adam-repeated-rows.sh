#!/usr/bin/env bash
# Finding: Keras' Adam does not add up repeated rows of a sparse gradient before it squares them.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: an Embedding that looks up one row twice has a gradient of two rows with one index. Adam's second moment
# gets the sum of their squares, and not the square of their sum, which the same gradient has as a dense tensor. The
# first update is larger by the square root of the number of repetitions. So a table in which few rows are repeated
# trains differently from one in which many are, at the same gradients.
# Output seen: dense: 0.0100; two rows: 0.0141; four rows: 0.0200
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import keras
import tensorflow as tf


def first_update(gradient):
    """Return by how much Adam moves row 0 of a table of zeros."""
    table = keras.Variable([[0.0], [0.0]])
    keras.optimizers.Adam(0.01, epsilon=1e-12).apply([gradient], [table])
    return -float(table.numpy()[0, 0])


def rows(count):
    """Return a gradient of 4 for row 0, in so many equal rows."""
    return tf.IndexedSlices(tf.fill([count, 1], 4.0 / count), tf.zeros([count], tf.int32), [2, 1])


dense, two, four = first_update(tf.constant([[4.0], [0.0]])), first_update(rows(2)), first_update(rows(4))
print(f"dense: {dense:.4f}; two rows: {two:.4f}; four rows: {four:.4f}")
assert [round(value, 4) for value in (dense, two, four)] == [0.01, 0.0141, 0.02], "the behaviour has changed"
PROGRAM
