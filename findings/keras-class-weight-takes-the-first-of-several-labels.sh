#!/usr/bin/env bash
# Finding: class_weight weighs a row of several labels by the first of them, and a row without labels as class 0.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: `fit` takes the class of a row from the argmax of its target, whatever the loss is. A target of several
# labels, as for binary_crossentropy over tags, has ones at each of them, so the first decides the weight of the whole
# row; the weights of later classes count only in rows that have no earlier one. A row without labels has the weight
# of class 0. One expects weights per class or an error; there is neither. A loss of your own can weigh per class.
# Output seen: weights 100, 10, 1: rows 011, 101, 000 count 10, 100, 100; loss 48.52, by hand 48.52, per class 9.0
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

WEIGHTS = {0: 100.0, 1: 10.0, 2: 1.0}
LABELS = np.array([[0, 1, 1], [1, 0, 1], [0, 0, 0]], "float32")


def loss(labels):
    """Return the weighted loss of a model that says one half to every label: each element costs log 2."""
    output = keras.layers.Dense(3, "sigmoid", kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), output])
    model.compile(keras.optimizers.SGD(0.0), "binary_crossentropy")
    history = model.fit(np.zeros((len(labels), 1)), labels, class_weight=WEIGHTS, verbose=0)
    return history.history["loss"][0]


rows = [round(loss(LABELS[row : row + 1]) / np.log(2)) for row in range(3)]
whole, by_hand = loss(LABELS), np.log(2) * (10 + 100 + 100) / 3
per_class = np.log(2) * np.where(LABELS == 1, list(WEIGHTS.values()), 1.0).mean()
print("weights 100, 10, 1: rows 011, 101, 000 count {}, {}, {}; ".format(*rows), end="")
print(f"loss {whole:.2f}, by hand {by_hand:.2f}, per class {per_class:.1f}")
assert rows == [10, 100, 100] and abs(whole - by_hand) < 1e-3, "the behaviour has changed"
PROGRAM
