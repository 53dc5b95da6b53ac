#!/usr/bin/env bash
# Finding: one NaN leaves an array of bfloat16 unsorted, and its median is a number.
#
# Versions: ml_dtypes 0.5.4, NumPy 2.3.5, Python 3.11.
# Behaviour: NumPy's sorts put NaN last, and its functions rely on that. The types of ml_dtypes treat a NaN as equal to
# everything, so a sort moves no value past it, and the numbers around it stay unsorted. `unique` returns some values
# several times. `median` and `quantile` look for a NaN at the end, find none, and return the number in the middle; in
# float32 they return NaN. Weights of a run that diverged in one element are such arrays, and their statistics look
# normal. float8_e4m3fn and float8_e5m2 behave alike. Nothing is raised, and there is no warning.
# Output seen: bfloat16: sort [3, nan, 1, 2, nan, 0, 1], median 2, unique 7; float32: sort [0, 1, 1, 2, 3, nan, nan],
# median nan, unique 5; 10,000 numbers with 10 NaN: median -0.0114, sorted at 5 places not
# The script fails if that changes; the numbers of the last line may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.3.5 ml-dtypes==0.5.4
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import ml_dtypes
import numpy as np

values = np.array([3, np.nan, 1, 2, np.nan, 0, 1], "float32")


def described(array):
    """Return an array in its order, its median, and the number of its unique values."""
    ordered = [f"{value:.0f}" for value in np.sort(array).astype("float32")]
    return ordered, float(np.median(array)), len(np.unique(array))


for name, array in (("bfloat16", values.astype(ml_dtypes.bfloat16)), ("float32", values)):
    ordered, median, unique = described(array)
    print(f"{name}: sort [{', '.join(ordered)}], median {median:.0f}, unique {unique}; ", end="")
for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
    found = described(values.astype(dtype))
    assert found == (["3", "nan", "1", "2", "nan", "0", "1"], 2, 7), "the behaviour has changed"
assert described(values)[0] == ["0", "1", "1", "2", "3", "nan", "nan"] and np.isnan(median) and unique == 5

many = np.random.default_rng(0).normal(size=10_000).astype(ml_dtypes.bfloat16)
assert np.all(np.diff(np.sort(many).astype("float32")) >= 0)  # without a NaN it sorts
many[::1000] = np.nan
numbers = np.sort(many).astype("float32")
falls = int(np.sum(np.diff(numbers[~np.isnan(numbers)]) < 0))
median = float(np.median(many))
print(f"10,000 numbers with 10 NaN: median {median:.4f}, sorted at {falls} places not")
assert falls > 0 and not np.isnan(median), "the behaviour has changed"
PROGRAM
