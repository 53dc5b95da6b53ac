#!/usr/bin/env bash
# Finding: on TensorFlow, `keras.ops.histogram` counts in the type of its values, and cuts edges to that type.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: counts of uint8 pixels wrap at 256. The width of int8 values overflows, so all of them lie in the last bin:
# a histogram of images or of quantized weights is noise. Edges of integers lose their fractions before values are
# sorted into bins, so values lie in other bins than in NumPy. Counts of bfloat16 stop at 256 and those of float16 at
# 2048, so gradients of mixed precision seem to be spread evenly. Nothing is raised. Cast values to float32 first.
# Output seen: 40,000 pixels in 4 bins: uint8 163, 1, 0, 156; int8, 128 less, 0, 0, 0, 64; float32 10048, 9984, 9984,
# 9984 ten digits in 4 bins: int32 2, 2, 2, 4; NumPy 3, 2, 2, 3; 40,000 values in 4 bins: bfloat16 256, 256, 256, 256
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

COUNT, BINS = 40_000, 4


def counts(values, dtype):
    """Return how many values Keras counts in each bin, if they have a type."""
    found, _ = keras.ops.histogram(keras.ops.cast(values, dtype), BINS)
    return keras.ops.convert_to_numpy(keras.ops.cast(found, "float32")).astype(int).tolist()


def shown(numbers):
    return ", ".join(map(str, numbers))


pixels, digits = np.arange(COUNT) % 256, np.arange(10)
wrapped, signed = counts(pixels, "uint8"), counts(pixels - 128, "int8")
exact, numpy = counts(pixels, "float32"), np.histogram(pixels, BINS)[0].tolist()
print(f"{COUNT:,} pixels in {BINS} bins: uint8 {shown(wrapped)}; int8, 128 less, {shown(signed)}; ", end="")
print(f"float32 {shown(exact)}")
cut, whole = counts(digits, "int32"), np.histogram(digits, BINS)[0].tolist()
stopped = counts(np.linspace(-1, 1, COUNT), "bfloat16")
print(f"ten digits in {BINS} bins: int32 {shown(cut)}; NumPy {shown(whole)}; ", end="")
print(f"{COUNT:,} values in {BINS} bins: bfloat16 {shown(stopped)}")
assert exact == numpy and sum(exact) == COUNT and max(wrapped) < 256, "the behaviour has changed"
assert signed == [0, 0, 0, COUNT % 256], "the behaviour has changed"
assert cut == [2, 2, 2, 4] and whole == [3, 2, 2, 3], "the behaviour has changed"
assert stopped == [256] * BINS, "the behaviour has changed"
PROGRAM
