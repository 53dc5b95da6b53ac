"""Eager tensors in a checkpoint: every dtype comes back, and none is copied on its way into the file."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdist.checkpoint import Store
from tfdist.checkpoint.safetensors_file import as_arrays

DTYPES = (tf.float64, tf.float32, tf.float16, tf.bfloat16, tf.int64, tf.int32, tf.uint8, tf.bool)


@pytest.mark.quick
def test_eager_tensors_come_back(tmp_path: Path) -> None:
    given = {dtype.name: tf.cast([[0.0, 1.0, 3.0]], dtype) for dtype in DTYPES}
    given |= {"scalar": tf.constant(7), "empty": tf.zeros((0, 3))}
    Store(tmp_path).save(1, given, {})
    found = Store(tmp_path).newest()
    assert found is not None
    assert found.arrays.keys() == given.keys()
    for name, tensor in given.items():
        restored = tf.constant(found.arrays[name])
        assert (restored.dtype, restored.shape) == (tensor.dtype, tensor.shape)
        assert bool(tf.reduce_all(restored == tensor))


@pytest.mark.quick
def test_tensors_are_not_copied() -> None:
    tensor = tf.zeros((1000, 1000))
    assert np.shares_memory(as_arrays({"x": tensor})["x"], np.asarray(tensor))
