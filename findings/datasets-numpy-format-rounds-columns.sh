#!/usr/bin/env bash
# Finding: the NumPy format of Hugging Face datasets rounds columns of doubles, and of integers if one is missing.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1, NumPy 2.3.5, Python 3.11.
# Behaviour: with_format("numpy") turns every column of floats into float32, while the features say float64. A column
# of integers in which a value is missing becomes float32 too, so identifiers above 16,777,216 change. Unsigned
# integers from 2**63 on become negative. A single row keeps the types: `d[0]["x"]` and `d["x"][0]` differ. Times in
# seconds are wrong by up to a minute. with_format("numpy", dtype=numpy.float64) keeps doubles.
# Output seen: time 1764000001.75 -> 1764000000.0, in a row 1764000001.75; id 16777217 -> 16777216.0; 2**63 -> -2**63
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import datasets
import numpy as np

given = datasets.Dataset.from_dict(
    {"time": [1764000001.75, 0.0], "id": [16777217, None], "key": np.array([2**63, 1], "uint64")}
)
formatted = given.with_format("numpy")
time, identifier, key = (formatted[name][:][0] for name in ("time", "id", "key"))
row = float(formatted[0]["time"])
kept = float(given.with_format("numpy", dtype=np.float64)["time"][:][0])
print(f"time 1764000001.75 -> {float(time)}, in a row {row}; id 16777217 -> {float(identifier)}; ", end="")
print(f"2**63 -> {'-' if key < 0 else ''}2**63")
assert [str(feature.dtype) for feature in given.features.values()] == ["float64", "int64", "uint64"]
assert (float(time), row, kept) == (1764000000.0, 1764000001.75, 1764000001.75), "the behaviour has changed"
assert (float(identifier), int(key)) == (16777216.0, -(2**63)), "the behaviour has changed"
PROGRAM
