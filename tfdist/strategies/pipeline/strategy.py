"""Pipelines: a model cut into stages over processes, batches into micro-batches, in the order of a schedule."""

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.cluster import mesh as meshes
from tfdist.cluster.mesh import Mesh
from tfdist.collectives import buckets
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.keras import graphs
from tfdist.compat.keras import model as keras_model
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.keras import variables as keras_variables
from tfdist.compat.tensorflow import strategies as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded
from tfdist.compat.tensorflow.meshes.staged import PipelineReplicas
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.parallel import groups, schedules
from tfdist.parallel.axes import Axes
from tfdist.parallel.initial import InitialParts
from tfdist.parallel.pipeline.division import Division
from tfdist.parallel.pipeline.stage import Pipe, StageStep
from tfdist.parallel.pipeline.weights import PIPELINE, StageSharding
from tfdist.parallel.schedules import Schedule
from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from tfdist.strategies.registry import MESH_VARIABLE
from tfdist.training.multi_worker import agreement
from tfdist.training.strategy import KerasTraining

__all__ = ["PipelineStrategy"]

DATA = "data"
_log = logging.getLogger("tfdist")


class PipelineStrategy(KerasTraining, tf.distribute.Strategy):
    """A model cut into stages over processes; plain Keras `compile` and `fit`, the numbers of one device.

    Every process runs the same script with the same data, and builds the same Sequential or functional model. A stage
    holds the weights of its layers, and the optimizer's variables of these, and no others. A batch is cut into
    micro-batches; what a stage makes of one it sends to the stages that take it, also over several stages. Gradients
    are added up over micro-batches, and reduced over the processes of a stage; then every stage updates its weights
    once. So weights, losses and metrics are those of one device, whatever the schedule, but for those without a flush.

    Args:
        cluster: who takes part and who this process is; None asks `tfdist.cluster.from_environment`.
        stages: a number of stages, between which the model is balanced by its shapes; the names of the layers that
            begin the second and later stages, such as ``("block_2", "block_4")``; "auto", which takes the number from
            the mesh; or a function that returns names, given the model and the number of parts.
        microbatches: into how many parts a replica's batch is cut; fewer where it has fewer examples. 1: the stages
            compute one after the other.
        schedule: "1f1b", "gpipe" or "interleaved", which update weights once a batch; "pipedream" or "spectrain", which
            do so after each micro-batch, by gradients of older weights; or a function of your own that returns a
            `tfdist.parallel.schedules.Schedule`, given stages, micro-batches and chunks.
        chunks: parts of the model on each stage, of "interleaved".
        mesh: a text such as ``"data=2,pipeline=2"``, a dictionary or a `tfdist.cluster.mesh.Mesh`; None takes the
            variable ``TFDIST_MESH`` (`tfdist run --mesh`), or else as many replicas as the processes are times the
            stages.
        recompute: whether a backward pass computes its forward pass again, with the same random numbers, so that a
            stage keeps no more of a micro-batch than it was sent.
        replicas_per_worker: 1; a process is one device.
        timeout_seconds: see `MultiWorkerMirroredStrategy`.
        collectives: "native" or "auto": the native engine.
        bucket_bytes: see `MultiWorkerMirroredStrategy`.
        loss_reduction: what a loss function of yours that returns one number is: "mean" or "sum" over examples.

    Raises:
        ConfigError: processes, mesh and stages do not fit together; in `fit`: the model cannot be cut so.
        UnsupportedError: other collectives; in `fit`: a model, a step, a layer or an optimizer that cannot be computed
            in stages or micro-batches. The message says what to do instead.

    Example:
        >>> strategy = PipelineStrategy(stages=2, microbatches=8)                # doctest: +SKIP
        >>> with strategy.scope():                                                # doctest: +SKIP
        ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1024), keras.layers.Dense(2)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, batch_size=64)                                        # doctest: +SKIP

    Source: Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019; D.
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021. There a
    stage talks to its neighbours alone; here a tensor goes straight to each stage that takes it.
    """

    def __init__(
        self,
        cluster: "clusters.Cluster | None" = None,
        *,
        stages: Any = "auto",
        microbatches: int = 8,
        schedule: str | Callable[..., Schedule] = "1f1b",
        chunks: int = 1,
        mesh: Any = None,
        recompute: bool = False,
        replicas_per_worker: int | None = None,
        timeout_seconds: float = 1800.0,
        collectives: str | None = None,
        bucket_bytes: int | str = buckets.DEFAULT_BYTES,
        loss_reduction: str = "detect",
    ) -> None:
        cluster = clusters.from_environment() if cluster is None else cluster
        self._mesh = _mesh(mesh, stages, chunks, cluster)
        self._chunks = validation.integer("chunks", chunks, minimum=1)
        self._microbatches = validation.integer("microbatches", microbatches, minimum=1)
        self._stages = "auto" if isinstance(stages, int) else stages
        self._schedule = _made_by(schedule, self._mesh.size_of(PIPELINE), self._chunks)
        self._schedule(self._microbatches)
        self._told_of_statistics = False
        if replicas_per_worker not in (None, 1):
            raise ConfigError(
                f"replicas_per_worker is {replicas_per_worker}; in a pipeline a process is one device. Leave it out, "
                "and start as many processes as the mesh has places."
            )
        engine = validation.one_of("collectives", collectives or "auto", ("auto", "native", "tensorflow", "horovod"))
        if engine not in ("auto", "native"):
            raise UnsupportedError(
                f"collectives is {engine!r}; stages send to each other in any order, which the native engine alone "
                "carries. Leave collectives out, or choose 'native'."
            )
        self._job = MultiWorkerMirroredStrategy(
            cluster,
            replicas_per_worker=1,
            timeout_seconds=timeout_seconds,
            collectives="native" if cluster.num_workers > 1 else "auto",
            bucket_bytes=bucket_bytes,
            loss_reduction=loss_reduction,
        )
        self.loss_reduction = loss_reduction
        self._workers, chosen = self._job.workers, self._job.extended.bucket_bytes
        tf_strategies.claim_collective_keys(self, within_worker=True)
        everybody = TracedCollective(self._workers.collective, bucket_bytes=chosen)
        between = groups.along(self._workers.collective, self._mesh, [PIPELINE])
        others = groups.along(self._workers.collective, self._mesh, self._mesh.others(PIPELINE))
        along = TracedCollective(between, bucket_bytes=chosen)
        # stages reduce other gradients, so what the processes of a stage reduce has keys of its own
        replicas = TracedCollective(others, bucket_bytes=chosen, replica=1)
        self._axes = Axes(self._mesh, self._workers.index, {PIPELINE: along}, self._workers.waiting)
        self._pipe = Pipe(
            workers=self._workers,
            everybody=everybody,
            traced=along,
            between=between,
            stage=between.rank,
            stages=between.size,
            replica=others.rank,
            replicas=others.size,
            schedule=self._schedule,
            microbatches=self._microbatches,
            recompute=recompute,
        )
        extended = PipelineReplicas(
            self,
            staged=self._staged,
            between=[replicas],
            examples=[others.rank],
            everybody=everybody,
            late=self._axes.late,
            parts_of_initial=InitialParts(everybody, self._workers.waiting),
            devices=tf_strategies.local_devices(("GPU",))[:1] or tf_strategies.local_devices(("CPU",))[:1],
            collective=replicas,
            waiting=self._workers.waiting,
            traced=agreement.Signatures(self._workers).require_alike,
        )
        tf.distribute.Strategy.__init__(self, extended)

    @property
    def mesh(self) -> Mesh:
        """How the processes lie."""
        return self._mesh

    @property
    def stage(self) -> int:
        """The number of this process's stage, from 0."""
        return self._pipe.stage

    @property
    def cuts_weights(self) -> bool:
        """Whether weights may lie on other processes."""
        return self._pipe.stages > 1

    @property
    def _position(self) -> tuple[int, int]:
        """Which of the parts of a batch this process has, and how many there are."""
        return self._pipe.replica, self._pipe.replicas

    def division_of(self, model: keras.Model) -> Division:
        """Return how a model is cut, which is decided once; see `Division.stages`."""
        own = vars(model)  # which ends with the model, as its graph does
        if own.get("_tfdist_division", (None, None))[0] is not self:
            division = Division(model, self._pipe.stages * self._chunks, self._stages)
            own["_tfdist_division"] = (self, division)
            if self._workers.is_chief and division.stages:
                _log.warning("tfdist: the parts of %s begin with %s", model.name, ", ".join(division.stages))
            if self._workers.is_chief and len(division.calls) < division.parts:
                _log.warning(
                    "The model %r has %d calls of layers, and is cut into %d parts: the last ones compute the loss, or "
                    "nothing. Take fewer stages, or fewer chunks.",
                    model.name,
                    len(division.calls),
                    division.parts,
                )
        found: Division = own["_tfdist_division"][1]
        return found

    def before_build(self, model: Any) -> None:
        """Give each weight of a model to the stages that compute with it, before its slots are made."""
        if graphs.graph_of(model) is not None:  # then its layers have been called
            self._settle(model)

    def ready(self, model: Any) -> None:
        """Look whether a model can be computed in stages, and give each weight to its stages.

        Raises:
            UnsupportedError: it cannot.
        """
        self._require_possible(model)
        if graphs.graph_of(model) is not None:  # then its layers have been called
            self._settle(model)

    def own_step(self, model: Any, kind: str, unseeded: Any) -> Callable[[Any, int], Any]:
        """Return a stage's step.

        Args:
            model: the model.
            kind: "train", "test" or "predict".
            unseeded: Keras' generator for random numbers without a seed.
        """
        if kind == "train" and model.optimizer is not None and not model.optimizer.built:
            with self.scope():  # slots are made by all processes in one order, which a step cannot do
                keras_optimizer.build(model.optimizer, model.trainable_weights)
        made = StageStep(model, self.division_of(model), self._pipe, unseeded, loss_reduction=self.loss_reduction)
        step: Callable[[Any, int], Any] = getattr(made, kind)
        return step

    def _settle(self, model: Any) -> None:
        """Give each weight to its stages, in the order of the model, and then let all be made in one order."""
        if self._pipe.stages == 1:
            return
        holders = self.division_of(model).holders(self._pipe.stages)
        weights = list(model.weights)
        paths = agreement.relative_paths([weight.path for weight in weights])
        for weight, path in zip(weights, paths, strict=True):
            sharding = sharded.sharding_of(weight)
            if sharding is not None and sharding.holders is None:
                sharding.label = path
                sharding.holders = holders.get(id(weight), (0,))
        self.extended.settle()
        for weight in weights:  # an optimizer that was built before knows the variable by what it was
            former = getattr(keras_variables.value_of(weight), "former", None)
            if former is not None:
                keras_variables.value_of(weight).former = None
                for optimizer in keras_model.optimizers(model):
                    keras_optimizer.moved(optimizer, weight, former)

    def _require_possible(self, model: Any) -> None:
        own = keras_model.has_own_step(model)
        if own is not None:
            raise UnsupportedError(
                f"the model {model.name!r} has a {own} of its own, and a pipeline computes a step in stages: no "
                "process can run all of it. Train by compile() and fit() alone, or take another strategy."
            )
        if model.run_eagerly or (model.jit_compile is True):
            what = "run_eagerly" if model.run_eagerly else "jit_compile"
            raise UnsupportedError(
                f"{what} is True; the stages of a pipeline send to each other in the middle of a graph of TensorFlow. "
                f"Pass {what}=False to model.compile()."
            )
        self.division_of(model)
        if self._microbatches > 1 and not self._told_of_statistics:
            found = [one for one in keras_model.layers(model) if isinstance(one, keras.layers.BatchNormalization)]
            if found and self._workers.is_chief:
                self._told_of_statistics = True
                _log.warning(
                    "The layer %r normalises with the statistics of a micro-batch, and no longer with those of the "
                    "batch. Pass microbatches=1, or use LayerNormalization or GroupNormalization.",
                    found[0].name,
                )

    def _staged(self, path: str, shape: tuple[int, ...], dtype: tf.DType) -> StageSharding | None:
        del dtype
        if self._pipe.stages == 1:
            return None
        return StageSharding(
            self._axes,
            self._pipe.traced,
            is_first_replica=self._pipe.replica == 0,
            shape=shape,
            path=path,
        )


