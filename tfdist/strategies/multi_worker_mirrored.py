"""Synchronous data parallelism over several processes and hosts, whose optimizers may be sharded (ZeRO)."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation, variables
from tfdist.cluster.strategy_table import COLLECTIVES
from tfdist.collectives import buckets, collective_backends
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.backends.tensorflow_collective import of_replicas, of_workers
from tfdist.collectives.collective import Collective
from tfdist.collectives.traced import TracedCollective, relative_paths, traced_of
from tfdist.collectives.workers import agreement
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import coordination_service
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.meshes.mesh_replicas import FullyShardedReplicas
from tfdist.compat.tensorflow.meshes.weight_gathering import Gathers
from tfdist.compat.tensorflow.steps import replica_services
from tfdist.compat.tensorflow.steps.replica_services import ReplicaServices, WeightParts
from tfdist.errors import ConfigError
from tfdist.gradients.outer.meeting_schedules import Synchronization
from tfdist.gradients.sharding import shard_layout
from tfdist.gradients.sharding.sharded_slots import OptimizerSharding
from tfdist.parallel.sharded_initializers import InitialParts
from tfdist.parallel.weight_layouts import ElementLayout
from tfdist.strategies import local_replicas
from tfdist.training import local_steps
from tfdist.training.strategy_mixin import KerasTraining, agree_on_seed

__all__ = ["MultiWorkerMirroredStrategy", "ShardedDataParallelStrategy"]


class MultiWorkerMirroredStrategy(KerasTraining, tf.distribute.MultiWorkerMirroredStrategy):
    """A `tf.distribute.MultiWorkerMirroredStrategy` under which Keras' `fit` gives the numbers of one device.

    Every worker runs the same script with the same data; replica r of N takes its contiguous rows of each global batch.
    Worker 0, the chief, sends its initial weights to all, shows progress and writes files. Callbacks take the same
    decisions on all workers. Create the strategy before any other TensorFlow operation.

    Args:
        cluster: the workers, and the index of this process among them; None asks `tfdist.cluster.from_environment`
            (`tfdist run`, TF_CONFIG, Slurm, Kubernetes, MPI, SageMaker). A process without any of these is a single
            worker.
        replicas_per_worker: the number of replicas in this process, equal on every worker; None takes every GPU, or
            else one CPU.
        timeout_seconds: how long a worker waits for the others in a step or an agreement before it fails with a
            `DeadlineError`. The others may be tracing or saving a large model.
        communication_options: `tf.distribute.experimental.CommunicationOptions`, for TensorFlow's own reductions, which
            are used on GPUs and for several replicas per worker. A ``bytes_per_pack`` overrides ``bucket_bytes`` there.
        collectives: the backend that reduces gradients, states and metrics in a step, the same on every worker.
            "tensorflow": over gRPC or NCCL. "native": tfdist's own for CPUs, in shared memory and over TCP between
            hosts; replicas of one worker add up in its memory first. "horovod": over gloo, MPI or NCCL, for one replica
            per worker. "auto": native where each worker has one CPU replica and a C++ compiler or a compiled copy, else
            TensorFlow's. TensorFlow's collectives connect the workers in any case. None takes the variable
            ``TFDIST_COLLECTIVES``, or else "auto".
        bucket_bytes: the largest size of a gradient bucket, in bytes; the first bucket has at most 1 MiB. Buckets fill
            in backward-pass order. "auto" measures latency and bandwidth when the strategy is made and takes between 1
            and 64 MiB, the same on all workers. Another run may choose another size, and then a sum of floats may
            differ in the last bits. Native collectives avoid this, unless ``TFDIST_ALL_REDUCE_ALGORITHM`` changes their
            algorithm.
        shard_optimizer: None, or the stage of `ShardedDataParallelStrategy`: 1, 2 or 3.
        synchronization: None reduces gradients over all workers in every step. `LocalSGD` and the other schedules let
            workers train independently and synchronize seldom, for slow networks; then the numbers are not those of one
            device. Also as a text, such as ``"local-sgd:every=8"``. Replicas of one worker reduce in every step.
        loss_reduction: how losses that your code reduces itself (in a `train_step`, a `compute_loss` or a loss function
            that returns one number) depend on examples: "mean" or "sum"; "detect" tries it on a few rows.
        shares: the weight of each replica's part of a batch, such as ``(3, 1)`` where the first worker is three times
            as fast; see `shares`. "measured": the first `fit` measures workers at its start. None: equal parts.

    Raises:
        ConfigError: there are more replicas than devices, the cluster's addresses are unknown, or ``collectives`` is
            none of these, differs between workers, or does not fit their replicas.
        UnsupportedError: "native" or ``shard_optimizer`` is not possible here; the message says why.
        MissingDependencyError: "horovod" is asked for and not installed (``tfdist build horovod``).

    Example:
        >>> strategy = MultiWorkerMirroredStrategy()          # doctest: +SKIP
        >>> with strategy.scope():                            # doctest: +SKIP
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, batch_size=64)                    # doctest: +SKIP
    """

    def __init__(
        self,
        cluster: "clusters.Cluster | None" = None,
        *,
        replicas_per_worker: int | None = None,
        timeout_seconds: float = 1800.0,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        collectives: str | None = None,
        bucket_bytes: int | str = buckets.DEFAULT_BYTES,
        shard_optimizer: int | None = None,
        synchronization: Synchronization | str | None = None,
        loss_reduction: str = "detect",
        shares: Sequence[int] | str | None = None,
    ) -> None:
        backend = validation.one_of(
            "collectives", collectives or variables.COLLECTIVES.read(os.environ) or COLLECTIVES[0], COLLECTIVES
        )
        validation.number("timeout_seconds", timeout_seconds, above=0)
        self.loss_reduction = loss_reduction
        cluster = clusters.from_environment() if cluster is None else cluster
        if not cluster.is_worker:
            raise ConfigError(
                f"this process is {cluster.task} ({cluster.source}); MultiWorkerMirroredStrategy runs on workers "
                "alone. Construct it only where cluster.is_worker."
            )
        buckets.require_bytes("bucket_bytes", bucket_bytes)
        shard_layout.require_stage("shard_optimizer", shard_optimizer)
        schedule = local_steps.require(synchronization, shard_optimizer)
        if replicas_per_worker is not None:
            validation.integer("replicas_per_worker", replicas_per_worker, minimum=1)
            _require_devices(replicas_per_worker)
        tf_strategies.claim_collective_keys(self, within_worker=False)
        resolver = _resolver(cluster)
        try:
            extended = (FullyShardedReplicas if shard_optimizer == 3 else tf_strategies.MultiWorkerReplicas)(
                self,
                replicas_per_worker=replicas_per_worker,
                cluster_resolver=resolver,
                communication_options=communication_options or tf.distribute.experimental.CommunicationOptions(),
            )
        except RuntimeError as error:
            if "program startup" not in str(error):
                raise
            raise ConfigError(
                "TensorFlow has started in this process before this strategy was made: a tensor or a variable exists "
                "already, or data were read. Create the strategy first, and everything else after it.",
                name="TensorFlow",
            ) from error
        except tf.errors.UnknownError as error:  # all that TensorFlow says is that its server does not start
            if "server" not in str(error):
                raise
            raise ConfigError(
                f"worker {cluster.worker_index} cannot listen at {cluster.require_addresses()[cluster.worker_index]} "
                f"({cluster.source}; {error.message}). Another process has the port, or the address is not this "
                "host's. Give it an address of this host and a free port.",
                name=variables.WORKERS.name,
                received=cluster.require_addresses()[cluster.worker_index],
                workers=(cluster.worker_index,),
            ) from error
        shard_layout.require_one_cpu(shard_optimizer, extended.worker_devices)
        tf.distribute.Strategy.__init__(self, extended)
        several = cluster.num_workers > 1
        workers: Collective = LocalCollective()
        cards: list[str] | None = None
        if several:
            tensorflows = of_workers(cluster, range(cluster.num_workers))
            assert tensorflows is not None  # this worker is one of all
            workers, cards = collective_backends.between_workers(
                tensorflows, backend, extended.worker_devices, cluster, timeout_seconds=timeout_seconds
            )
        self._workers = Workers(
            workers, timeout_seconds=timeout_seconds, notes=coordination_service if several else None
        )
        if several:
            own = [] if workers is tensorflows else collective_backends.of_replicas(workers, extended.worker_devices)
        else:
            own = local_replicas.native_collectives(backend, extended.worker_devices)
        reached = own or of_replicas(extended.worker_devices, cluster if several else None, cards)
        with self._workers.waiting("the measurement of bucket_bytes"):
            chosen = buckets.chosen_bytes(bucket_bytes, workers)
        reduces = bool(own) or (several and _is_one_cpu(extended.worker_devices))
        traced = traced_of(reached, chosen) if reduces else []
        services = ReplicaServices(
            collectives=reached,
            traced=traced,
            rows=() if reduces else traced_of(reached, chosen, of_rows=True),
            bucket_bytes=chosen,
            after_trace=agreement.Signatures(self._workers).require_alike if reduces and several else lambda: None,
            compare_variable=functools.partial(agreement.require_alike_variable, self._workers),
        )
        if shard_optimizer is not None:
            (one,) = traced or traced_of([self._workers.collective], chosen)
            services = self._sharded(shard_optimizer, services, one)
        extended.services = services = local_steps.guarded(schedule, services)
        self.apart = local_steps.apart(schedule, services, self._workers, of_replicas, extended.worker_devices)
        self._begin_shares(shares)
        if several:
            agree_on_seed(self._workers)

    def _sharded(self, stage: int, services: ReplicaServices, traced: TracedCollective) -> ReplicaServices:
        sharding = OptimizerSharding(stage, self._workers, traced)
        if stage < 3 or self._workers.count == 1:
            return dataclasses.replace(services, sharding=sharding)
        gathers = Gathers(services.bucket_bytes, may_gather_again=not traced.collective.keeps_program_order)

        def shardings_of(path: str, shape: tuple[int, ...], dtype: tf.DType, trainable: bool) -> Any:
            if not (trainable and dtype.is_floating and shape and all(shape)):
                return None
            return [ElementLayout(sharding.traced, self._workers.waiting, gathers, shape, dtype, path)]

        parts = WeightParts(
            shardings_of=shardings_of,
            initial=InitialParts(traced, self._workers.waiting, services.compare_variable),
            gathers=gathers,
        )
        return dataclasses.replace(services, sharding=sharding, weights=parts)

    @property
    def cuts_weights(self) -> bool:
        """Whether each worker holds a part of every weight."""
        return replica_services.services(self).weights is not None

    def ready(self, model: Any) -> None:
        """Give the weights of a model the same names on all workers."""
        for weight, path in zip(model.weights, relative_paths([w.path for w in model.weights]), strict=True):
            if (sharding := sharded_variable.sharding_of(weight)) is not None:
                sharding.label = path


class ShardedDataParallelStrategy(MultiWorkerMirroredStrategy):
    """Synchronous data parallelism in which each of p workers holds 1 / p of the optimizer's slots.

    It is `MultiWorkerMirroredStrategy` with ``shard_optimizer=stage``, and gives the same numbers: those of one device.
    Each gradient is reduced to the worker that updates its part, and the new weights are gathered from there; together
    these move as many bytes as an all_reduce. Bytes in each process for N weights in float32 with Adam, without
    activations:

        4 N + 4 N + 8 N              plain: weights, gradients, slots
        4 N + (4 N + 8 N) / p        stages 1 and 2
        (4 N + 4 N + 8 N) / p        stage 3, plus the weights that are whole at once: those in use and the next ones
        4 N more, or 4 N / p         what `DistributedOptimizer` accumulates, in stage 1 and in stage 2

    Args:
        cluster: the workers, and which of them this process is; None asks `tfdist.cluster.from_environment`.
        stage: 1 shards slots. 2 also shards gradients that `DistributedOptimizer` accumulates: each micro-batch is
            reduced by itself. 3 also shards weights: each is gathered when a pass needs it, and freed afterwards. None
            takes the variable ``TFDIST_SHARDING_STAGE``, or else 1.
        **options: see `MultiWorkerMirroredStrategy`; there is one CPU replica in each process.

    Raises:
        ConfigError: see `MultiWorkerMirroredStrategy`.
        UnsupportedError: several replicas in a process, or GPUs. In `fit`, in stage 3: an optimizer that may use the
            whole of a weight.

    Example:
        >>> strategy = ShardedDataParallelStrategy(stage=2)   # doctest: +SKIP
        >>> with strategy.scope():                            # doctest: +SKIP
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, batch_size=64)                    # doctest: +SKIP

    Source: S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models", 2020. Its weights are float16 with a float32 copy among the slots. Keras' mixed policies keep float32
    weights, so there is no copy.
    """

    def __init__(self, cluster: "clusters.Cluster | None" = None, *, stage: int | None = None, **options: Any) -> None:
        stage = variables.SHARDING_STAGE.read(os.environ) or 1 if stage is None else stage
        super().__init__(cluster, shard_optimizer=stage, **options)


def _is_one_cpu(devices: Sequence[str]) -> bool:
    return len(devices) == 1 and "GPU" not in devices[0]


def _require_devices(replicas: int) -> None:
    """Raise unless this process has a device for each replica; starts no device."""
    present = local_replicas.devices_to_come()
    if replicas > present:
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        raise ConfigError(
            f"replicas_per_worker is {replicas}; this process has {validation.counted(present, f'{kind} device')}. "
            "Ask for fewer, or split the CPU before TensorFlow starts: "
            f"tfdist.strategies.use_logical_cpus({replicas}).",
            name="replicas_per_worker",
            received=replicas,
        )


def _resolver(cluster: "clusters.Cluster") -> tf.distribute.cluster_resolver.ClusterResolver:
    if cluster.num_workers == 1:
        return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec({}))
    addresses = list(cluster.require_addresses())
    present = tf_strategies.cluster_of_this_process()
    if present is not None and present != addresses:
        raise ConfigError(
            f"the cluster ({cluster.source}) has the workers {', '.join(addresses)}, but this process already works "
            f"among {', '.join(present)}; a process belongs to one cluster. Use another process."
        )
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": addresses}), task_type="worker", task_id=cluster.worker_index, rpc_layer="grpc"
    )
