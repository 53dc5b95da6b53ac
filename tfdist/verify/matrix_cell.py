"""The worker's side of the matrix, which makes the strategy, runs a feature and writes its outcome."""

import functools
import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.variables import REPLICAS_PER_WORKER, WORKER_INDEX
from tfdist.verify.feature import Context, registered

SEED = 20


def prepare(*, baseline: bool, one_device: bool) -> dict[str, str]:
    import keras
    import tensorflow as tf

    import tfdist

    if not one_device:
        _strategy(baseline)
    return {"TensorFlow": tf.__version__, "Keras": keras.__version__, "tfdist": tfdist.__version__}


def probe(*, baseline: bool, one_device: bool) -> bool:
    """Return whether the replicas still reduce among each other after a feature failed."""
    import tensorflow as tf

    if one_device:
        return True
    strategy = _strategy(baseline)

    def total() -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([3]))

    sums = strategy.experimental_local_results(tf.function(lambda: strategy.run(total))())
    return all(np.allclose(value, strategy.num_replicas_in_sync) for value in sums)


def run(
    *,
    module: str,
    feature: str,
    directory: str,
    output: str,
    workers: int,
    replicas: int,
    baseline: bool,
    one_device: bool,
) -> None:
    import keras

    strategy = None if one_device else _strategy(baseline)
    worker = 0 if one_device else WORKER_INDEX.read(os.environ)
    context = Context(
        strategy=strategy,
        workers=workers,
        worker=worker,
        replicas=replicas,
        directory=Path(directory),
        make_strategy=None if one_device else functools.partial(_make_strategy, baseline),
    )
    importlib.import_module(module)
    entry = registered(feature)
    keras.utils.clear_session(free_memory=False)  # a collection takes as long as a small training
    keras.utils.set_random_seed(SEED)
    try:
        outcome = entry.reference(context) if one_device else entry.function(context)
    finally:
        keras.config.set_dtype_policy("float32")
    with Path(output.format(worker=worker)).open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(value) for name, value in outcome.items()})


@functools.cache
def _strategy(baseline: bool) -> Any:
    """Return the one strategy of this process, made before any other TensorFlow operation."""
    if baseline:
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * _local_replicas())
    return _make_strategy(baseline)


def _make_strategy(baseline: bool) -> Any:
    if not baseline:
        return importlib.import_module("tfdist.strategies").from_environment()
    import tensorflow as tf

    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(_local_replicas())])


def _local_replicas() -> int:
    return REPLICAS_PER_WORKER.read(os.environ) or 1
