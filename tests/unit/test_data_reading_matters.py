"""Which pipelines of tf.data have to be read again, epoch by epoch, before training resumes in a later one."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.tensorflow import tf_data

_Made = Callable[[tf.data.Dataset], tf.data.Dataset]


def shuffled(rows: tf.data.Dataset) -> tf.data.Dataset:
    return rows.shuffle(4, seed=1)


def counting(rows: tf.data.Dataset) -> tf.data.Dataset:
    count = tf.Variable(0)
    return rows.map(lambda x: x + tf.cast(count.assign_add(1), tf.int64))


def in_python(rows: tf.data.Dataset) -> tf.data.Dataset:
    return rows.map(lambda x: tf.numpy_function(np.negative, [x], tf.int64))


def looked_up(rows: tf.data.Dataset) -> tf.data.Dataset:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2], tf.int64, tf.int64), 0)
    return rows.map(table.lookup)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (shuffled, False),
        (lambda rows: shuffled(rows.repeat(2).cache()).batch(2), False),
        (lambda rows: shuffled(rows).repeat(2), True),
        (lambda rows: shuffled(rows).batch(2).cache(), True),
        (lambda rows: rows.interleave(lambda x: shuffled(tf.data.Dataset.range(x))), True),
        (lambda rows: rows.interleave(lambda x: tf.data.Dataset.range(x)), False),
        (lambda rows: rows.map(lambda x: x + tf.random.uniform([], 0, 2, tf.int64)), False),
        (counting, True),
        (in_python, True),
        (looked_up, False),
    ],
)
def test_what_an_earlier_iteration_leaves_behind_is_seen(made: _Made, expected: bool) -> None:
    assert tf_data.reading_matters(made(tf.data.Dataset.range(4)).prefetch(1)) == expected
