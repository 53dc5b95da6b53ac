"""The common base of strategies over a mesh: devices of this process, and collectives between all places."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import tensorflow as tf

from tfdist import cluster as clusters
from tfdist.cluster.mesh import Mesh
from tfdist.collectives import buckets
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.backends.tensorflow_collective import of_replicas
from tfdist.collectives.collective import Collective
from tfdist.collectives.traced import TracedCollective
from tfdist.collectives.workers import agreement
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow.meshes.graph_rewrites import Late
from tfdist.compat.tensorflow.meshes.mesh_replicas import ModelParallelReplicas
from tfdist.compat.tensorflow.steps.replica_services import ReplicaServices, WeightParts, services
from tfdist.errors import ConfigError
from tfdist.gradients.sharding.sharded_slots import OptimizerSharding
from tfdist.parallel import mesh_axes
from tfdist.parallel.layouts import Layouts
from tfdist.parallel.mesh_axes import Axes
from tfdist.parallel.sharded_initializers import InitialParts
from tfdist.strategies import local_replicas
from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from tfdist.training.strategy_mixin import KerasTraining

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class MeshJob:
    """The connections and devices that the processes of a mesh share.

    Attributes:
        workers: the processes of the mesh.
        devices: the devices of this process, in the order of its places.
        replicas: for each device, the collective of all places of the mesh.
        bucket_bytes: the number of bytes that travel together.
        strategy: the strategy that keeps the processes connected as long as it exists; None in one process.
    """

    workers: Workers
    devices: list[str]
    replicas: list[Collective]
    bucket_bytes: int
    strategy: Any

    @property
    def everybody(self) -> TracedCollective:
        return TracedCollective(self.workers.collective, bucket_bytes=self.bucket_bytes)

    def axes(self, mesh: Mesh, processes: Mesh, *, batch: str) -> list[Axes]:
        """Return the collectives along each axis, for each replica of this process."""
        along = {name: mesh_axes.of_replicas(self.replicas, mesh, [name]) for name in mesh.names}
        count, found = len(self.replicas), list[Axes]()
        inside = [name for name in mesh.names if processes.size_of(name) == 1 and mesh.size_of(name) > 1]
        for replica in range(count):
            traced = {
                name: TracedCollective(
                    ends[replica], bucket_bytes=self.bucket_bytes, replica=replica, names_shapes=name == batch
                )
                for name, ends in along.items()
            }
            late = found[0].late if found else None
            rank = self.workers.index * count + replica
            found.append(Axes(mesh, rank, traced, self.workers.waiting, inside=inside, late=late))
        return found


class MeshStrategy(KerasTraining, tf.distribute.Strategy):
    """The common part of strategies over a mesh; a subclass sets `_mesh` and `_layouts` first, then calls `_begin`."""

    _mesh: Mesh
    _layouts: Layouts
    _job: MeshJob
    _proposal: str | None = None

    def _begin(
        self,
        replicas: type[ModelParallelReplicas],
        *,
        examples: Sequence[int],
        late: Late,
        collective: TracedCollective,
        traced: Sequence[TracedCollective],
        shardings_of: Callable[[str, tuple[int, ...], tf.DType, bool], Sequence[Any] | None] = lambda *_: None,
        sharding: OptimizerSharding | None = None,
        **options: Any,
    ) -> None:
        job = self._job
        services = ReplicaServices(
            traced=traced,
            bucket_bytes=job.bucket_bytes,
            after_trace=agreement.Signatures(job.workers).require_alike,
            weights=WeightParts(shardings_of=shardings_of, initial=InitialParts(job.everybody, job.workers.waiting)),
            sharding=sharding,
        )
        extended = replicas(
            self,
            examples=examples,
            everybody=job.everybody,
            late=late,
            devices=job.devices,
            collective=collective,
            waiting=job.workers.waiting,
            services=services,
            **options,
        )
        tf.distribute.Strategy.__init__(self, extended)

    def _log_proposal(self, model: Any) -> None:
        """Log once the layouts that "auto" stands for."""
        proposal = self._layouts.proposal(weight.path for weight in model.weights)
        if proposal not in (None, self._proposal) and self._workers.is_chief:
            _log.warning("tfdist: the layouts of this model are those of %s", proposal)
        self._proposal = proposal


def join(
    cluster: clusters.Cluster,
    devices: Sequence[str] | None,
    count: int,
    backend: str,
    *,
    timeout_seconds: float,
    bucket_bytes: int | str,
    loss_reduction: str,
) -> MeshJob:
    """Connect the processes of a mesh; all processes call this at the same time."""
    if cluster.num_workers == 1:
        buckets.require_bytes("bucket_bytes", bucket_bytes)
        local_replicas.ensure_threads(max(count, local_replicas.devices_to_come()))
        mine = _devices(devices, count)
        own: list[Collective] = [LocalCollective()]
        if count > 1:
            own = local_replicas.native_collectives(backend, mine) or list(of_replicas(mine))
        return MeshJob(Workers(), mine, own, buckets.chosen_bytes(bucket_bytes, LocalCollective()), None)
    if devices is not None:
        raise ConfigError(
            f"devices is {list(devices)!r}, and {cluster.source} gives {cluster.num_workers} processes, each with its "
            "first devices. Leave devices out.",
            name="devices",
            received=list(devices),
        )
    strategy = MultiWorkerMirroredStrategy(
        cluster,
        replicas_per_worker=count,
        timeout_seconds=timeout_seconds,
        collectives=backend,
        bucket_bytes=bucket_bytes,
        loss_reduction=loss_reduction,
        shares=(1,) * (cluster.num_workers * count),  # the job's shares are along one axis of the mesh
    )
    workers: Workers = strategy.workers
    given = services(strategy)
    every = [workers.collective] if count == 1 else [cast(Collective, one) for one in given.collectives]
    return MeshJob(workers, _devices(None, count), every, given.bucket_bytes, strategy)


def _devices(given: Sequence[str] | None, count: int) -> list[str]:
    if given is not None:
        names = local_replicas.named_devices(given)
        if len(names) != count:
            raise ConfigError(
                f"devices names {len(names)}, and the mesh has {count} places. Name one for each.",
                name="devices",
                received=given,
            )
        return names
    return local_replicas.first_devices(
        count,
        needs=f"the mesh has {count} places in this process",
        name="mesh",
        instead="Start a process at each place (tfdist run -n)",
    )
