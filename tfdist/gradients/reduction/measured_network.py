"""Measure the network between workers and the speed of codecs, for the choice of codecs."""

import statistics
import time
from collections.abc import Sequence
from functools import cache

import tensorflow as tf

from tfdist.collectives import buckets, keys
from tfdist.collectives.collective import Collective
from tfdist.compression import seeds
from tfdist.compression.auto_choice import Cost, Link
from tfdist.compression.codec import Codec, reduced_bytes
from tfdist.compression.codec_exchange import by_itself
from tfdist.compression.codecs.casting import Whole

_FEW_BYTES, _MANY_BYTES = 4 << 10, 1 << 20
_SIDES = 32, 768  # of the matrices that codecs are tried on
_TIMES = 5


def agreed_link(collective: Collective) -> Link:
    """Return what is between the members of a group, of which there are several, as the first one finds it.

    All of them call it.
    """
    few, many = (buckets.measured_seconds(collective, size) for size in (_FEW_BYTES, _MANY_BYTES))
    sent = reduced_bytes(_MANY_BYTES - _FEW_BYTES, 1, collective.size)
    return Link(*_of_the_first(collective, [few, max(many - few, 1e-9) / sent]))


def agreed_costs(collective: Collective, codecs: Sequence[Codec]) -> list[Cost]:
    """Return what each codec computes while all members compute, as the first one finds it; all of them call it."""
    mine = [_cost(codec, collective.size) for codec in codecs]
    numbers = _of_the_first(
        collective, [number for cost in mine for number in (cost.seconds, cost.seconds_per_element)]
    )
    return [Cost(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]


def _of_the_first(collective: Collective, numbers: Sequence[float]) -> list[float]:
    values = collective.broadcast(tf.constant(numbers, tf.float64), key=keys.EAGER)
    return [float(value) for value in values.numpy()]


@cache
def _cost(codec: Codec, members: int) -> Cost:
    """Return what a codec computes of a small and of a large matrix of random numbers."""
    if isinstance(codec, Whole):
        return Cost()
    few, many = ((side * side, _seconds(codec, members, side)) for side in _SIDES)
    return Cost.of(few, many)


def _seconds(codec: Codec, members: int, side: int) -> float:
    spec = tf.TensorSpec([side, side], tf.float32)
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
    return statistics.median(taken[1:])
