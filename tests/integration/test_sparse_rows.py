"""The kind of the rows of a sparse gradient, as read from the graph; that needs no replicas."""

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow import sparse_rows, sparse_sums
from tfdist.gradients.reduction import reducer
from tfdist.gradients.sharding.variable_parts import Stretch

pytestmark = pytest.mark.quick

ops = keras.ops
WORDS = tf.TensorSpec([None, None], tf.int32)
FIXED = tf.TensorSpec([4, 6], tf.int32)
RAGGED = tf.RaggedTensorSpec([None, None], tf.int32)


class Tables:
    """Variables that are looked up, and one that holds indices."""

    def __init__(self) -> None:
        self.table = tf.Variable(np.ones((50, 3), np.float32))
        self.other = tf.Variable(np.ones((50, 3), np.float32))
        self.numbers = tf.Variable(np.arange(6), trainable=False)
        self.constant = tf.constant(np.arange(7))

    def __call__(self, indices: Any) -> Any:
        return ops.take(self.table, indices, axis=0)

    def hidden(self, words: Any) -> Any:
        return ops.matmul(tf.nn.relu(tf.gather(self.other, words)), tf.ones([3, 3]))

    def drawn_from(self, words: Any) -> Any:
        self.numbers.assign(tf.cast(tf.reduce_sum(words) * tf.range(6), tf.int64))
        return self.numbers


OWN, COMMON, DISTINCT = sparse_rows.RowKind


def in_order(kinds: list[sparse_rows.RowKind]) -> list[sparse_rows.RowKind]:
    return sorted(kinds, key=list(sparse_rows.RowKind).index)


def judged(indices: Callable[[Tables, Any], Any], spec: Any) -> list[sparse_rows.RowKind]:
    """Return the kind of the rows of each lookup, sorted."""
    tables = Tables()
    found: list[sparse_rows.RowKind] = []

    @tf.function(input_signature=[spec], autograph=False)
    def step(words: Any) -> None:
        with tf.GradientTape() as tape:
            lookups = indices(tables, words)
            lookups = lookups if isinstance(lookups, list) else [lookups]
            loss = tf.add_n([tf.reduce_sum(tables(one)) for one in lookups])
        gradient = tape.gradient(loss, tables.table)
        found.extend(kind for _, kind in sparse_rows.parts(gradient.indices))

    step.get_concrete_function()
    return in_order(found)


@pytest.mark.parametrize(
    "indices",
    [
        lambda t, words: ops.arange(9),
        lambda t, words: ops.arange(9)[None],
        lambda t, words: np.array([1, 1, 2]),
        lambda t, words: t.constant,
        lambda t, words: t.numbers,
        lambda t, words: t.numbers[: tf.shape(words)[1]],
        lambda t, words: ops.arange(0, ops.shape(words)[-1]),
        lambda t, words: tf.range(tf.shape(tf.transpose(words))[0]),
        lambda t, words: tf.range(tf.shape(t.hidden(words))[1]),
        lambda t, words: tf.range(tf.shape(tf.reshape(t.hidden(words), [-1, tf.shape(words)[1], 3]))[1]),
        lambda t, words: tf.cumsum(tf.ones_like(words[0])) - 1,
        lambda t, words: tf.abs(tf.range(tf.shape(words)[1])[:, None] - tf.range(tf.shape(words)[1])[None]),
    ],
)
def test_indices_that_no_example_has_a_part_in_are_all_replicas(indices: Any) -> None:
    assert judged(indices, WORDS) == [COMMON]


@pytest.mark.parametrize(
    "indices",
    [
        lambda t, words: words,
        lambda t, words: ops.broadcast_to(ops.arange(ops.shape(words)[1])[None], ops.shape(words)),
        lambda t, words: tf.tile(tf.range(9)[None], [tf.shape(words)[0], 1]),
        lambda t, words: ops.zeros_like(words),
        lambda t, words: ops.cumsum(ops.ones_like(words), axis=1) - 1,
        lambda t, words: tf.argmax(t.hidden(words), axis=-1),
        lambda t, words: tf.random.uniform([4], 0, 9, tf.int32),
        lambda t, words: t.drawn_from(words),
        lambda t, words: tf.abs(tf.range(tf.reduce_max(words)) - 2),
        lambda t, words: tf.gather(tf.unique(words[0])[0], tf.unique(words[0])[1]),
        lambda t, words: tf.unique(words[0])[0][:, None] + tf.range(2),
        lambda t, words: tf.raw_ops.UniqueV2(x=words, axis=[0])[0],
    ],
)
def test_indices_of_examples_are_a_replicas_own(indices: Any) -> None:
    assert judged(indices, WORDS) == [OWN]


