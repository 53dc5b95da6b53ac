"""Functions of a user's own around `strategy.run`, in a worker process with two logical CPUs."""

from typing import Any

import tensorflow as tf
from mirrored_cases import STRATEGY, X, Y, model


def iterators_inside_functions() -> list[float]:
    """Functions that make an iterator themselves, whose last batch is partial, and run twice for each batch."""
    totals = []
    for rows in range(3, 9):
        data = tf.data.Dataset.from_tensor_slices(tf.range(float(rows))).batch(2)
        distributed = STRATEGY.experimental_distribute_dataset(data)

        @tf.function
        def epoch(distributed: Any, batches: int) -> Any:
            iterator, total = iter(distributed), 0.0
            for _ in range(batches):
                batch = next(iterator)
                for _ in range(2):
                    total += STRATEGY.reduce("SUM", STRATEGY.run(tf.reduce_sum, (batch,)), axis=None)
            return total

        totals += [float(epoch(distributed, (rows + 1) // 2)) for _ in range(3)]
    return totals


def two_runs_in_a_function() -> dict[str, Any]:
    """Train in one `run` and predict in another, on batches of 4, 4 and 3; reduce and gather what they return."""
    with STRATEGY.scope():
        network = model()
    optimizer = network.optimizer
    optimizer.build(network.trainable_variables)
    seen = []

    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((network(x, training=True) - y) ** 2)
        optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)
        return loss

    def both(x: Any, y: Any) -> Any:
        losses = STRATEGY.run(train, (x, y))
        total = STRATEGY.reduce("SUM", losses, axis=None)
        rows = STRATEGY.run(lambda x, y: network(x) + y, (x, y))
        return total, STRATEGY.reduce("MEAN", rows, axis=0), STRATEGY.gather(rows, axis=0)

    data = tf.data.Dataset.from_tensor_slices((X[:11], Y[:11])).batch(4)
    distributed = STRATEGY.experimental_distribute_dataset(data)
    step = tf.function(both)
    for x, y in distributed:
        _, mean, rows = step(x, y)
        seen.append([float(mean[0]), float(tf.reduce_mean(rows)), len(rows)])
    again = iter(distributed)
    next_step = tf.function(lambda: both(*next(again)))
    for _ in range(3):
        _, mean, rows = next_step()
        seen.append([float(mean[0]), float(tf.reduce_mean(rows)), len(rows)])
    return {"rows": [rows for *_, rows in seen], "apart": max(abs(mean - other) for mean, other, _ in seen)}
