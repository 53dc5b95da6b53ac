#!/usr/bin/env bash
# Finding: the mask of padding reaches some of Keras' metrics and not the others.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: the loss and metrics that are a mean of a function (accuracy, mean_squared_error) leave out what
# Embedding(mask_zero=True) masks. Precision, FalsePositives, BinaryIoU and RootMeanSquaredError count the padding, in
# the same `evaluate`. So a tagger without a mistake has an accuracy of 1.0 and a precision that depends on how much
# its sequences are padded, and RootMeanSquaredError is not the root of mean_squared_error.
# Output seen: accuracy 1.0, precision 0.375; mean squared error 0.0142, its root 0.119, RootMeanSquaredError 0.700
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import math

import keras
import numpy as np

tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0]])  # 0 is padding
tags = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])[..., None]
inputs = keras.Input((4,), dtype="int32")
embedding = keras.layers.Embedding(4, 1, mask_zero=True, embeddings_initializer="ones")
head = keras.layers.Dense(1, "sigmoid", kernel_initializer=keras.initializers.Constant(2.0))  # says 1 of every token
model = keras.Model(inputs, head(embedding(inputs)))
metrics = {
    "accuracy": keras.metrics.BinaryAccuracy,
    "precision": keras.metrics.Precision,
    "squared": keras.metrics.MeanSquaredError,
    "root": keras.metrics.RootMeanSquaredError,
}
model.compile("sgd", "binary_crossentropy", metrics=[kind(name=name) for name, kind in metrics.items()])
found = model.evaluate(tokens, tags, verbose=0, return_dict=True)
root = math.sqrt(found["squared"])
print("accuracy {accuracy}, precision {precision}; mean squared error {squared:.4f}, ".format(**found), end="")
print(f"its root {root:.3f}, RootMeanSquaredError {found['root']:.3f}")
assert (found["accuracy"], found["precision"]) == (1.0, 0.375), "the behaviour has changed"
assert found["root"] > 2 * root, "the behaviour has changed"
PROGRAM
