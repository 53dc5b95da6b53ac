"""The devices on which this process has places of a mesh, and what carries tensors between all places."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from tfdist import cluster as clusters
from tfdist.cluster.mesh import Mesh
from tfdist.collectives import buckets
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.backends.tensorflow_collective import of_replicas
from tfdist.collectives.collective import Collective
from tfdist.collectives.traced import TracedCollective
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.errors import ConfigError
from tfdist.parallel import mesh_groups
from tfdist.parallel.axes import Axes
from tfdist.strategies import mirrored, native_replicas, threads
from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy


@dataclass(frozen=True)
class MeshJob:
    """What the processes of a mesh have brought up.

    Attributes:
        workers: the processes, and how they agree.
        devices: of this process, in the order of its places.
        replicas: for each of them, the collective of all places of the mesh.
        bucket_bytes: how many bytes travel together.
        strategy: what has brought the processes together, and has to stay; None in one process.
    """

    workers: Workers
    devices: list[str]
    replicas: list[Collective]
    bucket_bytes: int
    strategy: Any

    def axes(self, mesh: Mesh, processes: Mesh, *, batch: str) -> list[Axes]:
        """Return the ends of the collectives along each axis, for each replica of this process."""
        along = {name: mesh_groups.of_replicas(self.replicas, mesh, [name]) for name in mesh.names}
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


def join(
    cluster: clusters.Cluster,
    devices: Sequence[str] | None,
    count: int,
    engine: str,
    *,
    timeout_seconds: float,
    bucket_bytes: int | str,
    loss_reduction: str,
) -> MeshJob:
    """Bring the processes of a mesh together; all of them call it at the same time."""
    if cluster.num_workers == 1:
        buckets.require_bytes("bucket_bytes", bucket_bytes)
        threads.ensure_inter_op(max(count, threads.devices_to_come()))
        mine = _devices(devices, count)
        own: list[Collective] = [LocalCollective()]
        if count > 1:
            own = native_replicas.of_devices(engine, mine) or list(of_replicas(mine))
        return MeshJob(Workers(), mine, own, buckets.chosen_bytes(bucket_bytes, LocalCollective()), None)
    if devices is not None:
        raise ConfigError(
            f"devices is {list(devices)!r}, and {cluster.source} gives {cluster.num_workers} processes, each of which "
            "takes its first devices. Leave devices out.",
            name="devices",
            received=list(devices),
        )
    strategy = MultiWorkerMirroredStrategy(
        cluster,
        replicas_per_worker=count,
        timeout_seconds=timeout_seconds,
        collectives=engine,
        bucket_bytes=bucket_bytes,
        loss_reduction=loss_reduction,
    )
    workers: Workers = strategy.workers
    given = services(strategy)
    every = [workers.collective] if count == 1 else [cast(Collective, one) for one in given.collectives]
    return MeshJob(workers, _devices(None, count), every, given.bucket_bytes, strategy)


def _devices(given: Sequence[str] | None, count: int) -> list[str]:
    """Return the devices of this process's places, as TensorFlow spells them."""
    if given is not None:
        names = mirrored.resolved(given)
        if len(names) != count:
            raise ConfigError(
                f"devices names {len(names)}, and the mesh has {count} places. Name one for each.",
                name="devices",
                received=given,
            )
        return names
    present = tf_strategies.local_devices(("GPU",)) or tf_strategies.local_devices(("CPU",))
    if len(present) < count:
        raise ConfigError(
            f"the mesh has {count} places in this process, which has {len(present)} device"
            f"{'' if len(present) == 1 else 's'}: {', '.join(present)}. Start a process at each place (tfdist run -n), "
            f"or split the CPU before TensorFlow starts: tfdist.strategies.use_logical_cpus({count}).",
            name="mesh",
            received=count,
        )
    return present[:count]
