"""What distributes in a lane's workers: a strategy of tfdist's, or a peer; one in a process."""

import functools
import os
from typing import Any

import tensorflow as tf

import tfdist.strategies
from tfdist.bench.workers.lanes import LONGEST_SECONDS
from tfdist.cluster import strategy_table
from tfdist.collectives.backends import horovod_job
from tfdist.variables import COLLECTIVES, REPLICAS_PER_WORKER, STRATEGY

__all__ = ["horovod", "of_tensorflow", "of_tfdist"]


@functools.cache
def of_tfdist(name: str, collectives: str | None = None) -> tf.distribute.Strategy:
    if name == "ring":  # its workers are held while other lanes run, and must not be taken for lost
        return tfdist.strategies.create(name, lost_after_seconds=LONGEST_SECONDS)
    chosen = {COLLECTIVES.name: collectives} if collectives else {}
    return tfdist.strategies.from_environment({**os.environ, STRATEGY.name: name, **chosen})


@functools.cache
def of_tensorflow(name: str) -> tf.distribute.Strategy:
    """TensorFlow's counterpart of a strategy of tfdist."""
    if strategy_table.get(name).processes == "workers":
        return tf.distribute.MultiWorkerMirroredStrategy()
    replicas = REPLICAS_PER_WORKER.read(os.environ) or 1
    if not tf.config.list_physical_devices("GPU"):
        tfdist.strategies.use_logical_cpus(replicas)
        return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
    return tf.distribute.MirroredStrategy([f"GPU:{index}" for index in range(replicas)])


@functools.cache
def horovod() -> Any:
    """`horovod.tensorflow`, started as its users start it."""
    hvd = horovod_job.import_horovod()
    hvd.init()
    return hvd