def _mesh(given: Any, stages: Any, chunks: int, cluster: "clusters.Cluster") -> Mesh:
    named = os.environ.get(MESH_VARIABLE)
    count = None
    if isinstance(stages, bool) or (isinstance(stages, int) and stages < 1):
        raise ConfigError(f"stages is {stages}; it must be a number from 1 on, 'auto', or names of layers.")
    if isinstance(stages, int):
        count = stages
    elif not isinstance(stages, str) and not callable(stages):
        count, left = divmod(len(stages) + 1, chunks)
        if left:
            raise ConfigError(
                f"stages names {len(stages)} layers, so the model has {len(stages) + 1} parts, and each stage has "
                f"{chunks} (chunks). Name a layer for each part but the first."
            )
    if given is not None or named:
        mesh = meshes.of(given) if given is not None else Mesh.parse(str(named), name=MESH_VARIABLE)
        unknown = set(mesh.names) - {DATA, PIPELINE}
        if PIPELINE not in mesh.names or unknown:
            raise UnsupportedError(
                f"the mesh is {mesh}; a pipeline has the axes {DATA} and {PIPELINE}. Write one as data=2,pipeline=2."
            )
    else:
        size = cluster.num_workers if count is None else count
        if cluster.num_workers % size:
            raise ConfigError(
                f"stages is {size}, and there are {cluster.num_workers} processes ({cluster.source}); each stage has "
                f"as many. Start a multiple of {size}."
            )
        mesh = Mesh(((DATA, cluster.num_workers // size), (PIPELINE, size)))
    mesh.require_size(cluster.num_workers, 1, cluster.source)
    if count is not None and mesh.size_of(PIPELINE) != count:
        raise ConfigError(
            f"stages says {count} stages, and the mesh {mesh} has {mesh.size_of(PIPELINE)}. Leave one of the two out."
        )
    return mesh


def _made_by(schedule: str | Callable[..., Schedule], stages: int, chunks: int) -> Callable[[int], Schedule]:
    """Return a function of the number of micro-batches that returns a schedule that can be run."""

    @functools.cache
    def made(microbatches: int) -> Schedule:
        found = (
            schedule(stages, microbatches, chunks)
            if callable(schedule)
            else schedules.named(
                # a last batch of few examples may have another number of micro-batches
                "gpipe" if schedule == "interleaved" and microbatches % stages else schedule,
                stages=stages,
                microbatches=microbatches,
                chunks=chunks,
            )
        )
        if (found.stages, found.microbatches, found.chunks) != (stages, microbatches, chunks):
            raise ConfigError(
                f"the schedule {found.name!r} is for {found.stages} stages, {found.microbatches} micro-batches and "
                f"{found.chunks} chunks, and was asked for {stages}, {microbatches} and {chunks}."
            )
        return schedules.require_sound(found)

    return made
