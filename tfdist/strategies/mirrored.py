"""Synchronous data parallelism over the devices of one process."""

import logging
import os
from collections.abc import Sequence

import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation, variables
from tfdist.cluster.strategy_table import COLLECTIVES, REPLICA_COLLECTIVES
from tfdist.collectives import buckets
from tfdist.collectives.backends.tensorflow_collective import of_replicas
from tfdist.collectives.traced import traced_of
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.steps.replica_services import ReplicaServices
from tfdist.errors import ConfigError
from tfdist.strategies import local_replicas
from tfdist.training.strategy_mixin import KerasTraining

__all__ = ["MirroredStrategy"]

_log = logging.getLogger("tfdist")


class MirroredStrategy(KerasTraining, tf.distribute.MirroredStrategy):
    """A `tf.distribute.MirroredStrategy` under which Keras' `fit` gives the numbers of one device.

    Every replica holds a copy of the model and takes its contiguous rows of each global batch. Gradients are summed
    over replicas, weighted by examples, before they are unscaled, checked, clipped and applied. With B examples in the
    batch and g_i the gradient of example i, every replica applies (1/B) * sum_i g_i.

    Args:
        devices: device names such as ``["GPU:0", "GPU:1"]``, all of one type, each once. None takes every GPU, or else
            every logical CPU device.
        collectives: the backend that reduces gradients, states and metrics in a step. "tensorflow"; "native", tfdist's
            own between CPUs (`tfdist.collectives.backends.replica_collectives`); "auto", native where possible. None
            takes the variable ``TFDIST_COLLECTIVES`` if it names one of these, or else "tensorflow".
        bucket_bytes: the size of a gradient bucket, in bytes, approximately. Buckets fill in backward-pass order.
        loss_reduction: how losses that your code reduces itself (in a `train_step`, a `compute_loss` or a loss function
            that returns one number) depend on examples: "mean" or "sum"; "detect" tries it on a few rows.
        shares: the weight of each replica's part of a batch, such as ``(3, 1)`` where the first worker is three times
            as fast; see `shares`. None: equal parts.

    Raises:
        ConfigError: a device does not exist or is named twice, devices are of several types, ``collectives`` is none of
            these, or it is "native" and the devices are GPUs.
        UnsupportedError: "native" is not possible here; the message says why.

    Example:
        >>> import keras, numpy as np
        >>> strategy = MirroredStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile("adam", "mse")
        >>> history = model.fit(np.ones((10, 4)), np.ones(10), batch_size=4, verbose=0)  # the global batch
        >>> model.optimizer.iterations.numpy().item()
        3

    Unlike TensorFlow's strategy, this one reduces by collectives inside the replicas, also in conditions, and never
    outside of them (`strategy.reduce`, `strategy.gather`). There is no ``cross_device_ops``.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        collectives: str | None = None,
        bucket_bytes: int = buckets.DEFAULT_BYTES,
        loss_reduction: str = "detect",
        shares: Sequence[int] | str | None = None,
    ) -> None:
        backend = _backend(collectives)
        self.loss_reduction = loss_reduction
        validation.integer("bucket_bytes", bucket_bytes, minimum=1)
        self._workers = Workers()
        local_replicas.ensure_threads(local_replicas.devices_to_come())
        tf_strategies.claim_collective_keys(self, within_worker=True)
        extended = tf_strategies.MirroredReplicas(self, local_replicas.named_devices(devices))
        reached = of_replicas(extended.worker_devices)
        native = local_replicas.native_collectives(backend, extended.worker_devices)
        extended.services = ReplicaServices(
            collectives=native or reached,
            traced=traced_of(native, bucket_bytes),
            rows=traced_of(reached, bucket_bytes, of_rows=True),
            bucket_bytes=bucket_bytes,
        )
        tf.distribute.Strategy.__init__(self, extended)
        self._begin_shares(shares)
        asked = variables.REPLICAS_PER_WORKER.read(os.environ) if devices is None else None
        _tell_if_not_of_the_job(len(extended.worker_devices), asked)


def _tell_if_not_of_the_job(replicas: int, asked: int | None) -> None:
    """Warn if the job has further workers or was given another number of replicas, which would change nothing here."""
    try:
        job = clusters.from_environment()
    except ConfigError:  # of a launcher whose job this strategy does not join
        return
    if job.is_chief and (job.num_workers > 1 or asked not in (None, replicas)):
        _log.warning(
            "tfdist: this MirroredStrategy has %s of this process, and the job (%s) was started with %s%s. Each "
            "process trains by itself. tfdist.strategies.from_environment() returns the strategy of the job.",
            validation.counted(replicas, "replica"),
            job.source,
            validation.counted(job.num_workers, "worker"),
            "" if asked is None else f" of {validation.counted(asked, 'replica')}",
        )


def _backend(given: str | None) -> str:
    if given is not None:
        return validation.one_of("collectives", given, REPLICA_COLLECTIVES)
    every = tuple(dict.fromkeys((*REPLICA_COLLECTIVES, *COLLECTIVES)))
    named = validation.one_of(variables.COLLECTIVES.name, variables.COLLECTIVES.read(os.environ) or every[0], every)
    return named if named in REPLICA_COLLECTIVES else REPLICA_COLLECTIVES[0]
