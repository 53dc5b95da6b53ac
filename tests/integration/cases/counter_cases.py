"""Cases of variables whose copies are added up when they are read, as those of metrics are."""

from typing import Any

import keras
import tensorflow as tf
from mirrored_cases import STRATEGY


def counts_are_reset() -> dict[str, Any]:
    """Return the values of a counter after assignments, and how often copies were added up for a reset."""
    with STRATEGY.scope():
        metric = keras.metrics.MeanSquaredError()
        on_read, added = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.SUM
        count = tf.Variable(0.0, synchronization=on_read, aggregation=added)
    STRATEGY.run(lambda: metric.update_state([[1.0]], [[3.0]]))
    before = float(metric.result())
    reductions: list[Any] = []
    reduce = STRATEGY.extended._reduce_to

    def counted(*given: Any, **options: Any) -> Any:
        reductions.append(given)
        return reduce(*given, **options)

    STRATEGY.extended._reduce_to = counted
    try:
        metric.reset_state()
        of_reset = len(reductions)
        float(metric.total.numpy())
    finally:
        del STRATEGY.extended._reduce_to
    assert len(reductions) > of_reset, "a read adds up copies"
    assigned = float(count.assign(4.0))
    copies = [float(one) for one in STRATEGY.experimental_local_results(STRATEGY.run(count.read_value))]
    inside = STRATEGY.run(lambda: count.assign(5.0) + 0.0)
    summed = float(count.numpy())
    traced = float(tf.function(lambda: count.assign(8.0) + 1.0)())
    return {
        "before": before,
        "after": [float(metric.total.numpy()), float(metric.count.numpy())],
        "reductions": of_reset,
        "assigned": [assigned, copies, list(map(float, STRATEGY.experimental_local_results(inside))), summed, traced],
    }
