"""Measure the speed of codecs, for the choice of codecs."""

import statistics
import time
from collections.abc import Sequence
from functools import cache

import tensorflow as tf

from tfdist.collectives import keys
from tfdist.collectives.collective import Collective
from tfdist.compression import seeds
from tfdist.compression.auto_choice import Cost
from tfdist.compression.codec import Codec
from tfdist.compression.codec_exchange import by_itself
from tfdist.compression.codecs.casting import Whole

_SIDES = 32, 768  # of the matrices that codecs are tried on
_TIMES = 5


def agreed_costs(collective: Collective, codecs: Sequence[Codec]) -> list[Cost]:
    """Return what each codec computes while all members compute, as the first one finds it; all of them call it."""
    mine = [_cost(codec, collective.size) for codec in codecs]
    flat = tf.constant([number for cost in mine for number in (cost.seconds, cost.seconds_per_element)], tf.float64)
    numbers = collective.broadcast(flat, key=keys.EAGER).numpy().tolist()
    return [Cost(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]


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
