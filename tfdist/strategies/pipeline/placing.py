"""Where the stages of a pipeline lie: on processes, or on the devices of one."""

import os
from typing import Any

from tfdist import cluster as clusters
from tfdist.cluster import mesh as meshes
from tfdist.cluster.mesh import Mesh
from tfdist.compat.tensorflow import strategies as tf_strategies
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.parallel.pipeline.weights import DATA, PIPELINE
from tfdist.strategies import stages as sharding_stages
from tfdist.strategies import threads
from tfdist.strategies.registry import MESH_VARIABLE


def mesh_of(given: Any, stages: Any, chunks: int, cluster: "clusters.Cluster", places: int) -> Mesh:
    """Return the mesh of replicas and stages.

    Args:
        given: a mesh, or what makes one; None takes ``TFDIST_MESH``, or what the rest says.
        stages: see `PipelineStrategy`.
        chunks: parts of the model on each stage.
        cluster: the processes.
        places: how many stages each of them can have.
    Raises:
        ConfigError: stages, mesh and processes do not fit together.
        UnsupportedError: the mesh has an axis that no pipeline has.
    """
    named = os.environ.get(MESH_VARIABLE)
    count = _count(stages, chunks)
    if given is not None or named:
        mesh = meshes.of(given) if given is not None else Mesh.parse(str(named), name=MESH_VARIABLE)
        _require_axes(mesh)
    elif cluster.num_workers == 1:
        mesh = Mesh(((DATA, 1), (PIPELINE, places if count is None else count)))
    else:
        size = cluster.num_workers if count is None else count
        if cluster.num_workers % size:
            raise ConfigError(
                f"stages is {size}, and there are {cluster.num_workers} processes ({cluster.source}); each stage has "
                f"as many. Start a multiple of {size}."
            )
        mesh = Mesh(((DATA, cluster.num_workers // size), (PIPELINE, size)))
    if cluster.num_workers > 1:
        mesh.require_size(cluster.num_workers, 1, cluster.source)
    if count is not None and mesh.size_of(PIPELINE) != count:
        raise ConfigError(
            f"stages says {count} stages, and the mesh {mesh} has {mesh.size_of(PIPELINE)}. Leave one of the two out."
        )
    return mesh


def devices_of(mesh: Mesh, cluster: "clusters.Cluster", replicas_per_worker: int | None) -> tuple[str, ...]:
    """Return the device of each stage, where this process has several; else none.

    Args:
        mesh: of replicas and stages.
        cluster: the processes.
        replicas_per_worker: devices of each process that somebody asked for.
    Raises:
        ConfigError: this process has fewer devices, or others were asked for.
    """
    stages = mesh.size_of(PIPELINE)
    if cluster.num_workers > 1:
        if replicas_per_worker not in (None, 1):
            raise ConfigError(
                f"replicas_per_worker is {replicas_per_worker}; in a pipeline over {cluster.num_workers} processes "
                "each is one device. Leave it out, and start as many processes as the mesh has places."
            )
        return ()
    if mesh.size > stages:
        raise ConfigError(
            f"the mesh {mesh} has {mesh.size // stages} replicas of each stage, and there is one process "
            f"({cluster.source}), which can have all stages of one replica. Start a process at each place: tfdist run "
            f"-n {mesh.size} --mesh {mesh}."
        )
    if replicas_per_worker not in (None, stages):
        raise ConfigError(
            f"replicas_per_worker is {replicas_per_worker}, and the pipeline has {stages} stage"
            f"{'' if stages == 1 else 's'}, each on a device of this process. Leave one of the two out."
        )
    if stages == 1:
        return ()
    threads.ensure_inter_op(stages)
    present = tf_strategies.local_devices(("GPU",)) or tf_strategies.local_devices(("CPU",))
    if len(present) < stages:
        raise ConfigError(
            f"the pipeline has {stages} stages, and there is one process ({cluster.source}) with {len(present)} device"
            f"{'' if len(present) == 1 else 's'}: {', '.join(present)}. Start a process for each stage (tfdist run -n "
            f"{stages}), or split the CPU before TensorFlow starts: tfdist.strategies.use_logical_cpus({stages})."
        )
    return tuple(present[:stages])


def require_slots_alone(stage: int | None) -> None:
    """Raise unless a stage of sharding is one that the replicas of a pipeline's stage have.

    Args:
        stage: of sharded data parallelism, or None.
    Raises:
        ConfigError: it is no such stage.
        UnsupportedError: it shards more than slots.
    """
    sharding_stages.require("shard_optimizer", stage)
    if stage is not None and stage > 1:
        raise UnsupportedError(
            f"shard_optimizer is {stage}; the replicas of a pipeline's stage shard the slots of their optimizer alone. "
            "Take shard_optimizer=1 and more stages, each of which has fewer weights and gradients, or shard those "
            f"without stages: --strategy sharded-data-parallel with TFDIST_SHARDING_STAGE={stage}."
        )


def _count(stages: Any, chunks: int) -> int | None:
    """Return how many stages somebody asked for, if anybody did."""
    if isinstance(stages, bool) or (isinstance(stages, int) and stages < 1):
        raise ConfigError(f"stages is {stages}; it must be a number from 1 on, 'auto', or names of layers.")
    if isinstance(stages, int):
        return stages
    if isinstance(stages, str) or callable(stages):
        return None
    count, left = divmod(len(stages) + 1, chunks)
    if left:
        raise ConfigError(
            f"stages names {len(stages)} layers, so the model has {len(stages) + 1} parts, and each stage has "
            f"{chunks} (chunks). Name a layer for each part but the first."
        )
    return count


def _require_axes(mesh: Mesh) -> None:
    unknown = set(mesh.names) - {DATA, PIPELINE}
    if PIPELINE in mesh.names and not unknown:
        return
    if PIPELINE in mesh.names:
        cut = ",".join(f"{name}={size}" for name, size in mesh.axes if name != PIPELINE)
        raise UnsupportedError(
            f"the mesh is {mesh}; inside of a stage weights are whole, so a pipeline has the axes {DATA} and "
            f"{PIPELINE} alone. Take more stages in the place of {', '.join(sorted(unknown))}, or cut weights without "
            f"stages: --strategy model-parallel --mesh {cut}."
        )
    raise UnsupportedError(
        f"the mesh is {mesh}; a pipeline has the axes {DATA} and {PIPELINE}. Write one as data=2,pipeline=2."
    )
