#!/usr/bin/env bash
# Finding: on TensorFlow, keras.ops multiplies matrices of integers in floating point, and returns integers.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: matmul, dot, inner and einsum cast int32 to float32 and int64 to float64, multiply, and cast the result
# back to an integer. So above 2**24, or 2**53, products and sums are rounded, and the type of the result hides it.
# tensordot of the same arrays is exact, and so are TensorFlow's own matmul and NumPy's. Identifiers that one-hot rows
# look up become others, most of them even; so do hashes that a matrix of weights mixes, and large counts. Tables,
# joins and deduplication behind them then meet other rows. There is no warning.
# Output seen: 1,000 identifiers below 2**31 that one-hot rows of int32 select, unchanged: matmul 39, dot 39, inner 39,
# einsum 39, tensordot 1000, tf.matmul 1000, NumPy 1000; up to 64 off
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import numpy as np
import tensorflow as tf
from keras import ops

COUNT = 1000
generator = np.random.default_rng(0)
identifiers = generator.integers(0, 2**31, size=COUNT).astype("int32")
order = generator.permutation(COUNT)
rows = np.eye(COUNT, dtype="int32")[order]  # one-hot rows that select each identifier once
column = identifiers[:, None]
products = {
    "matmul": ops.matmul(rows, column)[:, 0],
    "dot": ops.dot(rows, identifiers),
    "inner": ops.inner(rows, identifiers),
    "einsum": ops.einsum("ij,j->i", rows, identifiers),
    "tensordot": ops.tensordot(rows, identifiers, 1),
    "tf.matmul": tf.matmul(rows, column)[:, 0],
    "NumPy": (rows @ column)[:, 0],
}
assert all(ops.convert_to_numpy(one).dtype == np.int32 for one in products.values()), "the behaviour has changed"
apart = {name: np.abs(ops.convert_to_numpy(one).astype("int64") - identifiers[order]) for name, one in products.items()}
right = {name: int(np.sum(one == 0)) for name, one in apart.items()}
print("1,000 identifiers below 2**31 that one-hot rows of int32 select, unchanged: ", end="")
print(", ".join(f"{name} {number}" for name, number in right.items()), end="")
print(f"; up to {max(int(one.max()) for one in apart.values())} off")
assert max(right[name] for name in ("matmul", "dot", "inner", "einsum")) < 0.1 * COUNT, "the behaviour has changed"
assert min(right[name] for name in ("tensordot", "tf.matmul", "NumPy")) == COUNT, "the behaviour has changed"
large, ones = np.full((1, 3), 2**53 + 1), np.ones((3, 1), "int64")
found = ops.convert_to_numpy(ops.matmul(large, ones))
assert found.dtype == np.int64 and found != large @ ones, "the behaviour has changed"
PROGRAM
