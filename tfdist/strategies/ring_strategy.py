"""Synchronous data parallelism over processes, with reductions by Horovod."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.collectives import buckets
from tfdist.collectives.backends import horovod_job
from tfdist.collectives.backends.tensorflow_collective import of_replicas
from tfdist.collectives.traced import TracedCollective, traced_of
from tfdist.collectives.workers import agreement
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import ring_extended
from tfdist.compat.tensorflow.steps.replica_services import ReplicaServices
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.gradients.outer.meeting_schedules import Synchronization
from tfdist.strategies import local_replicas
from tfdist.training import local_steps
from tfdist.training.strategy_mixin import KerasTraining, agree_on_seed

__all__ = ["RingStrategy"]


class RingStrategy(KerasTraining, tf.distribute.Strategy):
    """A strategy on Horovod's ring: plain Keras `compile` and `fit`, the numbers of one device.

    Every worker runs the same script with the same data; replica r of N takes its contiguous rows of each global
    batch. Worker 0 sends its initial weights to all, shows progress and writes files. Horovod sums gradients in buckets
    of a fixed order, during the backward pass. A bucket of S bytes costs each worker 2 S (n - 1) / n bytes on the wire.

    Start it with `tfdist run --strategy ring`, `horovodrun`, or `mpirun` (Horovod built with MPI, or the chief's
    address in TFDIST_COORDINATOR).

    Args:
        cluster: the workers, and the index of this process among them; None asks `tfdist.cluster.from_environment`.
        replicas_per_worker: the number of replicas in this process, equal on every worker. None takes one: the GPU with
            this worker's number on its host, or else the CPU. Several replicas of a process first reduce by
            TensorFlow's collectives.
        groups: disjoint groups of worker indices, the same on every worker, such as ``[[0, 1], [2, 3]]``. Each group
            trains by itself, and this strategy spans the group of this worker. None is one group of all.
        timeout_seconds: how long a worker waits for live workers in a step or an agreement before it fails with a
            `DeadlineError`. The others may be tracing a large model.
        lost_after_seconds: a worker whose process does not answer for so long (stopped, or its host gone) counts as
            lost, and the others fail with a `WorkerLostError`. A worker that ends is noticed at once. The first
            strategy of a process sets this limit.
        bucket_bytes: the largest size of a gradient bucket, in bytes; the first bucket has at most 1 MiB. Buckets fill
            in backward-pass order. "auto" measures latency and bandwidth when the strategy is made and takes between 1
            and 64 MiB, the same on all workers. Another run may choose another size, and then a sum of floats may
            differ in the last bits.
        synchronization: the schedule by which workers synchronize, see `MultiWorkerMirroredStrategy`; None: in every
            step.
        loss_reduction: how losses that your code reduces itself (in a `train_step`, a `compute_loss` or a loss function
            that returns one number) depend on examples: "mean" or "sum"; "detect" tries it on a few rows.
        shares: the weight of each replica's part of a batch, such as ``(3, 1)`` where the first worker is three times
            as fast; see `shares`. "measured": the first `fit` measures workers at its start. None: equal parts.

    Raises:
        MissingDependencyError: Horovod is not installed (``tfdist build horovod``).
        ConfigError: there are too few devices, addresses are unknown, groups overlap, or Horovod already runs
            otherwise.
        DeadlineError: a worker did not join within ``timeout_seconds``.

    Example:
        >>> strategy = RingStrategy()                         # doctest: +SKIP
        >>> with strategy.scope():                            # doctest: +SKIP
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, batch_size=64)                    # doctest: +SKIP

    Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009;
    A. Sergeev and M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018. Horovod names
    an operation after a tensor; here the name follows from everything that the function has reduced before it.
    """

    def __init__(
        self,
        cluster: "clusters.Cluster | None" = None,
        *,
        replicas_per_worker: int | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        timeout_seconds: float = 1800.0,
        lost_after_seconds: float = 120.0,
        bucket_bytes: int | str = buckets.DEFAULT_BYTES,
        synchronization: Synchronization | str | None = None,
        loss_reduction: str = "detect",
        shares: Sequence[int] | str | None = None,
    ) -> None:
        self.loss_reduction = loss_reduction
        cluster = clusters.from_environment() if cluster is None else cluster
        if not cluster.is_worker:
            raise ConfigError(
                f"this process is {cluster.task} ({cluster.source}); RingStrategy runs on workers alone. Construct it "
                "only where cluster.is_worker."
            )
        validation.number("timeout_seconds", timeout_seconds, above=0)
        validation.number("lost_after_seconds", lost_after_seconds, above=0)
        buckets.require_bytes("bucket_bytes", bucket_bytes)
        schedule = local_steps.require(synchronization)
        members = _members(groups, cluster)
        devices = _devices(replicas_per_worker, cluster)
        self._job = horovod_job.join(
            cluster,
            groups=() if groups is None else groups,
            timeout_seconds=timeout_seconds,
            lost_seconds=lost_after_seconds,
        )
        collective = self._job.collective(members)
        several = len(members) > 1
        self._workers = Workers(
            collective,
            timeout_seconds=timeout_seconds,
            notes=None if self._job.store is None else horovod_job.Notes(self._job.store, members),
        )
        with self._workers.waiting("the measurement of bucket_bytes"):
            chosen = buckets.chosen_bytes(bucket_bytes, collective)
        tf_strategies.claim_collective_keys(self, within_worker=True)
        near = of_replicas(devices)
        extended = ring_extended.RingReplicas(
            self,
            devices=devices,
            collective=TracedCollective(collective, bucket_bytes=chosen),
            waiting=self._workers.waiting,
            services=local_steps.guarded(
                schedule,
                ReplicaServices(
                    collectives=near,
                    rows=traced_of(near, chosen, of_rows=True),
                    bucket_bytes=chosen,
                    after_trace=agreement.Signatures(self._workers).require_alike,
                ),
            ),
        )
        tf.distribute.Strategy.__init__(self, extended)
        self.apart = local_steps.apart(schedule, extended.services, self._workers, of_replicas, devices)
        self._begin_shares(shares)
        if several:
            agree_on_seed(self._workers)

    def barrier(self) -> None:
        """Wait until every worker of this strategy has reached this call.

        Raises:
            DeadlineError: a worker did not reach it within ``timeout_seconds``.

        Example:
            >>> strategy.barrier()                            # doctest: +SKIP
        """
        self._workers.gather([])


def _devices(replicas: int | None, cluster: "clusters.Cluster") -> list[str]:
    """Return this worker's devices; if it sees the GPUs of all workers on its host, only those with its number."""
    count = 1 if replicas is None else validation.integer("replicas_per_worker", replicas, minimum=1)
    # Launchers may hide the other workers' GPUs, or show all of a host's to each.
    shows_all = len(tf_strategies.local_devices(("GPU",))) >= cluster.local_workers * count
    first = cluster.local_index * count if shows_all else 0
    needs, name = f"replicas_per_worker is {count}", "replicas_per_worker"
    return local_replicas.first_devices(first + count, needs=needs, name=name)[first:]


