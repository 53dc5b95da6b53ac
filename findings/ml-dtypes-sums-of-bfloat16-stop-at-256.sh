#!/usr/bin/env bash
# Finding: NumPy's sum of a bfloat16 array stops at 256, and its mean of a thousand ones is 0.256.
#
# Versions: NumPy 2.3.5, ml_dtypes 0.5.4, Python 3.11.
# Behaviour: the sum of ml_dtypes' types is accumulated in the type itself, one element after the other. In bfloat16,
# 256 + 1 is 256; in float8_e4m3fn, 16 + 1 is 16. For float16 NumPy sums pairwise, and mean accumulates in float32, so
# the same code is right there. A test that checks a bfloat16 reduction with NumPy checks it against this. np.dot and a
# cast to float32 before the sum are right. np.save keeps such an array as raw bytes: it is loaded with dtype |V2.
# Output seen: bfloat16: sum 256, mean 0.256, dot 1000; float8_e4m3fn: sum 16; float16: sum 1000; loaded as |V2
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.3.5 ml-dtypes==0.5.4
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import io

import ml_dtypes
import numpy as np

ones = np.ones(1000, ml_dtypes.bfloat16)
found = [float(ones.sum()), round(float(ones.mean()), 3), float(np.dot(ones, ones))]
found += [float(ones.astype(ml_dtypes.float8_e4m3fn).sum()), float(ones.astype(np.float16).sum())]
file = io.BytesIO()
np.save(file, ones)
file.seek(0)
kind = np.load(file).dtype.str
shown = "bfloat16: sum {:.0f}, mean {}, dot {:.0f}; float8_e4m3fn: sum {:.0f}; float16: sum {:.0f}; loaded as {}"
print(shown.format(*found, kind))
assert [*found, kind] == [256, 0.256, 1000, 16, 1000, "|V2"], "the behaviour has changed"
PROGRAM
