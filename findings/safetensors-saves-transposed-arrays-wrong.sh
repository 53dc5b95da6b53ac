#!/usr/bin/env bash
# Finding: safetensors.numpy saves a transposed or strided array with its values in another order.
#
# Versions: safetensors 0.8.0, NumPy 2.3.5, ml_dtypes 0.5.4, Python 3.11.
# Behaviour: save_file takes the bytes of the array's memory and the shape of the view. A transposed, Fortran-ordered or
# strided array comes back with the right shape and wrong values, and nothing is raised. np.ascontiguousarray before the
# call is the way on. An array of float8_e4m3fn is saved but cannot be loaded, because NumPy has no dtype of that name.
# Output seen: [[0, 3], [1, 4], [2, 5]] came back as [[0, 1], [2, 3], [4, 5]]; float8_e4m3fn: AttributeError
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check safetensors==0.8.0 numpy==2.3.5 ml-dtypes==0.5.4
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

given = np.arange(6).reshape(2, 3).T
save_file({"weights": given}, "weights.safetensors")
found = load_file("weights.safetensors")["weights"].tolist()
save_file({"weights": np.zeros(3, ml_dtypes.float8_e4m3fn)}, "eight.safetensors")
try:
    load_file("eight.safetensors")
    eight = "loaded"
except AttributeError as error:
    eight = type(error).__name__
print(f"{given.tolist()} came back as {found}; float8_e4m3fn: {eight}")
assert (found, eight) == ([[0, 1], [2, 3], [4, 5]], "AttributeError"), "the behaviour has changed"
PROGRAM
