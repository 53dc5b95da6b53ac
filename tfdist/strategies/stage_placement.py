"""The placement of a pipeline's stages on processes, or on the devices of one process."""

import logging
import os
from typing import Any

from tfdist import cluster as clusters
from tfdist.cluster import mesh as meshes
from tfdist.cluster.mesh import Mesh
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.gradients.sharding import shard_layout
from tfdist.parallel.layouts import Layouts
from tfdist.parallel.pipeline.stage_weights import DATA, MODEL, PIPELINE
from tfdist.strategies import local_replicas
from tfdist.validation import counted
from tfdist.variables import MESH

_log = logging.getLogger("tfdist")


def mesh_of(given: Any, stages: Any, chunks: int, cluster: "clusters.Cluster", places: int) -> Mesh:
    """Return the mesh along whose axes replicas, stages and parts of weights lie."""
    named = MESH.read(os.environ)
    count = _count(stages, chunks)
    if given is not None or named:
        mesh = meshes.of(given) if given is not None else Mesh.parse(named, name=MESH.name)
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
    if cluster.num_workers > 1 and mesh.size != cluster.num_workers:
        raise ConfigError(
            f"the mesh {mesh} has {mesh.size} places, and there are {cluster.num_workers} processes "
            f"({cluster.source}); a pipeline over several processes has one of one device at each place. Start "
            f"{mesh.size}: tfdist run -n {mesh.size} --mesh {mesh}.",
            name="mesh",
            received=str(mesh),
        )
    if count is not None and mesh.size_of(PIPELINE) != count:
        raise ConfigError(
            f"stages says {count} stages, and the mesh {mesh} has {mesh.size_of(PIPELINE)}. Leave one of the two out.",
            name="stages",
            received=count,
        )
    return mesh


def devices_of(mesh: Mesh, cluster: "clusters.Cluster", replicas_per_worker: int | None) -> tuple[str, ...]:
    """Return the device of each stage if this process has all stages; an empty tuple if there are several processes."""
    stages = mesh.size_of(PIPELINE)
    if cluster.num_workers > 1:
        if replicas_per_worker not in (None, 1):
            raise ConfigError(
                f"replicas_per_worker is {replicas_per_worker}; in a pipeline over {cluster.num_workers} processes "
                "each is one device. Leave it out, and start as many processes as the mesh has places."
            )
        # a single thread runs the newest operation first: the next pass before the sends of the last one
        local_replicas.ensure_threads(1)
        return ()
    if mesh.size > stages:
        raise ConfigError(
            f"the mesh {mesh} has {mesh.size // stages} places for each stage, and there is one process "
            f"({cluster.source}), which can have all stages of one replica. Start a process at each place: tfdist run "
            f"-n {mesh.size} --mesh {mesh}.",
            name="mesh",
            received=str(mesh),
        )
    if replicas_per_worker not in (None, stages):
        raise ConfigError(
            f"replicas_per_worker is {replicas_per_worker}, and the pipeline has "
            f"{counted(stages, 'stage')}, each on a device of this process. Leave one of the two out.",
            name="replicas_per_worker",
            received=replicas_per_worker,
        )
    if stages == 1:
        return ()
    local_replicas.ensure_threads(stages)
    return tuple(
        local_replicas.first_devices(
            stages,
            needs=f"the pipeline has {stages} stages, and there is one process ({cluster.source})",
            name="stages",
            instead=f"Start a process for each stage (tfdist run -n {stages})",
        )
    )


def require_slots_alone(stage: int | None) -> None:
    """Raise unless the replicas of a pipeline's stage support this stage of sharding."""
    shard_layout.require_stage("shard_optimizer", stage)
    if stage is not None and stage > 1:
        raise UnsupportedError(
            f"shard_optimizer is {stage}; the replicas of a pipeline's stage can only shard optimizer slots. "
            "Use shard_optimizer=1 and more stages, each of which has fewer weights and gradients, or shard those "
            f"without stages: --strategy sharded-data-parallel with TFDIST_SHARDING_STAGE={stage}.",
            name="shard_optimizer",
            received=stage,
        )


def _count(stages: Any, chunks: int) -> int | None:
    """Return the number of stages that the argument ``stages`` asks for, or None if it leaves it open."""
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


def size_of(mesh: Mesh, axis: str) -> int:
    """Return the size of an axis; 1 if the mesh has no axis of that name."""
    return dict(mesh.axes).get(axis, 1)


def layouts_of(mesh: Mesh, layout_map: Any, cluster: "clusters.Cluster") -> Layouts:
    """Return the layouts of a stage's weights along the model axis."""
    parts = size_of(mesh, MODEL)
    if parts > 1 and layout_map is None:
        raise ConfigError(
            f"the mesh is {mesh}, and no layout cuts weights along {MODEL}, so its {parts} processes would "
            'compute the same. Pass layout_map="auto" or layouts, or set TFDIST_LAYOUTS=auto.',
            name="layout_map",
            received=layout_map,
        )
    if layout_map is not None and MODEL not in mesh.names:
        raise ConfigError(
            f"layout_map is given, and the mesh {mesh} has no axis {MODEL} to cut a stage's weights along. Write "
            f"one as {mesh},{MODEL}=2, or leave layout_map out.",
            name="layout_map",
            received=layout_map,
        )
    found = Layouts(Mesh(((DATA, size_of(mesh, DATA)), (MODEL, parts))), layout_map, batch=DATA)
    if found.outputs.may_cut:
        raise UnsupportedError(
            f"the layouts cut activations ({', '.join(map(repr, found.outputs.given))}), and stages exchange whole "
            'activations. Use layouts of weights alone, such as "auto".',
            name="layout_map",
            received=layout_map,
        )
    hosts = [address.rpartition(":")[0] for address in cluster.addresses or ()]
    if (
        parts > 1
        and cluster.is_chief
        and any(len({hosts[rank] for rank in group}) > 1 for group in mesh.groups([MODEL]) if hosts)
    ):
        _log.warning(
            "Along the axis %s of the mesh %s, processes of several hosts communicate in each layer. Start a multiple "
            "of %d processes on each host.",
            MODEL,
            mesh,
            parts,
        )
    return found


def _require_axes(mesh: Mesh) -> None:
    unknown = set(mesh.names) - {DATA, PIPELINE, MODEL}
    if unknown or PIPELINE not in mesh.names:
        raise UnsupportedError(
            f"the mesh is {mesh}; a pipeline has the axes {DATA}, {PIPELINE} and {MODEL}. Write one as "
            "data=2,pipeline=2 or data=2,pipeline=2,model=2; without stages take --strategy model-parallel.",
            name="mesh",
            received=str(mesh),
        )
    if size_of(mesh, MODEL) > 1 and mesh.names[-1] != MODEL:
        rest = ",".join(f"{name}={size}" for name, size in mesh.axes if name != MODEL)
        raise ConfigError(
            f"the mesh is {mesh}; processes along {MODEL} communicate in each layer, and ranks count along the last "
            f"axis first, so it must be the last one. Write {rest},{MODEL}={size_of(mesh, MODEL)}.",
            name="mesh",
            received=str(mesh),
        )
