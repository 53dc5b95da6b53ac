#!/usr/bin/env bash
# Finding: TensorFlow Datasets stores float64 features as float32, and returns them as float64.
#
# Versions: tensorflow-datasets 4.9.10, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: a feature that is declared as float64 is written to a list of 32-bit floats. The reader casts it back, so
# type and shape are as declared, and 29 of 53 binary digits are gone. Times in seconds since 1970 move by up to 64
# seconds, whole numbers beyond 2**24 become even, and values beyond 3.4e38 infinite. Rows then sort and join by time
# otherwise than in the source. `encoding="bytes"` stores float64 exactly; uint64 is exact anyway. There is no warning.
# Output seen: 1000 times, a second apart, are read as float64 with 9 different values, up to 64 seconds off;
# 1e300 is read as inf, 16777217.0 as 16777216.0; with encoding="bytes" all are exact
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    tensorflow-datasets==4.9.10 tensorflow-cpu==2.21.0 numpy==2.3.5 importlib_resources
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

TIMES = 1_790_000_000.0 + np.arange(1000)
features = tfds.features.FeaturesDict(
    {
        "plain": tfds.features.Tensor(shape=(3,), dtype=np.float64),
        "exact": tfds.features.Tensor(shape=(3,), dtype=np.float64, encoding="bytes"),
    }
)
values = np.stack([TIMES, np.full(1000, 1e300), np.full(1000, 2.0**24 + 1)], axis=1)
builder = tfds.dataset_builders.store_as_tfds_dataset(
    name="events",
    version="1.0.0",
    data_dir="data",
    features=features,
    split_datasets={"train": tf.data.Dataset.from_tensor_slices({"plain": values, "exact": values})},
)
rows = list(tfds.as_numpy(builder.as_dataset(split="train")))
plain, exact = (np.stack([row[name] for row in rows]) for name in ("plain", "exact"))
assert plain.dtype == exact.dtype == np.float64, "the behaviour has changed"
assert np.array_equal(np.sort(exact[:, 0]), TIMES), "the behaviour has changed"
off, different = np.abs(plain[:, 0] - exact[:, 0]).max(), len(np.unique(plain[:, 0]))
print(f"{len(rows)} times, a second apart, are read as {plain.dtype} with {different} different values, ", end="")
print(f"up to {off:.0f} seconds off; 1e300 is read as {plain[0, 1]}, {exact[0, 2]} as {plain[0, 2]}; ", end="")
print('with encoding="bytes" all are exact')
with np.errstate(over="ignore"):
    assert np.array_equal(plain, exact.astype(np.float32).astype(np.float64)), "the behaviour has changed"
PROGRAM
