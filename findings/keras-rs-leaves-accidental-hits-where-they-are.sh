#!/usr/bin/env bash
# Finding: the layer RemoveAccidentalHits of Keras RS removes none.
#
# Versions: keras-rs 0.4.0, Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: where the other items of a batch are the negatives, an item that occurs twice is its own negative. The
# layer is to lower the logits of such hits. It adds a constant to them, and takes it for the most negative float. The
# constant is a hundredth of the smallest positive one (1.2e-40), so every logit stays as it was, bit for bit. Popular
# items are trained against themselves, in proportion to their popularity and to the batch, and the loss of a perfect
# model is far from 0: larger global batches look worse. The layer of that name in TensorFlow Recommenders lowers the
# logits.
# Output seen: batch of 64: 116 hits, 0 removed, loss of a perfect model 0.58, with hits left out 0.00
# batch of 1024: 26,480 hits, 0 removed, loss of a perfect model 2.04, with hits left out 0.00
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    tensorflow-cpu==2.21.0 keras==3.15.1 keras-rs==0.4.0 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import keras_rs
import numpy as np

ITEMS = 1000
POPULARITY = 1 / np.arange(1, ITEMS + 1)
lower = keras_rs.layers.RemoveAccidentalHits()
generator = np.random.default_rng(0)


def loss(logits):
    """Return the mean loss of the logits of a square batch."""
    return float(keras.losses.CategoricalCrossentropy(from_logits=True)(np.eye(len(logits), dtype="float32"), logits))


for batch in (64, 1024):
    items = generator.choice(ITEMS, batch, p=POPULARITY / POPULARITY.sum())
    same = items[:, None] == items[None, :]
    hits = same & ~np.eye(batch, dtype=bool)
    perfect = np.where(same, 30.0, -30.0).astype("float32")  # each query scores its item, and no other
    found = np.asarray(lower(perfect, np.eye(batch, dtype="float32"), items))
    removed = int((found[hits] < perfect[hits]).sum())
    right = loss(np.where(hits, -1e9, perfect).astype("float32"))
    print(f"batch of {batch}: {hits.sum():,} hits, {removed} removed, ", end="")
    print(f"loss of a perfect model {loss(found):.2f}, with hits left out {right:.2f}")
    assert hits.sum() > batch and right < 1e-6
    assert np.array_equal(found, perfect) and loss(found) > 0.4, "the behaviour has changed"
PROGRAM
