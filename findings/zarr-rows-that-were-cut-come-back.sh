#!/usr/bin/env bash
# Finding: rows that were cut off a Zarr array come back when it grows again.
#
# Versions: zarr 3.1.6, h5py 3.14.0, NumPy 2.3.5, Python 3.11.
# Behaviour: resize deletes the chunks behind the new end, and leaves the chunk in which the end lies as it is. What
# was cut there is hidden, and a later resize shows it instead of the fill value. So a writer that goes back to its
# last checkpoint, and then makes room for its next rows, has old rows in it that look as if they were new. How many
# depends on the chunks, and with shards on the shards. HDF5 fills such rows.
# Output seen: ten rows cut to three and grown: Zarr [0, 1, 2, 3, 4, 5, 6, 7, -1, -1], HDF5 [0, 1, 2, -1, -1, ...]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check zarr==3.1.6 h5py==3.14.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import h5py
import numpy as np
import zarr


def grown(array, resize):
    """Return what an array of ten rows has after it was cut to three and grown again."""
    array[:] = np.arange(10)
    resize((3,))
    resize((10,))
    return array[:].tolist()


arguments = {"shape": (10,), "dtype": "int32", "chunks": (8,)}
stored = zarr.create_array("rows.zarr", fill_value=-1, **arguments)
found = grown(stored, stored.resize)
with h5py.File("rows.h5", "w") as file:
    dataset = file.create_dataset("rows", maxshape=(None,), fillvalue=-1, **arguments)
    filled = grown(dataset, dataset.resize)
print(f"ten rows cut to three and grown: Zarr {found}, HDF5 {filled}")
assert found == [*range(8), -1, -1] and filled == [0, 1, 2, *[-1] * 7], "the behaviour has changed"
PROGRAM
