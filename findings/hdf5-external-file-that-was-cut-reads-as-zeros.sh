#!/usr/bin/env bash
# Finding: an HDF5 dataset whose values are in an external file returns zeros where that file was cut.
#
# Versions: h5py 3.14.0, NumPy 2.3.5, Python 3.11.
# Behaviour: a dataset may keep its values in a raw file beside the HDF5 file. If that file is shorter than the dataset
# says, the missing values read as zeros, without an error or a warning. `Dataset.external` lists the files with their
# sizes, so a reader can compare them.
# Output seen: [1, 2, 0, 0]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check h5py==3.14.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import os

import h5py

with h5py.File("data.h5", "w") as file:
    values = file.create_dataset("x", (4,), "int64", external=[("values.raw", 0, 32)])
    values[:] = [1, 2, 3, 4]
os.truncate("values.raw", 16)
with h5py.File("data.h5") as file:
    found = file["x"][:].tolist()
print(found)
assert found == [1, 2, 0, 0], "the behaviour has changed"
PROGRAM