def _members(groups: Sequence[Sequence[int]] | None, cluster: "clusters.Cluster") -> tuple[int, ...]:
    if groups is None:
        return tuple(range(cluster.num_workers))
    if not all(isinstance(group, (list, tuple)) and group for group in groups):
        raise ConfigTypeError(
            f"groups is {groups!r}; it must be a list of lists of workers, such as [[0, 1], [2, 3]].",
            name="groups",
            received=groups,
        )
    everybody = [
        validation.integer("a worker in groups", worker, minimum=0, maximum=cluster.num_workers - 1)
        for group in groups
        for worker in group
    ]
    # The same checks on every worker: one that continued alone would wait for the others.
    if len(set(everybody)) < len(everybody):
        raise ConfigError(f"groups is {groups!r}; a worker may be in one group only.", name="groups", received=groups)
    if absent := sorted(set(range(cluster.num_workers)) - set(everybody)):
        raise ConfigError(
            f"groups is {groups!r}; worker {absent[0]} is in none. Give every worker a group.",
            name="groups",
            received=groups,
            workers=absent,
        )
    if any(list(group) != sorted(group) for group in groups):
        raise ConfigError(
            f"groups is {groups!r}; the workers of a group must be in rising order.", name="groups", received=groups
        )
    return next(tuple(group) for group in groups if cluster.worker_index in group)
