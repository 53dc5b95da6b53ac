#!/usr/bin/env bash
# Finding: Keras' Lamb decays weights outside of the trust ratio.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: in the paper the decay is a part of the update whose length is adapted to that of the weights: r = m /
# sqrt(v) + b w, w <- w - eta |w| / |r| r. Keras shrinks the weights by eta b first, as AdamW does, and adapts Adam's
# part alone. The paper's decay is |w| / |r| times as strong, which differs from layer to layer, and it also turns the
# update. So a decay that was tuned for the paper's form is another one here.
# Output seen: weights 3, 4 after a step: Keras 2.5141, 4.1359; the paper 2.5358, 3.8143; decayed before 2.5141, 4.1359
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

WEIGHTS, GRADIENT, RATE, DECAY = np.array([3.0, 4.0]), np.array([1.0, -2.0]), 0.1, 0.5


def lamb(weights, decay):
    """Return the weights after the paper's first step, where m / sqrt(v), corrected for its bias, is the sign."""
    update = np.sign(GRADIENT) + decay * weights
    return weights - RATE * np.linalg.norm(weights) / np.linalg.norm(update) * update


variable = keras.Variable(WEIGHTS.astype("float32"))
optimizer = keras.optimizers.Lamb(RATE, weight_decay=DECAY, epsilon=1e-7)
optimizer.apply([tf.constant(GRADIENT, tf.float32)], [variable])
found = variable.numpy()
paper, before = lamb(WEIGHTS, DECAY), lamb(WEIGHTS * (1 - RATE * DECAY), 0.0)
shown = ["{:.4f}, {:.4f}".format(*values) for values in (found, paper, before)]
print("weights 3, 4 after a step: Keras {}; the paper {}; decayed before {}".format(*shown))
assert np.allclose(found, before, atol=1e-5) and abs(found - paper).max() > 0.3, "the behaviour has changed"
PROGRAM
