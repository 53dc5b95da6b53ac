#!/usr/bin/env bash
# Finding: if a segment has no row, a compiled `keras.ops.segment_sum` loses the rows of the last segments.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: without `num_segments`, the number of segments should follow from the largest id, as documented, and it
# does in `segment_max` and in the NumPy backend. On TensorFlow `segment_sum` counts the different ids. Each segment
# without a row therefore shortens the result by one, and rows of ids beyond its end are added to nothing. Compiled by
# XLA, which is Keras' default where there is a GPU, nothing is raised; on a CPU without XLA an error is. Graphs without
# nodes and users without a purchase are such segments, so it depends on the batch. Pass `num_segments`.
# Output seen: 1000 rows in 1000 segments at random, the last one with a row is 999: compiled, segment_sum has 622
# segments and 60.2% of the rows, segment_max 1000; with num_segments 1000 and 100.0%
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np
import tensorflow as tf

COUNT = 1000
ids = np.random.default_rng(0).integers(0, COUNT, COUNT)
ids[0] = COUNT - 1
ones = np.ones(COUNT, "float32")


def compiled(reduce, **options):
    """Return the result for rows of one, compiled by XLA."""
    step = tf.function(lambda rows, segments: reduce(rows, segments, **options), jit_compile=True, autograph=False)
    return step(tf.constant(ones), tf.constant(ids)).numpy()


found = compiled(keras.ops.segment_sum)
largest = compiled(keras.ops.segment_max)
right = compiled(keras.ops.segment_sum, num_segments=COUNT)
print(f"{COUNT} rows in {COUNT} segments at random, the last one with a row is {ids.max()}: ", end="")
print(f"compiled, segment_sum has {len(found)} segments and {found.sum() / COUNT:.1%} of the rows, ", end="")
print(f"segment_max {len(largest)}; with num_segments {len(right)} and {right.sum() / COUNT:.1%}")
assert np.array_equal(right, np.bincount(ids)) and len(largest) == COUNT
assert len(found) == len(np.unique(ids)) and np.array_equal(found, np.bincount(ids)[: len(found)]), "it has changed"
try:
    keras.ops.segment_sum(ones, ids)
except tf.errors.InvalidArgumentError:
    pass
else:
    raise AssertionError("the behaviour has changed")
PROGRAM
