#!/usr/bin/env bash
# Finding: on TensorFlow, sums, products and quotients of Keras give rows of sparse tensors each other's values.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: `keras.ops.add`, `subtract` and `multiply` of two `tf.IndexedSlices`, and `divide` where the divisor has a
# zero or a NaN, look for the row of each index. If the indices are as many as in the result, values are taken in the
# order in which they lie, although the result has its indices sorted. Otherwise the positions of repeated indices are
# added up, and name another row, or one that does not exist. In `fit` with an Embedding, one NaN in a row of the second
# moment of RMSprop (also Adagrad, Adadelta and ScheduleFreeAdamW) leads there in each later step, so words that share
# nothing with the NaN get updates of other words, or `fit` ends with an index out of range.
# Output seen: sum: 12 21, dense: 3 30; product: 20 20, dense: 2 200; row without error moves by 0.0 before the NaN,
# by 210.82 after it; repeated words after the NaN: indices[0] = 7 is not in [0, 5)
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
CUDA_VISIBLE_DEVICES="" TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import functools
import re

import keras
import numpy as np
import tensorflow as tf


def both(operation):
    """Return what the operation gives for rows of a table, and for the same two tables without a sparse tensor."""
    first = tf.IndexedSlices([[10.0], [1.0]], [1, 0], [2, 1])
    second = tf.IndexedSlices([[2.0], [20.0]], [0, 1], [2, 1])
    results = operation(first, second), operation(tf.convert_to_tensor(first), tf.convert_to_tensor(second))
    return [[int(value) for value in np.ravel(tf.convert_to_tensor(result))] for result in results]


def row_0_after(*batches):
    """Train a table of zeros with batches of words and their labels; return where the row of word 0 is then."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(5, 1, "zeros"), keras.layers.Flatten()])
    model.compile(keras.optimizers.RMSprop(0.1), "mse")
    data = [tf.data.Dataset.from_tensors((np.reshape(words, [-1, 1]), labels)) for words, labels in batches]
    model.fit(functools.reduce(tf.data.Dataset.concatenate, data), verbose=0)
    return round(float(model.layers[0].embeddings.numpy()[0, 0]), 2)


without_a_label = [3], [np.nan]
words = [1, 1, 0], [1.0, 1.0, 0.0]  # row 0 is right, so its gradient is zero
(total, dense_total), (product, dense_product) = both(keras.ops.add), both(keras.ops.multiply)
moves = row_0_after(words), row_0_after(without_a_label, words)
try:
    row_0_after(without_a_label, ([1, 1, 0, 0], [1.0, 1.0, 0.0, 0.0]))
    raised = "nothing"
except tf.errors.InvalidArgumentError as error:
    raised = re.search(r"indices\[\d+\] = \d+ is not in \[\d+, \d+\)", str(error))[0]
print("sum:", *total, end=", ")
print("dense:", *dense_total, end="; ")
print("product:", *product, end=", ")
print("dense:", *dense_product, end="; ")
print(f"row without error moves by {moves[0]} before the NaN, by {moves[1]} after it; ", end="")
print(f"repeated words after the NaN: {raised}")
assert [total, dense_total, product, dense_product] == [[12, 21], [3, 30], [20, 20], [2, 200]], "the behaviour changed"
assert moves == (0.0, 210.82) and raised == "indices[0] = 7 is not in [0, 5)", "the behaviour has changed"
PROGRAM