@pytest.mark.parametrize(
    "indices",
    [
        lambda t, words: tf.unique(tf.reshape(words, [-1]))[0],
        lambda t, words: tf.cast(tf.unique_with_counts(words[0])[0], tf.int64),
        lambda t, words: tf.raw_ops.UniqueV2(x=words[0], axis=[0])[0],
        lambda t, words: ops.unique(words),
        lambda t, words: ops.unique(words, size=8),
        lambda t, words: ops.unique(words)[1:] + 3,
        lambda t, words: tf.sort(tf.unique(words[0])[0]),
        lambda t, words: tf.boolean_mask(tf.unique(words[0])[0], tf.unique(words[0])[0] > 2),
        lambda t, words: tf.range(tf.reduce_max(words)),
        lambda t, words: ops.arange(ops.shape(words)[0]),
        lambda t, words: tf.range(tf.shape(tf.transpose(words))[1]),
        lambda t, words: tf.range(tf.shape(tf.reshape(t.hidden(words), [-1, 3]))[0]),
    ],
)
def test_indices_that_a_replica_has_once_are_distinct(indices: Any) -> None:
    assert judged(indices, WORDS) == [DISTINCT]


@pytest.mark.parametrize("spec", [WORDS, FIXED])
@pytest.mark.parametrize(
    "indices",
    [
        lambda whole: whole,
        lambda whole: tf.reshape(whole, [-1])[::2] % 7,
        lambda whole: tf.gather(whole, tf.argsort(whole[:, 0])),
        lambda whole: tf.boolean_mask(whole, whole > 2),
        lambda whole: tf.range(tf.shape(whole)[0]) + tf.size(whole),
        lambda whole: np.arange(12).reshape(4, 3) % 5,  # as many rows as there are in the one of a fixed size
    ],
)
def test_indices_of_an_input_that_replicas_have_whole_are_all_replicas(indices: Any, spec: Any) -> None:
    def of(tables: Tables, given: Any) -> Any:
        del tables
        return indices(sparse_rows.marked(tf.identity(given), COMMON))  # behind a stamp, as where steps are recorded

    assert judged(of, spec) == [COMMON]


def test_a_whole_input_with_as_many_rows_as_there_are_examples_is_all_replicas() -> None:
    @tf.function(input_signature=[FIXED], autograph=False)
    def kinds(given: Any) -> None:
        whole = sparse_rows.marked(given, COMMON)
        ((_, kind),) = sparse_rows.parts(tf.reshape(whole % 7, [-1]), examples=4)
        ((_, other),) = sparse_rows.parts(tf.reshape(given % 7, [-1]), examples=4)
        assert (kind, other) == (COMMON, OWN)

    kinds.get_concrete_function()


def test_rows_of_a_sparse_matrix_and_of_summed_lookups_are_distinct() -> None:
    kernel = tf.Variable(tf.ones([6, 2]))
    given = tf.sparse.from_dense(np.eye(4, 6, dtype=np.float32))
    found: list[sparse_rows.RowKind] = []

    @tf.function(autograph=False)
    def step(x: Any, words: Any) -> None:
        for compute in (
            lambda table: ops.matmul(x, table),
            lambda table: tf.sparse.segment_sum(table, words, tf.range(3), sparse_gradient=True),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(compute(kernel.read_value()))
            found.extend(kind for _, kind in sparse_rows.parts(tape.gradient(loss, kernel).indices))

    step.get_concrete_function(given, tf.range(3))
    assert found == [DISTINCT, DISTINCT]


@pytest.mark.parametrize(
    ("indices", "spec", "kind"),
    [
        (lambda t, words: ops.arange(6), FIXED, COMMON),
        (lambda t, words: ops.arange(6)[None], FIXED, COMMON),
        (lambda t, words: ops.broadcast_to(ops.arange(6)[None], ops.shape(words)), FIXED, OWN),
        (lambda t, words: ops.zeros_like(words), FIXED, OWN),
        (lambda t, words: words, FIXED, OWN),
        (lambda t, words: tf.unique(tf.reshape(words, [-1]))[0], FIXED, DISTINCT),
        (lambda t, words: tf.range(tf.shape(words.to_tensor())[1]), RAGGED, DISTINCT),
    ],
)
def test_batches_of_a_fixed_size_and_ragged_ones(indices: Any, spec: Any, kind: sparse_rows.RowKind) -> None:
    assert judged(indices, spec) == [kind]


@pytest.mark.parametrize(
    ("indices", "kinds"),
    [
        (
            lambda t, words: [words, ops.arange(5), tf.range(tf.shape(words)[1]), words[:, :1]],
            [OWN, OWN, COMMON, COMMON],
        ),
        (lambda t, words: [words, tf.range(5, dtype=tf.int64)], [OWN, COMMON]),
        (lambda t, words: tf.concat([tf.reshape(words, [-1]), tf.range(4)], axis=0), [OWN, COMMON]),
        (
            lambda t, words: [tf.unique(words[0])[0], words, tf.range(4), tf.range(words[0, 0])],
            [OWN, COMMON, *2 * [DISTINCT]],
        ),
    ],
)
def test_each_lookup_of_one_table_is_judged_by_itself(indices: Any, kinds: list[sparse_rows.RowKind]) -> None:
    assert judged(indices, WORDS) == kinds


def test_inside_a_loop_and_without_a_graph() -> None:
    tables = Tables()
    found: list[sparse_rows.RowKind] = []

    @tf.function(input_signature=[WORDS])
    def step(words: Any) -> None:
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tables(words)) + tf.reduce_sum(tables(tf.range(tf.shape(words)[1])))
            found.extend(kind for _, kind in sparse_rows.parts(tape.gradient(loss, tables.table).indices))

    step.get_concrete_function()
    assert in_order(found) == [OWN, COMMON]
    assert [kind for _, kind in sparse_rows.parts(tf.range(3))] == [OWN]


