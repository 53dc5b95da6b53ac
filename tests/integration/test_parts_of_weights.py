"""Parts of variables that are read and written where they lie, beside NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.traced import TracedCollective
from tfdist.gradients.outer import meeting_kinds, worker_weights
from tfdist.gradients.outer.meeting_schedules import DiLoCo, Event, Gossip, Synchronization
from tfdist.gradients.outer.meetings import Group

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


@pytest.mark.parametrize("schedule", [Gossip(), Gossip(push_sum=True), DiLoCo(every=2)], ids=str)
def test_a_meeting_keeps_all_digits_of_float64(schedule: Synchronization) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, dtype="float64"), keras.layers.Dense(1)])
    given = [np.random.default_rng(0).normal(size=one.shape).astype(one.dtype) for one in model.weights]
    model.set_weights(given)
    group = Group(TracedCollective(LocalCollective(), bucket_bytes=1 << 20), share=1.0)
    meeting = meeting_kinds.meeting_of(schedule, group, model)
    meeting.make()
    meeting.perform(Event("meet"))
    for found, expected in zip(model.get_weights(), given, strict=True):
        np.testing.assert_array_equal(found, expected)
