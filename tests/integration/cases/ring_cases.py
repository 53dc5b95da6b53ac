"""Cases of the ring: each runs in every worker at once and returns JSON values."""

import os
from typing import Any

import keras
import numpy as np
import refusal_fields
import tensorflow as tf
from rested import ring

from tfdist import errors

STRATEGY = ring()
RANK = int(os.environ["TFDIST_WORKER_INDEX"])
REPLICAS = STRATEGY.num_replicas_in_sync
SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def task_id() -> int:
    return int(STRATEGY.extended._task_id)


def replica() -> Any:
    """Return the number of the replica that is being traced or run, an int32 scalar."""
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def on_replicas(function: Any, *, traced: bool) -> list[Any]:
    """Return what each local replica's call gave, as nested lists."""

    def run() -> Any:
        return STRATEGY.run(function)

    results = tf.function(run)() if traced else run()
    return [result.numpy() for result in STRATEGY.experimental_local_results(results)]


def sums_of_dtypes(traced: bool) -> dict[str, bool]:
    """Return for each dtype whether the sum over replicas is exact and keeps its dtype."""
    exact = {}
    for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32"):
        exact[name] = _sum_is_exact(name, traced)
    for name in ("int64", "uint64", "complex64", "complex128", "bool"):
        exact[name] = _sum_is_exact(name, traced)
    return exact


def _sum_is_exact(name: str, traced: bool) -> bool:
    dtype = tf.as_dtype(name)

    def total() -> Any:
        mine = tf.range(5, dtype=tf.int32) + replica()
        value = (mine % 2 == 0) & (replica() == 1) if dtype == tf.bool else tf.cast(mine, dtype)
        return tf.distribute.get_replica_context().all_reduce(SUM, value)

    table = np.arange(5) + np.arange(REPLICAS)[:, None]
    wanted = ((table[1] % 2 == 0) if dtype == tf.bool else table.sum(axis=0)).astype(dtype.as_numpy_dtype)
    got = on_replicas(total, traced=traced)
    return all(g.dtype == wanted.dtype and np.array_equal(g, wanted) for g in got)


def extremes() -> dict[str, Any]:
    """Sums whose carriers could lose something: wrapping integers, infinities, NaN, nothing at all, one number."""

    def total(value: Any) -> Any:
        return on_replicas(lambda: tf.distribute.get_replica_context().all_reduce(SUM, value()), traced=True)[0]

    largest = tf.constant([2**64 - 1], tf.uint64)
    return {
        "uint64 wraps": int(total(lambda: largest)[0]) == (2**64 - REPLICAS),
        "bfloat16 infinity": bool(np.isinf(np.float32(total(lambda: tf.constant([np.inf], tf.bfloat16))[0]))),
        "nan of one": bool(np.isnan(total(lambda: tf.where(replica() == 0, np.nan, 0.0)))),
        "empty": total(lambda: tf.zeros([0, 3])).shape == (0, 3),
        "scalar": float(total(lambda: tf.constant(1.0))) == REPLICAS,
        "int mean": on_replicas(
            lambda: tf.distribute.get_replica_context().all_reduce(MEAN, tf.constant([7])), traced=True
        )[0].tolist(),
    }


def gathered(axis: int, traced: bool) -> list[Any]:
    """Gather another number of slices from each replica along an axis; return shape and order."""

    def rows() -> Any:
        # statically different shapes per process: replica r of this process has r + 1 slices
        shape = [3, 3]
        shape[axis] = 2 + RANK
        value = tf.fill(shape, float(RANK))
        return tf.distribute.get_replica_context().all_gather(value, axis=axis)

    result = on_replicas(rows, traced=traced)[0]
    return [list(result.shape), np.moveaxis(result, axis, 0)[:, 0].tolist()]


def reduced() -> dict[str, Any]:
    """`strategy.reduce` and `gather` of per-replica values, eagerly and traced."""

    def values() -> Any:
        return STRATEGY.run(lambda: tf.cast(replica(), tf.float32) + tf.range(2.0))

    def both() -> Any:
        return (
            STRATEGY.reduce(SUM, values(), axis=None),
            STRATEGY.reduce(MEAN, values(), axis=None),
            STRATEGY.reduce(SUM, values(), axis=0),
            STRATEGY.gather(values(), axis=0),
        )

    eager, traced = both(), tf.function(both)()
    return {"eager": [v.numpy().tolist() for v in eager], "traced": [v.numpy().tolist() for v in traced]}


def sparse(vocabulary: int, rows: list[int]) -> dict[str, Any]:
    """Sum slices with another number of rows, some of them repeated, per worker, where rows may be added up."""
    width = 4
    mine = rows[RANK]
    draw = np.random.RandomState(RANK)
    indices = draw.randint(vocabulary, size=mine)
    values = draw.randint(8, size=(mine, width)).astype(np.float32)
    wanted = np.zeros((vocabulary, width), np.float32)
    for rank, count in enumerate(rows):
        other = np.random.RandomState(rank)
        at = other.randint(vocabulary, size=count)
        np.add.at(wanted, at, other.randint(8, size=(count, width)).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec([None, width]), tf.TensorSpec([None], tf.int64)])
    def step(values: Any, indices: Any) -> Any:
        slices = tf.IndexedSlices(values, indices, tf.constant([vocabulary, width], tf.int64))
        kinds, totals = [], []
        for matter in (True, False):
            (total,) = STRATEGY.extended._collective.all_reduce([slices], ["table"], keep_duplicate_indices=matter)
            kinds.append(tf.size(total.indices) if isinstance(total, tf.IndexedSlices) else tf.constant(-1))
            totals.append(tf.convert_to_tensor(total))
        return kinds, totals

    kinds, totals = step(tf.constant(values), tf.constant(indices, tf.int64))
    return {
        "right": all(np.array_equal(total.numpy(), wanted) for total in totals),
        "rows": [int(kind) for kind in kinds],
    }


