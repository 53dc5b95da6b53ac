#!/usr/bin/env bash
# Finding: a virtual HDF5 dataset returns zeros for a source file that is missing.
#
# Versions: h5py 3.14.0, NumPy 2.3.5, Python 3.11.
# Behaviour: a virtual dataset maps rows to other files, as detectors and simulations write them. If a file is absent, or
# has no dataset of that name, its rows read as the fill value (zero unless one was given), without an error or a
# warning. A copy that left one file behind trains on zeros. `virtual_sources()` lists the files, so a reader can look.
# Output seen: [1, 2, 3, 4, 0, 0, 0, 0]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check h5py==3.14.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import h5py
import numpy as np

layout = h5py.VirtualLayout((8,), "int64")
for number, name in enumerate(("first.h5", "second.h5")):
    layout[4 * number : 4 * number + 4] = h5py.VirtualSource(name, "x", (4,))
with h5py.File("all.h5", "w") as everything:
    everything.create_virtual_dataset("x", layout)
with h5py.File("first.h5", "w") as first:
    first["x"] = np.arange(1, 5)
with h5py.File("all.h5") as everything:
    found = everything["x"][:].tolist()
print(found)
assert found == [1, 2, 3, 4, 0, 0, 0, 0], "the behaviour has changed"
PROGRAM
