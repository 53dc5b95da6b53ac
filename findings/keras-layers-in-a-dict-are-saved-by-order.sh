#!/usr/bin/env bash
# Finding: weights of layers in a dictionary are saved by the order of the layers, not by their keys.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: `save_weights` names the layers of a dictionary by their class and position: dense, dense_1. Keys and layer
# names are not in the file. A model's dictionary may have the same keys in another order, because a configuration was
# sorted or a set was iterated. Then each head loads the weights of another head, if shapes agree, and predictions for
# the price are those for the size. Nothing is raised, and there is no warning.
# Output seen: saved: price 1.0, size 2.0; loaded by keys in another order: price 2.0, size 1.0; names [dense, dense_1]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import warnings

import h5py
import keras
import numpy as np

warnings.simplefilter("error", UserWarning)  # the warning of Keras about weights that do not fit


class Heads(keras.Model):
    """One head for each name."""

    def __init__(self, names):
        super().__init__()
        self.heads = {name: keras.layers.Dense(1, name=name) for name in names}

    def call(self, inputs):
        return {name: head(inputs) for name, head in self.heads.items()}


def predictions(model):
    """Return what each head says of a one."""
    return {name: float(value[0, 0]) for name, value in model(np.ones((1, 1), "float32")).items()}


first, second = Heads(["price", "size"]), Heads(["size", "price"])
predictions(first), predictions(second)  # builds them
for name, value in (("price", 1.0), ("size", 2.0)):
    first.heads[name].set_weights([np.full((1, 1), value), np.zeros(1)])
first.save_weights("heads.weights.h5")
second.load_weights("heads.weights.h5")
saved, loaded = predictions(first), predictions(second)
with h5py.File("heads.weights.h5") as file:
    names = sorted(file["heads"])
print(f"saved: price {saved['price']}, size {saved['size']}; loaded by keys in another order: ", end="")
print(f"price {loaded['price']}, size {loaded['size']}; names [{', '.join(names)}]")
assert saved == {"price": 1.0, "size": 2.0} and names == ["dense", "dense_1"], "the behaviour has changed"
assert loaded == {"price": 2.0, "size": 1.0}, "the behaviour has changed"
PROGRAM
