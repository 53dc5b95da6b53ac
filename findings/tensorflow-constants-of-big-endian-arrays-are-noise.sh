#!/usr/bin/env bash
# Finding: a big-endian array is right as an eager tensor, but noise as a constant in a tf.function.
#
# Versions: TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: NumPy also names the type of such an array float32, and computes with it as with any other. Arrays from
# IDX, FITS, NetCDF and many HDF5 files have this byte order. An eager tensor, a variable and a dataset have the right
# numbers. A constant of a graph is written with the array's bytes unchanged, and read in the machine's byte order.
# Class weights, masks or tables over which a compiled step closes become numbers near zero, or about 10**18, while the
# same step is right if it runs eagerly. `tf.make_tensor_proto` alone does the same. Nothing is raised.
# Output seen: [1, 2, 3]: eager [1.0, 2.0, 3.0], in a function [4.6006e-41, 8.9683e-44, 2.3049e-41];
# of int32 [1, 2]: [16777216, 33554432]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import struct
import sys

import numpy as np
import tensorflow as tf

assert sys.byteorder == "little", "run this on a machine whose numbers are little-endian"
weights = np.frombuffer(struct.pack(">3f", 1, 2, 3), ">f4")  # as a file's bytes are read
labels = np.frombuffer(struct.pack(">2i", 1, 2), ">i4")


def constant(array):
    """Return an array as a constant of TensorFlow."""
    return tf.constant(array)


eager = constant(weights).numpy().tolist()
graph = tf.function(lambda: constant(weights), autograph=False)().numpy()
integers = tf.function(lambda: constant(labels), autograph=False)().numpy().tolist()
noise = ", ".join(f"{value:.4e}" for value in graph)
print(f"[1, 2, 3]: eager {eager}, in a function [{noise}]; of int32 [1, 2]: {integers}")
swapped = weights.view("<f4")  # the same bytes in the other order
assert weights.tolist() == eager == [1.0, 2.0, 3.0] and weights.dtype.name == "float32"
assert np.array_equal(graph, swapped) and integers == [1 << 24, 2 << 24], "the behaviour has changed"
assert np.array_equal(tf.make_ndarray(tf.make_tensor_proto(weights)), swapped), "the behaviour has changed"
PROGRAM