@pytest.mark.parametrize("length", [0, 1, 5])
def test_rows_that_travel_with_their_place_are_added_up_by_it(length: int) -> None:
    indices = tf.constant([7, 3, 7, 0, 49][:length], tf.int64)
    values = tf.reshape(tf.range(length * 2, dtype=tf.float32), [length, 2])
    sent = sparse_sums._numbered(tf.IndexedSlices(values, indices, tf.constant([50, 2])))
    # of three replicas, one of which has a row less
    parts = [(sent.values, sent.indices), (2 * sent.values, sent.indices), (sent.values[:-1], sent.indices[:-1])]
    arrived = tf.IndexedSlices(*(tf.concat(every, axis=0) for every in zip(*parts, strict=True)), tf.constant([50, 2]))
    summed = sparse_sums._by_number(arrived, tf.int64)
    assert summed.indices.numpy().tolist() == indices.numpy().tolist()
    last = np.arange(length)[:, None] == length - 1
    np.testing.assert_array_equal(summed.values, np.where(last, 3.0, 4.0) * values.numpy())


@pytest.mark.parametrize(
    ("height", "keep", "whole"),
    [(100, False, True), (100, True, False), (1 << 16, False, True), (1 << 17, False, False)],
)
def test_a_small_table_travels_whole_unless_its_rows_matter(height: int, keep: bool, whole: bool) -> None:
    two: Any = types.SimpleNamespace(size=2, rank=0)
    rows = tf.IndexedSlices(tf.ones([3, 4]), tf.constant([1, 1, 2]), tf.constant([height, 4]))
    carried = TracedCollective(two, bucket_bytes=1 << 22).carried(rows, keep_duplicate_indices=keep)
    assert isinstance(carried, tf.Tensor) is whole
    assert not whole or carried[:3, 0].numpy().tolist() == [0, 2, 1]


@pytest.mark.parametrize("make", [keras.optimizers.Adam, keras.optimizers.SGD])
def test_rows_matter_where_keras_makes_another_update_of_their_sum(make: Callable[[float], Any]) -> None:
    """Compare an update by rows of one index with one by the table that they add up to, on one device."""
    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([1, 1]), tf.constant([3, 1]))
    updated = []
    for gradient in (rows, tf.convert_to_tensor(rows)):
        table, optimizer = keras.Variable(tf.zeros([3, 1])), make(0.1)
        optimizer.apply([gradient], [table])
        updated.append([table.numpy(), *(one.numpy() for one in optimizer.variables)])
    same = all(np.allclose(one, other) for one, other in zip(*updated, strict=True))
    assert same is not reducer.keeps_duplicate_indices(make(0.1))


def test_rows_of_a_table_with_more_elements_than_an_int32_counts_reach_their_part() -> None:
    shape, row = (3_000_000, 1024), 2_900_000
    for index, size in ((1, 2), (0, 1)):
        part = Stretch(shape, index, size)
        rows = tf.IndexedSlices(tf.ones([1, 1024]), tf.constant([row]), tf.constant(shape))
        mine = tf.function(part.of)(rows)
        np.testing.assert_array_equal(mine.indices, row * 1024 + np.arange(1024) - part.bounds[0])
        assert mine.values.shape == (1024,)
        assert mine.dense_shape.numpy().tolist() == list(part.shape)
