"""Parts of variables that are read and written where they lie, beside NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.gradients.outer import worker_weights

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (4, 1), (2, 3, 4)], ids=str)
def test_a_part_is_read_and_written_and_the_rest_stays(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape, dtype=int))
    expected = np.arange(size, dtype=np.float32)
    variable = keras.Variable(expected.reshape(shape))
    for begin, end in ((0, size), (size // 2, size), (0, (size + 1) // 2), (size // 3, size // 3 + 1)):
        values = np.random.default_rng(end).normal(size=end - begin).astype(np.float32)
        worker_weights.write_part(variable, begin, tf.constant(values))
        expected[begin:end] = values
        assert variable.numpy().ravel().tolist() == expected.tolist()
        assert worker_weights.read_part(variable, begin, end, tf.float32).numpy().tolist() == values.tolist()


def test_what_was_read_stays_and_later_reads_do_not_copy() -> None:
    variable = keras.Variable(np.zeros((64, 8), np.float32))
    (before,) = worker_weights.read([variable])
    worker_weights.write_part(variable, 3, tf.ones(200))
    assert not before.numpy().any()
    assert variable.numpy().sum() == 200
    one, other = (np.asarray(memoryview(worker_weights.read([variable])[0])) for _ in range(2))
    assert np.shares_memory(one, other), "a step would copy its weights"
