"""Inputs that depend on what was read before training resumes: epochs of tf.data, steps of a validation."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.callbacks.backup.fit_position import where_next_begins
from tfdist.compat.tensorflow import tf_data

_Made = Callable[[tf.data.Dataset], tf.data.Dataset]


def shuffled(rows: tf.data.Dataset) -> tf.data.Dataset:
    return rows.shuffle(4, seed=1)


def counting(rows: tf.data.Dataset) -> tf.data.Dataset:
    count = tf.Variable(0)
    return rows.map(lambda x: x + tf.cast(count.assign_add(1), tf.int64))


def in_python(rows: tf.data.Dataset) -> tf.data.Dataset:
    return rows.map(lambda x: tf.numpy_function(np.negative, [x], tf.int64))


def joined(rows: tf.data.Dataset) -> tf.data.Dataset:
    """Join more datasets one by one, and to themselves, than Python calls functions in functions."""
    several = functools.reduce(lambda before, _: before.concatenate(rows), range(500), rows)
    return functools.reduce(lambda before, _: before.concatenate(before), range(30), several)


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
        (joined, False),
    ],
)
def test_what_an_earlier_iteration_leaves_behind_is_seen(made: _Made, expected: bool) -> None:
    assert tf_data.reading_matters(made(tf.data.Dataset.range(4)).prefetch(1)) == expected


@pytest.mark.parametrize(("steps", "consumed"), [(0, 0), (2, 0), (3, 6)])
def test_a_validation_of_some_steps_begins_where_the_one_before_began(
    tmp_path: Path, steps: int, consumed: int
) -> None:
    tfdist.data.write({"x": np.zeros((6, 1), np.float32)}, tmp_path / "data", processes=1)
    reading = tfdist.data.read(tmp_path / "data", global_batch_size=2)
    reading.begin()  # as the replicas of a strategy do
    for _ in range(steps):
        reading.handed_out()
    assert where_next_begins(reading)["consumed"] == consumed
    next(iter(reading))  # as without a strategy: nobody counts
    assert where_next_begins(reading) == reading.state(batches=0)
