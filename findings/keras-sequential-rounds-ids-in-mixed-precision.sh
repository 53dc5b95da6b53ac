#!/usr/bin/env bash
# Finding: in mixed precision, a Sequential model that begins with an Embedding rounds the ids of words.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: without an Input, Sequential makes one of the compute type of its first layer, and casts integers to it.
# In mixed_bfloat16 an id keeps 8 bits: from 256 to 511 every odd id takes the row of an even one, and around 20000 all
# of 128 ids take one row. Most rows of the table are never trained, and nothing says so. Ids change above 2048 in
# mixed_float16, and above 16777216 in float32. `Embedding` itself casts no ids, and gets integers from
# `Input(shape, dtype="int32")`. Those of `Input(shape)` are float32, so other layers before the Embedding, like Flatten
# or Reshape, cast them likewise.
# Output seen: accuracy on odd and even ids from 20000 to 20255: float32 1.0, mixed_bfloat16 0.5, with an Input of int32
# 1.0; trained rows of 256 ids: float32 256, mixed_bfloat16 3, with an Input of int32 256; of the ids 256 to 511
# mixed_bfloat16 trains 129 rows
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np


def trained(policy, first, *inputs):
    """Train to tell odd from even ids; return the accuracy, and the number of rows that training has changed."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    ids = np.arange(first, first + 256, dtype="int32").reshape(-1, 1)
    layers = [keras.layers.Embedding(20_256, 8), keras.layers.Flatten()]
    model = keras.Sequential([*inputs, *layers, keras.layers.Dense(1, "sigmoid", dtype="float32")])
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"])
    model(ids)  # builds the table
    before = layers[0].embeddings.numpy()
    model.fit(ids, ids % 2, batch_size=64, epochs=20, verbose=0)
    rows = np.any(layers[0].embeddings.numpy() != before, axis=1)
    return model.evaluate(ids, ids % 2, verbose=0)[1], int(rows.sum())


mixed = "mixed_bfloat16"
integers = keras.Input((1,), dtype="int32")
found = [trained("float32", 20_000), trained(mixed, 20_000), trained(mixed, 20_000, integers)]
accuracies, rows = ([round(one, 2) for one in column] for column in zip(*found, strict=True))
_, near = trained(mixed, 256)
shown = "{} {}: float32 {}, mixed_bfloat16 {}, with an Input of int32 {}"
print(shown.format("accuracy on odd and even ids", "from 20000 to 20255", *accuracies))
print(shown.format("trained rows of 256", "ids", *rows), end="; ")
print(f"of the ids 256 to 511 mixed_bfloat16 trains {near} rows")
assert accuracies == [1, 0.5, 1] and rows == [256, 3, 256] and near == 129, "the behaviour has changed"
PROGRAM