def in_a_condition(then_in_a_loop: bool) -> list[float]:
    """Return a sum that stands in a condition of TensorFlow's, and one that goes through three rounds of a loop."""

    @tf.function
    def step(number: Any) -> Any:
        def body() -> Any:
            context = tf.distribute.get_replica_context()
            total = tf.cond(
                number > 0, lambda: context.all_reduce(SUM, tf.cast(number, tf.float32)), lambda: tf.constant(-1.0)
            )
            if then_in_a_loop:
                for _ in tf.range(3):
                    total = context.all_reduce(MEAN, total) + 1.0
            return total

        return STRATEGY.run(body)

    return [float(STRATEGY.experimental_local_results(step(tf.constant(n)))[0]) for n in (5, -5, 5)]


def gradient_through_a_sum() -> list[float]:
    """The derivative of a sum over replicas with regard to each replica's part."""

    def step() -> Any:
        x = tf.constant([1.0, 2.0]) * (tf.cast(replica(), tf.float32) + 1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.distribute.get_replica_context().all_reduce(SUM, x)
            loss = tf.reduce_sum(total * total)
        return tape.gradient(loss, x)

    return on_replicas(step, traced=True)[0].tolist()


def constants_are_reduced_every_time() -> list[float]:
    """A reduction of a constant must not be computed once for all: one worker may trace where another does not."""

    def step(x: Any) -> Any:
        def body() -> Any:
            return tf.distribute.get_replica_context().all_reduce(SUM, tf.constant(1.0)) + 0.0 * x[0]

        return STRATEGY.run(body)

    traced = tf.function(step)
    seen = []
    for call in range(3):
        rows = 3 + (call if RANK == 0 else 0)  # worker 0 traces anew for every shape, the others do not
        seen.append(float(STRATEGY.experimental_local_results(traced(tf.zeros([rows])))[0]))
    return seen


def same_order_every_time(steps: int) -> bool:
    """Whether sums of floats that depend on the order of adding are equal bit for bit in every step."""
    draw = np.random.RandomState(RANK)
    tensors = [tf.constant(draw.normal(size=size) * 10.0 ** draw.randint(-3, 4), tf.float32) for size in range(1, 400)]

    @tf.function
    def step() -> Any:
        return STRATEGY.run(lambda: tf.distribute.get_replica_context().all_reduce(SUM, tensors))

    def bits() -> bytes:
        return b"".join(STRATEGY.experimental_local_results(v)[0].numpy().tobytes() for v in step())

    first = bits()
    return all(bits() == first for _ in range(steps))


def model_that_differs(kind: str) -> str:
    """Train a model that is another on the last worker; return what this worker is told."""
    odd = int(os.environ["TFDIST_LOCAL_WORKERS"]) - 1 == RANK
    x = np.ones((12, 3), np.float32)
    names = ["a", "z" if odd and kind == "name" else "b"]
    units = 5 if odd and kind == "shape" else 3
    if RANK == 0:  # what Keras counts differs, which is no difference
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    try:
        with STRATEGY.scope():
            layers = [keras.layers.Dense(units, name=names[0]), keras.layers.Dense(3, name=names[1])]
            if odd and kind == "frozen":
                layers[0].trainable = False
            if odd and kind == "layer":
                layers.append(keras.layers.Dense(3))
            network = keras.Sequential([keras.Input((3,)), *layers])
            network.compile("adam" if odd and kind == "optimizer" else "sgd", "mse")
        network.fit(x, x, batch_size=6, verbose=0)
    except errors.DisagreementError as error:
        return str(error)
    return "trained"


def still_works() -> float:
    """Return a sum over replicas: what failed before was understood by all workers alike."""
    return float(STRATEGY.reduce(SUM, STRATEGY.run(lambda: tf.constant(1.0)), axis=None))


def horovods_optimizer() -> dict[str, list[Any]]:
    """Wrap an optimizer by Horovod outside of a scope, and as another build would let it pass; return what is said."""
    import horovod.tensorflow.keras as hvd

    said = {}
    try:
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    except RuntimeError as error:
        said["outside"] = refusal_fields.fields(error)
    wrapped = type("SGD", (keras.optimizers.SGD,), {"__module__": "horovod._keras"})
    with STRATEGY.scope():
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        network.compile(wrapped(0.1), "mse")
    try:
        network.fit(np.ones((6, 3)), np.ones((6, 1)), verbose=0)
    except errors.UnsupportedError as error:
        said["inside"] = refusal_fields.fields(error)
    return said
