#!/usr/bin/env bash
# Finding: HDF5 1.14.6 cannot read images that it wrote with scale-offset, although the file is whole.
#
# Versions: h5py 3.14.0 (HDF5 1.14.6), h5py 3.16.0 (HDF5 2.0.0), NumPy 2.3.5, Python 3.11.
# Behaviour: scaleoffset=0 stores integers without loss, in as many bits as the values of a chunk need. If they need all
# bits of their type, the filter copies the chunk. Reading then fails with "filter returned failure during read", as if
# the file were damaged. Bytes need all eight bits where they span more than 127, as the pixels of most images do. So a
# data set is written without an error; its images of little contrast can be read, and the others cannot. The bytes in
# the file are right: HDF5 2.0.0 reads them. A newer h5py is the way out; the file needs no repair.
# Output seen: HDF5 1.14.6 reads pixels 0 to 100: True; 0 to 255: False; HDF5 2.0.0 reads the same file: True
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 3.14.0 3.16.0; do
    python3.11 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet --disable-pip-version-check h5py==$version numpy==2.3.5
done
cd "$folder"
cat > reads.py <<'PROGRAM'
import h5py
import numpy as np


def reads(brightest):
    """Say whether the image up to this brightness is what was written; None if HDF5 cannot read it."""
    with h5py.File("images.h5") as file:
        try:
            return bool(np.array_equal(file[str(brightest)][:], np.arange(brightest + 1, dtype=np.uint8)))
        except OSError:
            return None


if __name__ == "__main__":
    print(h5py.version.hdf5_version, reads(255))
PROGRAM
"$folder/3.14.0/bin/python" - <<'PROGRAM'
import subprocess

import h5py
import numpy as np
from reads import reads

with h5py.File("images.h5", "w") as file:
    for brightest in (100, 255):
        image = np.arange(brightest + 1, dtype=np.uint8)
        file.create_dataset(str(brightest), data=image, chunks=image.shape, scaleoffset=0)
old, new = [reads(100), reads(255)], subprocess.check_output(["3.16.0/bin/python", "reads.py"], text=True).split()
print(f"HDF5 {h5py.version.hdf5_version} reads pixels 0 to 100: {old[0]}; 0 to 255: {old[1] is True}; ", end="")
print(f"HDF5 {new[0]} reads the same file: {new[1]}")
assert (h5py.version.hdf5_version, old) == ("1.14.6", [True, None]), "the behaviour has changed"
assert new == ["2.0.0", "True"], "the behaviour has changed"
PROGRAM
