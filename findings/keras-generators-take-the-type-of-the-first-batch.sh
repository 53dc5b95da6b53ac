#!/usr/bin/env bash
# Finding: `fit` casts all batches of a generator to the types of the first one: labels of 0.3 become 0.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, pandas 3.0.0, Python 3.11.
# Behaviour: on TensorFlow, Keras looks at the first two batches of a generator or a PyDataset, and takes the types of
# the first one for all. It compares the shapes of later batches with these, but casts their values without a word. If
# the first batch has integers, later ones lose their fractions: a weight of 0.5 counts as none, a probability as 0.
# Readers of text choose a type per chunk: pandas reads "2" and "3" as integers, and "2.5" in the next chunk as floats.
# A NaN, by which it marks a missing number, becomes the smallest integer, -9223372036854775808. `train_on_batch` and
# arrays keep the values. A `tf.data.Dataset.from_generator` casts likewise. Let a generator give float32.
# Output seen: the model sees 1, 2, 2, 3, the file has 1, 2, 2.5, 3.5; labels of 0.3 count as 0, weights of 0.5 as 0
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5 \
  pandas==3.0.0
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
from pathlib import Path

import keras
import numpy as np
import pandas as pd

Path("prices.csv").write_text("price\n1\n2\n2.5\n3.5\n")


class Batches(keras.utils.PyDataset):
    """Four batches: the first has whole numbers, the others have not."""

    def __init__(self, labels, weights, **arguments):
        super().__init__(**arguments)
        self.labels, self.weights = labels, weights

    def __len__(self):
        return 4

    def __getitem__(self, index):
        labels, weights = ([kind[0] if index == 0 else kind[1]] for kind in (self.labels, self.weights))
        return np.zeros((1, 1), "float32"), np.array(labels), np.array(weights)


def chunks():
    for chunk in pd.read_csv("prices.csv", chunksize=2):
        yield (chunk[["price"]].to_numpy(),)


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
model.compile("sgd", "mse")  # predicts its input, which is 0 in Batches
seen = model.predict(chunks(), verbose=0).ravel().tolist()
whole = pd.read_csv("prices.csv")["price"].tolist()
print("the model sees {}, ".format(", ".join(f"{one:g}" for one in seen)), end="")
print("the file has {}; ".format(", ".join(f"{one:g}" for one in whole)), end="")
assert whole == [1, 2, 2.5, 3.5] and seen == [1, 2, 2, 3], "the behaviour has changed"


def mean_loss(labels, weights):
    """Return what a training with a learning rate of 0 logs: the mean of weight * label ** 2."""
    model.optimizer.learning_rate.assign(0)
    return model.fit(Batches(labels, weights), shuffle=False, verbose=0).history["loss"][0]


# one batch of four has a label of 1 and a weight of 1; the others have labels of 0.3, or weights of 0.5
label = mean_loss((1, 0.3), (1.0, 1.0)) * 4 - 1  # the squares of the three other labels
weight = mean_loss((1.0, 1.0), (1, 0.5)) * 4 - 1
right = mean_loss((1.0, 0.3), (1.0, 1.0)) * 4 - 1
print(f"labels of 0.3 count as {label / 3:g}, weights of 0.5 as {weight / 3:g}")
assert label == weight == 0, "the behaviour has changed"
assert abs(right - 3 * 0.3**2) < 1e-5, "the behaviour has changed"
PROGRAM
