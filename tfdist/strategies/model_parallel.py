"""Model parallelism: weights in parts over the devices of a mesh, examples divided along one of its axes."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.cluster import mesh as meshes
from tfdist.cluster.mesh import Mesh
from tfdist.cluster.strategy_table import COLLECTIVES
from tfdist.collectives import buckets
from tfdist.collectives.traced import TracedCollective, relative_paths
from tfdist.compat.keras import keras_distributions, keras_trainer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.meshes.mesh_replicas import ModelParallelReplicas
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.parallel import mesh_axes
from tfdist.parallel.compute import sequence_parallel, vocabulary
from tfdist.parallel.compute.activations import Along
from tfdist.parallel.layouts import Layouts
from tfdist.parallel.weight_layouts import MeshLayout
from tfdist.strategies import mesh_jobs
from tfdist.variables import MESH

__all__ = ["ModelParallelStrategy"]


_BACKENDS = tuple(name for name in COLLECTIVES if name != "horovod")  # its groups must be known when it starts


class ModelParallelStrategy(mesh_jobs.MeshStrategy):
    """Model parallelism: weights cut along the axes of a mesh of devices, with plain Keras and one device's numbers.

    The devices belong to one or more processes, each with one or more devices. Every process runs the same script with
    the same data. Devices that differ along the axis of the examples take their rows of each global batch. Devices that
    differ along other axes have the same rows, and each holds a part of the weights and of the optimizer's variables.
    Of a weight of S bytes that is cut along axes of sizes a and b, each device holds S / (a b) bytes. Dense layers,
    attention, convolutions and embeddings compute with their part. Any other layer gathers its weights when it uses
    them, so any layer works with any layout. The gradient of a part is summed only along the axis of the examples.

    Args:
        cluster: the processes, and the place of this one among them; None asks `tfdist.cluster.from_environment`.
        layout_map: the axis along which each dimension of a weight is cut: a dictionary or
            `keras.distribution.LayoutMap` from regular expressions for whole paths of weights to layouts such as
            ``(None, "model")``. "auto": columns, then rows, attention by heads, tables by words and convolutions by
            filters, along the last axis (see `parallel.layouts.ProposedLayouts`); the chief logs them. "auto-sequence"
            also cuts the sequence of activations, as patterns for ``path/output`` do. None: no weight is cut.
        mesh: a text such as ``"batch=2,model=2"``, a dictionary, a `tfdist.cluster.mesh.Mesh` or Keras' `DeviceMesh`,
            of which only names and sizes count. None takes the mesh of the ``layout_map``, or the variable
            ``TFDIST_MESH`` (`tfdist run --mesh`). The sizes multiply to the number of devices of all processes. The
            last axes are inside a process; only the axis of the examples may span both a process and several processes.
        batch_dim_name: the axis along which examples are divided; None takes the first.
        devices: the devices of a single process, in the order of their places, such as ``["GPU:0", "GPU:1"]``. None
            takes its first GPUs, or else its first logical CPU devices.
        replicas_per_worker: the number of devices of each process; None takes as many as the mesh has places for each.
        timeout_seconds: see `MultiWorkerMirroredStrategy`.
        collectives: "tensorflow", "native" or "auto", see `MultiWorkerMirroredStrategy`; in a single process "auto" is
            native between CPUs if there is a compiler.
        bucket_bytes: see `MultiWorkerMirroredStrategy`.
        loss_reduction: see `MultiWorkerMirroredStrategy`.
        shares: the weight of each place's part of a batch along the axis of examples; see `shares`. None: equal parts.

    Raises:
        ConfigError: there is no mesh, or its size is wrong; there are too few devices; a layout names an unknown axis,
            or does not fit a weight's shape when the weight is made. In `fit`, `evaluate` and `predict`: a pattern
            matches no weight.
        UnsupportedError: Horovod's collectives are asked for. In `fit`: an optimizer may use the whole of a weight that
            is cut, or ``run_eagerly`` is set while devices of one process hold parts.

    Example:
        >>> tfdist.strategies.use_logical_cpus(4)                                 # doctest: +SKIP
        >>> strategy = ModelParallelStrategy(                                     # doctest: +SKIP
        ...     mesh="batch=2,model=2", layout_map={".*kernel": (None, "model")}
        ... )
        >>> with strategy.scope():                                                # doctest: +SKIP
        ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1024), keras.layers.Dense(2)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, batch_size=64)                                        # doctest: +SKIP

    Source: N. Shazeer et al., "Mesh-TensorFlow: Deep Learning for Supercomputers", 2018; Y. Xu et al., "GSPMD: General
    and Scalable Parallelization for ML Computation Graphs", 2021. Those systems split every computation with the
    weights. Here, unknown layers repeat their computation along all axes except the axis of the examples.
    """

    def __init__(
        self,
        cluster: "clusters.Cluster | None" = None,
        *,
        layout_map: Any = None,
        mesh: Any = None,
        batch_dim_name: str | None = None,
        devices: Sequence[str] | None = None,
        replicas_per_worker: int | None = None,
        timeout_seconds: float = 1800.0,
        collectives: str | None = None,
        bucket_bytes: int | str = buckets.DEFAULT_BYTES,
        loss_reduction: str = "detect",
        shares: Sequence[int] | str | None = None,
    ) -> None:
        cluster = clusters.from_environment() if cluster is None else cluster
        self._mesh = _mesh(mesh, layout_map)
        self._batch = self._mesh.names[0] if batch_dim_name is None else self._mesh.require(batch_dim_name)
        local = self._mesh.devices_of_each(cluster.num_workers, cluster.source)
        if replicas_per_worker is not None:
            local = validation.integer("replicas_per_worker", replicas_per_worker, minimum=1)
            self._mesh.require_size(cluster.num_workers, local, cluster.source)
        processes = self._mesh.between_processes(local, divisible=self._batch)
        self._layouts = Layouts(self._mesh, layout_map, batch=self._batch)
        backend = validation.one_of("collectives", collectives or "auto", _BACKENDS)
        self.loss_reduction = loss_reduction
        job = mesh_jobs.join(
            cluster,
            devices,
            local,
            backend,
            timeout_seconds=timeout_seconds,
            bucket_bytes=bucket_bytes,
            loss_reduction=loss_reduction,
        )
        self._job, self._workers = job, job.workers
        tf_strategies.claim_collective_keys(self, within_worker=True)
        self._axes = job.axes(self._mesh, processes, batch=self._batch)
        along = mesh_axes.along(self._workers.collective, processes, [self._batch])
        self._begin(
            ModelParallelReplicas,
            examples=[self._mesh.coordinates(one.rank)[self._batch] for one in self._axes],
            late=self._axes[0].late,
            collective=TracedCollective(along, bucket_bytes=job.bucket_bytes),
            traced=[one.along(self._batch) for one in self._axes],
            shardings_of=self._shardings_of,
        )
        self._begin_shares(shares)

    @property
    def mesh(self) -> Mesh:
        """The mesh of devices."""
        return self._mesh

    @property
    def batch_dim_name(self) -> str:
        """The axis along which examples are divided."""
        return self._batch

    @property
    def cuts_weights(self) -> bool:
        """Whether weights may be in parts."""
        others = self._mesh.others(self._batch)
        return self._layouts.may_cut and any(self._mesh.size_of(axis) > 1 for axis in others)

    @property
    def _position(self) -> tuple[int, int]:
        first = self._mesh.coordinates(self._axes[0].rank)[self._batch]
        return first // self._slices, self._mesh.size_of(self._batch) // self._slices

    def heeds(self, distribution: Any) -> bool:
        """Return whether a distribution of Keras asks for the same mesh and layouts as this strategy.

        Args:
            distribution: the distribution given to `keras.distribution.set_distribution`.
        """
        if not isinstance(distribution, keras.distribution.ModelParallel):
            return False
        mesh = meshes.of(distribution.device_mesh)
        if (mesh, distribution.batch_dim_name) != (self._mesh, self._batch):
            return False
        asked = Layouts(mesh, keras_distributions.layout_map(distribution), batch=self._batch)
        return (asked.given, asked.outputs.given) == (self._layouts.given, self._layouts.outputs.given)

    def ready(self, model: Any) -> None:
        """Let a model's layers compute with their parts of weights, and check that the layouts fit it.

        Args:
            model: the model that is about to train, test or predict.
        Raises:
            ConfigError: a layout matches no weight.
            UnsupportedError: the model runs eagerly, and devices of this process hold parts of its weights.
        """
        every = keras_trainer.layers(model)
        if model.run_eagerly and self.cuts_weights and self._slices < len(self._axes):
            raise UnsupportedError(
                f"the model {model.name!r} runs eagerly (run_eagerly=True), so the replicas of one process run one "
                "after the other, but each needs the others' parts. Leave run_eagerly out, or start a process at each "
                f"place of the mesh: tfdist run -n {self._mesh.size}.",
                name="run_eagerly",
                received=True,
            )
        sequence_parallel.adapt(every, sequence_parallel.Placing(self._layouts.outputs, self._along))
        vocabulary.adapt(model, self._axes[0].late)
        # Keras numbers unnamed layers per process, and processes may have built other models before
        for weight, path in zip(model.weights, relative_paths([w.path for w in model.weights]), strict=True):
            for sharding in sharded_variable.shardings_of(weight):
                sharding.label = path
        if all(layer.built for layer in every):
            self._layouts.require_all_matched()
            paths = [layer.path or layer.name for layer in sequence_parallel.layers_of(every)]
            self._layouts.outputs.require_all_matched(paths)
            self._log_proposal(model)

    def _along(self, axis: str, label: str) -> Along | None:
        replica = 0 if len(self._axes) == 1 else tf_strategies.local_replica(self)
        return None if replica is None else Along(self._axes[replica], axis, label)

    def _shardings_of(
        self, path: str, shape: tuple[int, ...], dtype: tf.DType, trainable: bool
    ) -> list[MeshLayout] | None:
        del dtype, trainable
        layout = self._layouts.of(path, shape)
        cut = any(axis is not None and self._mesh.size_of(axis) > 1 for axis in layout)
        return [MeshLayout(axes, layout, shape, path) for axes in self._axes] if cut else None


def _mesh(given: Any, layout_map: Any) -> Mesh:
    known = getattr(layout_map, "device_mesh", None)
    named = MESH.read(os.environ)
    if given is not None:
        return meshes.of(given)
    if known is not None:
        return meshes.of(known)
    if named:
        return Mesh.parse(named, name=MESH.name)
    raise ConfigError(
        "no mesh was given. Pass mesh='batch=2,model=2' with sizes that multiply to the number of processes, start the "
        "script by tfdist run --mesh batch=2,model=2, or pass a keras.distribution.LayoutMap of a mesh."
    )
