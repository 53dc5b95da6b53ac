#!/usr/bin/env bash
# Finding: Keras' R2Score exceeds 1 where labels lie far from zero.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: the metric keeps sums of labels and of their squares in float32, over all batches of an epoch, and takes the
# variance for their difference. Where the mean is large beside the standard deviation, most digits cancel: the share of
# variance that is explained drifts with the number of examples and the order of batches, and can exceed 1, its largest
# possible value. Years, prices, temperatures in kelvin and time stamps are such labels. The loss beside it is right.
# Early stopping and searches that watch R2Score then follow rounding errors.
# Output seen: 4096 labels of deviation 1, in float64 R2 is 0.747 everywhere; R2Score of labels around 0: 0.747,
# around 1000: 0.788, around 3000: 0.874, around 10000: 1.016
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np

COUNT, BATCH = 4096, 32


def scores(offset):
    """Return R2 of guesses for labels around an offset, by Keras' metric and in float64."""
    generator = np.random.default_rng(0)
    labels = generator.normal(size=(COUNT, 1)).astype("float32")
    guesses = labels + 0.5 * generator.normal(size=labels.shape).astype("float32")
    labels, guesses = labels + np.float32(offset), guesses + np.float32(offset)
    metric = keras.metrics.R2Score()
    for start in range(0, COUNT, BATCH):
        metric.update_state(labels[start : start + BATCH], guesses[start : start + BATCH])
    true, found = labels.astype("float64"), guesses.astype("float64")
    return float(metric.result()), 1 - ((true - found) ** 2).sum() / ((true - true.mean()) ** 2).sum()


seen = {offset: scores(offset) for offset in (0, 1000, 3000, 10000)}
assert all(f"{exact:.3f}" == "0.747" for _, exact in seen.values())
print(f"{COUNT} labels of deviation 1, in float64 R2 is 0.747 everywhere; R2Score of labels ", end="")
print(", ".join(f"around {offset}: {score:.3f}" for offset, (score, _) in seen.items()))
assert f"{seen[0][0]:.3f}" == "0.747"
assert seen[3000][0] > 0.8 and seen[10000][0] > 1.0, "the behaviour has changed"
PROGRAM
