#!/usr/bin/env bash
# Finding: in mixed precision Keras' Normalization rounds its inputs before it subtracts the mean.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: a layer casts its inputs to the compute dtype of the policy, and so does this one, although it is there
# for features of any scale. In mixed_bfloat16 a year is rounded to a multiple of eight, and so is the mean: of 34
# years 5 values are left. In mixed_float16 the variance overflows above 65,504, so features with a deviation above
# 256, such as incomes, become zeros. With dtype="float32" for this layer alone all is well. The model learns from
# what is left, and nothing is raised.
# Output seen: 34 years: float32 34 values, mixed_bfloat16 5; incomes: float32 -1.34 to 1.34, mixed_float16 0.0 to 0.0
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

YEARS = np.arange(1990, 2024, dtype="float32").reshape(-1, 1)
INCOMES = np.array([[20000.0], [30000.0], [40000.0], [50000.0]], "float32")


def normalized(policy, values):
    """Return what a layer with this policy makes of these values, of which it has learnt mean and variance."""
    layer = keras.layers.Normalization(dtype=policy)
    layer.adapt(values)
    return layer(values).numpy().astype("float64").round(2)


years = [len(np.unique(normalized(policy, YEARS))) for policy in ("float32", "mixed_bfloat16")]
whole, half = (normalized(policy, INCOMES) for policy in ("float32", "mixed_float16"))
print("34 years: float32 {} values, mixed_bfloat16 {}; ".format(*years), end="")
print(f"incomes: float32 {whole.min()} to {whole.max()}, mixed_float16 {abs(half).min()} to {abs(half).max()}")
assert years == [34, 5] and np.ptp(whole) > 2.5 and not half.any(), "the behaviour has changed"
PROGRAM
