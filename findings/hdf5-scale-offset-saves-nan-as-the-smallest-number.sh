#!/usr/bin/env bash
# Finding: HDF5's scale-offset filter saves NaN as the smallest number of the chunk.
#
# Versions: h5py 3.14.0 (HDF5 1.14.6), NumPy 2.3.5, Python 3.11.
# Behaviour: scaleoffset=2 keeps two decimals of floats, and stores them as small integers above the smallest number of
# the chunk. NaN has no place there: it becomes 0, so reading gives that smallest number. A sensor's missing value is a
# measurement then, another one in every chunk, and a mask of NaN made later finds none. Neither writing nor reading
# fails. If NaN is the first value of its chunk, or one value is infinite, writing does not fail either, but the chunk
# cannot be read. gzip and the other lossless filters keep NaN.
# Output seen: 20.25, nan, 21.50, 19.75 become 20.25, 19.75, 21.50, 19.75; nan, 20.25 cannot be read; gzip keeps NaN
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


def saved(*values, **filters):
    """Return what is read after these values were written as one chunk, or None if it cannot be read."""
    with h5py.File("data.h5", "w") as file:
        file.create_dataset("x", data=np.array(values, np.float32), chunks=(len(values),), **filters)
    with h5py.File("data.h5") as file:
        try:
            return file["x"][:].tolist()
        except OSError:
            return None


values = (20.25, np.nan, 21.5, 19.75)
found, first = saved(*values, scaleoffset=2), saved(np.nan, 20.25, scaleoffset=2)
lossless = saved(*values, compression="gzip", shuffle=True, fletcher32=True)
print(*[f"{value:.2f}" for value in values], sep=", ", end=" become ")
print(*[f"{value:.2f}" for value in found], sep=", ", end="; ")
print(f"nan, 20.25 {'cannot be read' if first is None else first}; gzip keeps NaN")
assert np.isnan(lossless[1])
assert np.allclose(found, (20.25, 19.75, 21.5, 19.75)) and first is None, "the behaviour has changed"
PROGRAM
