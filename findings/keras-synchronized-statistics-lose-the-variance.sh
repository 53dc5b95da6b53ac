#!/usr/bin/env bash
# Finding: BatchNormalization(synchronized=True) loses the variance of inputs that are far from zero.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: without `synchronized` the variance is the mean of (x - mean)**2. With it, the variance is the mean of x**2
# minus the square of the mean, so that replicas can add up sums. It is computed in float32, and negative values are
# raised to 0. A thousand standard deviations from zero it is wrong by half. At 4000 it is 0 for most channels, whose
# outputs are 32 times too large (1 / sqrt(epsilon)), and ten times the variance for others. The averages for inference
# are also wrong, and no NaN reveals it. One replica is enough: a channel of pressures in pascal, altitudes or years
# triggers it.
# Output seen: 64 channels of variance 1 around 1000: plain within 0.001%, synchronized wrong by 65%, 0 are zero
# 64 channels of variance 1 around 4096: plain within 0.001%, synchronized wrong by 1248%, 34 are zero
# The script fails if that changes; numbers may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np

noise = np.random.default_rng(0).normal(size=(1024, 64))


def variances(inputs, synchronized):
    """Return the variance that a layer finds in each channel of a batch."""
    layer = keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.0)
    layer(inputs, training=True)
    return layer.moving_variance.numpy().astype("float64")


for mean in (1000, 4096):
    inputs = (mean + noise).astype("float32")
    right = inputs.astype("float64").var(axis=0)
    plain, found = variances(inputs, False), variances(inputs, True)
    usual, wrong = (float(np.abs(one - right).max() / right.min()) for one in (plain, found))
    zeros = int(np.sum(found == 0))
    print(f"64 channels of variance 1 around {mean}: plain within {max(usual, 1e-5):.3%}, ", end="")
    print(f"synchronized wrong by {wrong:.0%}, {zeros} are zero")
    assert usual < 1e-4 and wrong > 0.05, "the behaviour has changed"
assert wrong > 0.9 and zeros > 0, "the behaviour has changed"
PROGRAM
