#!/usr/bin/env bash
# Finding: after keras.utils.set_random_seed, fit(shuffle=True) gives arrays the same order in every epoch.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: Keras shuffles arrays by a stateful `tf.random.shuffle` inside of a `tf.data` pipeline, and makes a new
# iterator for each epoch. With a global seed, each iterator begins this operation's random numbers anew. So every epoch,
# and every later fit of the same data, has the same order and the same batches. Without a seed each epoch has another
# order, and so has `tf.data.Dataset.shuffle` with the seed. A script that was seeded to be reproducible thus trains on
# far fewer batches than the one that was not.
# Output seen: orders in 6 epochs: arrays 6, dataset 6; with a seed: arrays 1, arrays in 6 fits 1, dataset 6;
# distinct batches of 4 among 12 examples in 20 epochs: about 57, with a seed 3
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

ROWS, EPOCHS = 12, 6
X = np.arange(ROWS, dtype="float32")[:, None]


class Watched(keras.Sequential):
    """A model that notes the rows of each batch."""

    def train_step(self, data):
        tf.py_function(lambda rows: seen.append(tuple(rows.numpy().ravel().astype(int))), [data[0]], [])
        return super().train_step(data)


def batches(*data, fits=1, **options):
    """Return the batches that some fits have seen."""
    seen.clear()
    model = Watched([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for _ in range(fits):
        model.fit(*data, verbose=0, **options)
    return list(seen)


def orders():
    """Return the numbers of different orders of arrays, of arrays in several fits, and of a shuffled dataset."""
    dataset = tf.data.Dataset.from_tensor_slices((X, X)).shuffle(ROWS).batch(ROWS)
    return [
        len(set(batches(X, X, batch_size=ROWS, epochs=EPOCHS))),
        len(set(batches(X, X, batch_size=ROWS, fits=EPOCHS))),
        len(set(batches(dataset, epochs=EPOCHS))),
    ]


def different():
    """Return the number of different batches of four examples in 20 epochs."""
    return len({frozenset(one) for one in batches(X, X, batch_size=4, epochs=20)})


seen = []
free, free_batches = orders(), different()
keras.utils.set_random_seed(1)
seeded, seeded_batches = orders(), different()
print(f"orders in {EPOCHS} epochs: arrays {free[0]}, dataset {free[2]}; ", end="")
print(f"with a seed: arrays {seeded[0]}, arrays in {EPOCHS} fits {seeded[1]}, dataset {seeded[2]}")
print(f"distinct batches of 4 among {ROWS} examples in 20 epochs: {free_batches}, with a seed {seeded_batches}")
assert free == [EPOCHS] * 3 and seeded == [1, 1, EPOCHS], "the behaviour has changed"
assert free_batches > 40 and seeded_batches == 3, "the behaviour has changed"
PROGRAM
