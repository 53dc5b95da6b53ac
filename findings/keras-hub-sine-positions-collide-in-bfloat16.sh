#!/usr/bin/env bash
# Finding: under mixed_bfloat16 the sine encodings of keras-hub are equal for neighbouring positions.
#
# Versions: keras-hub 0.32.0, Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: SinePositionEncoding computes positions and their angles in the policy's compute dtype. bfloat16 represents
# the integers up to 256, every second one up to 512, and every sixteenth near 4096. Of 4096 positions only 769 have
# different encodings. From 100 on, errors are larger than the differences between encodings, because the angle itself
# is rounded. float16 merges positions from 2048 on. RotaryEmbedding of the same package computes in float32. AlibiBias
# does not, and its biases merge likewise. The context of a model trained this way is some hundred tokens; nothing is
# raised.
# Output seen: of 4096 positions: float32 4096 encodings, mixed_bfloat16 769, mixed_float16 3073; the largest error
# 0.0001, 2.0000, 1.7854; biases of Alibi: float32 4096, mixed_bfloat16 769
# The script fails if that changes; last digits may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    tensorflow==2.21.0 keras==3.15.1 keras-hub==0.32.0 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras_hub
import numpy as np
import tensorflow as tf

LENGTH, SIZE = 4096, 64
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
position, channel = np.arange(LENGTH)[:, None], np.arange(SIZE)
angle = position / 10000 ** (2 * (channel // 2) / SIZE)  # as in the paper of the Transformer
oracle = np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))


def encodings(policy):
    """Return the encodings that a layer gives to inputs of this length."""
    layer = keras_hub.layers.SinePositionEncoding(dtype=policy)
    return tf.cast(layer(tf.zeros((1, LENGTH, SIZE))), tf.float32).numpy()[0]


def biases(policy):
    """Return how many different biases the first head of AlibiBias has."""
    layer = keras_hub.layers.AlibiBias(dtype=policy)
    return len(np.unique(tf.cast(layer(tf.zeros((1, 8, 1, LENGTH), layer.compute_dtype)), tf.float32)[0, 0, 0]))


found = {policy: encodings(policy) for policy in POLICIES}
distinct = {policy: len(np.unique(rows, axis=0)) for policy, rows in found.items()}
errors = {policy: np.abs(rows - oracle).max() for policy, rows in found.items()}
alibi = {policy: biases(policy) for policy in POLICIES[:2]}
print("of 4096 positions: float32 {} encodings, mixed_bfloat16 {}, ".format(*distinct.values()), end="")
print(f"mixed_float16 {distinct['mixed_float16']};", end=" ")
print("the largest error {:.4f}, {:.4f}, {:.4f};".format(*errors.values()), end=" ")
print("biases of Alibi: float32 {}, mixed_bfloat16 {}".format(*alibi.values()))
assert distinct["float32"] == alibi["float32"] == LENGTH and errors["float32"] < 1e-3
assert max(distinct["mixed_bfloat16"], alibi["mixed_bfloat16"]) < 1000, "the behaviour has changed"
assert distinct["mixed_float16"] < 3500 and errors["mixed_bfloat16"] > 1, "the behaviour has changed"
PROGRAM
