"""What a choice of codecs stands on: the network between workers, and what codecs compute, as measured here."""

import statistics
import time
from collections.abc import Sequence
from functools import cache

import tensorflow as tf

from tfdist.collectives import buckets, keys
from tfdist.collectives.base import Collective
from tfdist.compression import seeds
from tfdist.compression.choice import Link
from tfdist.compression.codec import Codec, reduced_bytes
from tfdist.compression.codecs.casting import Whole
from tfdist.compression.exchange import by_itself

_FEW_BYTES, _MANY_BYTES = 4 << 10, 1 << 20
_SIDE = 768  # of the matrix that codecs are tried on
_TIMES = 3


def link_between(collective: Collective) -> Link:
    """Return what is between the members of a group, of which there are several; all of them call it."""
    few, many = (buckets.measured_seconds(collective, size) for size in (_FEW_BYTES, _MANY_BYTES))
    sent = reduced_bytes(_MANY_BYTES - _FEW_BYTES, 1, collective.size)
    return Link(few, max(many - few, 1e-9) / sent)


def agreed(collective: Collective, numbers: Sequence[float]) -> list[float]:
    """Return the numbers of the first member."""
    values = collective.broadcast(tf.constant(numbers, tf.float64), key=keys.EAGER)
    return [float(value) for value in values.numpy()]


@cache
def seconds_per_element(codec: Codec, members: int) -> float:
    """Return what a codec computes for each element of a gradient, encoding and decoding all that a member does.

    Args:
        codec: is given a matrix of random numbers.
        members: number of members.
    """
    if isinstance(codec, Whole):
        return 0.0
    spec = tf.TensorSpec([_SIDE, _SIDE], tf.float32)
    state = tuple(one.initial for one in codec.init(spec))
    matrix = tf.random.stateless_normal(spec.shape, (1, 2))

    @tf.function(autograph=False)
    def compute(tensor: tf.Tensor) -> list[tf.Tensor]:
        end = by_itself(codec.exchange(tensor, state, seeds.context(0, members)), members)
        return [end.total, *end.state]

    taken = []
    for _ in range(1 + _TIMES):
        began = time.perf_counter()
        compute(matrix)[0].numpy()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:]) / _SIDE**2
