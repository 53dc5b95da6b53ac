"""Cases of native collectives between the replicas of one process; each runs in a worker of a pool."""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies
from tfdist import errors
from tfdist.collectives.backends import replica_collectives
from tfdist.collectives.backends.replica_collectives import TwoLevelCollective
from tfdist.compat.tensorflow.steps.replica_services import services


def _mirrored(collectives: str | None) -> tfdist.strategies.MirroredStrategy:
    tfdist.strategies.use_logical_cpus(2)
    return tfdist.strategies.MirroredStrategy(collectives=collectives)


def outcomes_of_steps(fails: list[bool]) -> list[str]:
    """Run steps of a loop of one's own in which the second replica fails, or not; say what came of each.

    The other replica waits then, in a loop or behind it, for sums that do not come.
    """
    strategy = _mirrored("native")

    @tf.function
    def step(bad: tf.Tensor) -> Any:
        def one() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            number = tf.cast(replica.replica_id_in_sync_group, tf.float32)
            first = replica.all_reduce("sum", tf.ones([3]) * (1.0 + number))
            asked = tf.where(bad & (number == 1.0), np.nan, 1.0)
            checked = tf.debugging.check_numerics(asked, "this replica fails")

            def doubled(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                return i + 1, replica.all_reduce("sum", total * checked)

            _, total = tf.while_loop(lambda i, _: i < 3, doubled, [0, first])
            return tf.cond(total[0] > 1.0, lambda: replica.all_reduce("sum", total), lambda: total)

        return strategy.run(one)

    found = []
    for bad in fails:
        try:
            sums = {float(total[0]) for total in strategy.experimental_local_results(step(tf.constant(bad)))}
            found.append(str(sorted(sums)))
        except tf.errors.InvalidArgumentError as error:
            found.append("this replica fails" if "this replica fails" in str(error) else str(error))
    return found


class Checked(keras.layers.Layer):
    """Fails for numbers that are not finite."""

    def call(self, inputs: Any) -> Any:
        return tf.debugging.check_numerics(inputs, "a row that is not finite")


def fits_around_a_failure() -> list[list[float]]:
    """Train a model under native collectives behind a `fit` in which one replica fails, and under TensorFlow's.

    Returns:
        The losses of both.
    """
    losses = []
    for collectives in ("native", "tensorflow"):
        strategy = _mirrored(collectives)
        keras.utils.set_random_seed(7)
        with strategy.scope():
            layers = [Checked(), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((4,)), *layers])
            model.compile("adam", "mse", steps_per_execution=2)
        table = np.random.RandomState(3).normal(size=(22, 4)).astype(np.float32)
        target = table.sum(axis=1)
        if collectives == "native":
            weights = model.get_weights()
            bad = np.where(np.arange(22)[:, None] < 15, table, np.inf)  # the second half of the second batch
            try:
                model.fit(bad, target, batch_size=8, shuffle=False, verbose=0)
                raise AssertionError("no replica failed")
            except tf.errors.InvalidArgumentError as error:
                if "a row that is not finite" not in str(error):
                    raise
            model.set_weights(weights)
            with strategy.scope():
                model.compile("adam", "mse", steps_per_execution=2)
        losses.append(model.fit(table, target, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"])
    return losses


def wrong_of_two_levels() -> list[str]:
    """Go through the operations of replicas of several processes, in one function; return what is wrong, in words."""
    import collective_cases

    strategy = tfdist.strategies.from_environment()
    wanted: dict[int, list[Any]] = {}

    @tf.function(autograph=False)
    def step() -> Any:
        def one() -> list[tf.Tensor]:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = services(strategy).collectives[int(tf.get_static_value(replica)) % 2]
            found = [
                result
                for dtype in ("float32", "bfloat16", "int64", "bool")
                for result in collective_cases.results_of(own, dtype, sends=False)
            ]
            wanted[own.rank % 2] = found
            return [tensor for _, tensor, _ in found]

        return strategy.run(one)

    wrong: list[str] = []
    every = [strategy.experimental_local_results(result) for result in step()]
    for replica, expected in wanted.items():
        for (what, _, right), results in zip(expected, every, strict=True):
            collective_cases.check(wrong, f"replica {replica}: {what}", results[replica], right)
    first = services(strategy).collectives[0]
    assert isinstance(first, TwoLevelCollective)
    if (first.size, first.rank, first.hosts) != (4, 2 * strategy.workers.index, (0, 0, 0, 0)):
        wrong.append(f"{first.size} {first.rank} {first.hosts}")
    try:
        first.send(tf.ones([1]), key="far", to=(first.rank + 2) % 4)
        wrong.append("a tensor was sent between replicas that do not meet")
    except errors.UnsupportedError:
        return [f"{type(first).__name__}: {one}" for one in wrong]
    return wrong


def waits_end(reason: str) -> str:
    """Let one replica wait for one that never comes, abort, and return what it is told."""
    tfdist.strategies.use_logical_cpus(2)
    one, _ = replica_collectives.of_replicas(["/device:CPU:0", "/device:CPU:1"])
    one.abort(reason)
    try:
        one.all_reduce([tf.ones([2])], key="alone")
    except tf.errors.AbortedError as error:
        return str(one.explain(error, "a sum"))
    return "nothing"


def chosen(collectives: str | None, variable: str | None) -> str:
    """Return which collectives a strategy takes, or what it refuses."""
    if variable is not None:
        os.environ["TFDIST_COLLECTIVES"] = variable
    try:
        strategy = _mirrored(collectives)
        return type(services(strategy).collectives[0]).__name__
    except errors.ConfigError as error:
        return str(error)
    finally:
        os.environ.pop("TFDIST_COLLECTIVES", None)
