"""The measurement of the link between the members of a collective, the only one behind all predictions."""

import statistics
import time

import tensorflow as tf

from tfdist.collectives import traced
from tfdist.collectives.collective import Collective
from tfdist.planner.planner_link import Link

FEW_BYTES = 4 << 10
_FEWEST = 10  # the first dozen all_reduces takes several times as long
_MOST_PER_SECOND = 240
# A member that begins late finds the others' numbers there, and then they wait for its own. So sums take more and less
# time in turn, and their mean is the time of members that begin together.
_TOGETHER = 2


def measured_link(collective: Collective, many_bytes: int, *, seconds: float = 0.25, buckets: int = 1) -> Link:
    """Return the link between at least two members, as measured by the first one; all members call this.

    The larger of two sums has ``many_bytes`` in ``buckets`` parts that are under way at the same time, as buckets of
    gradients are: the next one uses the link while another waits for what others have added up. Each measurement takes
    ``seconds``.
    """
    size, is_direct = collective.size, collective.sends_directly
    few = FEW_BYTES, _all_reduce_seconds(collective, FEW_BYTES, seconds)
    many = many_bytes, _all_reduce_seconds(collective, many_bytes, seconds, buckets)
    found = Link.of_direct(few, many, size) if is_direct else _around(few, many, size)
    mine = tf.constant([found.latency_seconds, found.bytes_per_second], tf.float64)
    latency, rate = collective.broadcast(mine, key=traced.EAGER).numpy().tolist()
    return Link(latency_seconds=latency, bytes_per_second=rate, is_direct=is_direct)


def _around(few: tuple[int, float], many: tuple[int, float], members: int) -> Link:
    """Return the link of a ring, from the sizes and the seconds of two all_reduces."""
    as_of_two, steps = Link.of_all_reduces(few, many), members - 1
    rate = as_of_two.bytes_per_second * 2 * steps / members
    return Link(latency_seconds=as_of_two.latency_seconds / steps, bytes_per_second=rate)


def _all_reduce_seconds(collective: Collective, size: int, seconds: float, buckets: int = 1) -> float:
    ones = tf.ones([size // 4 // buckets])

    def once() -> list[tf.Tensor]:
        return collective.all_reduce([ones], key=traced.EAGER)

    @tf.function(autograph=False)
    def together() -> list[tf.Tensor]:
        keys = [traced.next_key([f"bucket {number} of the link"]) for number in range(buckets)]
        return [collective.all_reduce([ones], key=key)[0] for key in keys]

    reduce = once if buckets == 1 else together

    def taken() -> float:
        began = time.perf_counter()
        for _ in range(_TOGETHER):
            reduce()[0].numpy()
        return (time.perf_counter() - began) / _TOGETHER

    taken()  # sets up
    mine = min(taken() for _ in range(3))
    # all members repeat it equally often
    (slowest,) = collective.all_reduce([tf.constant(mine)], key=traced.EAGER, op="max")
    count = max(int(seconds * min(1 / float(slowest), _MOST_PER_SECOND)), _FEWEST) // _TOGETHER
    return statistics.median([taken() for _ in range(count)][count // 2 :])
