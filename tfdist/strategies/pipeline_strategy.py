"""Pipeline parallelism: stages of a model compute micro-batches in the order of a schedule."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.cluster.mesh import Mesh
from tfdist.collectives import buckets
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.traced import TracedCollective, relative_paths
from tfdist.compat import planted
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.meshes.graph_rewrites import Late
from tfdist.compat.tensorflow.meshes.staged import PipelineReplicas
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.gradients.sharding.sharded_slots import UPDATES
from tfdist.parallel import mesh_axes
from tfdist.parallel.compute import sequence_parallel
from tfdist.parallel.mesh_axes import Axes
from tfdist.parallel.pipeline import whole_batches
from tfdist.parallel.pipeline.division import Division, has_named
from tfdist.parallel.pipeline.slots import StageSlots
from tfdist.parallel.pipeline.stage import Pipe, StageStep
from tfdist.parallel.pipeline.stage_weights import DATA, MODEL, PIPELINE, StageLayout
from tfdist.parallel.weight_layouts import MeshLayout
from tfdist.planner import schedules
from tfdist.planner.schedules import Schedule
from tfdist.strategies import local_replicas, mesh_jobs, stage_placement
from tfdist.training.checks import step_probe

__all__ = ["PipelineStrategy"]

_log = logging.getLogger("tfdist")


class PipelineStrategy(mesh_jobs.MeshStrategy):
    """A strategy that cuts a model into stages, on several processes or on the devices of one process.

    Use plain Keras `compile` and `fit`. Every process runs the same script with the same data, and builds the same
    model: a Sequential or functional model, or one that names its blocks. A stage holds only the weights of its layers
    and their optimizer variables. A batch is cut into micro-batches. A stage sends its results for a micro-batch
    directly to the stages that use them, which need not be its neighbours. Gradients are summed over micro-batches and
    reduced over the processes of a stage. Then each stage updates its weights once. So under every schedule with a
    flush, weights, losses and metrics are those of one device. A single process has all stages, each on its own device.

    Args:
        cluster: the processes, and the index of this one; None calls `tfdist.cluster.from_environment`.
        stages: a number of stages, balanced by the shapes of the model; or the names of the layers that begin the
            second and later stages, such as ``("block_2", "block_4")``. "auto" takes the number from the mesh. A
            function receives the model and the number of parts, and returns such names.
        layout_map: layouts of a stage's weights along the axis "model" of the mesh, see `ModelParallelStrategy`:
            layouts by patterns, "auto", or "auto:dense,dense_1" for the weights of these layers alone.
        microbatches: parts of a replica's batch; fewer if it has fewer examples. With 1, one stage computes at a time.
        schedule: "1f1b", "eager-1f1b", "gpipe" or "interleaved" update weights once per batch. "pipedream" and
            "spectrain" update after each micro-batch, by gradients of older weights. A function of yours receives the
            numbers of stages, micro-batches and chunks, and returns a `tfdist.planner.schedules.Schedule`.
        chunks: parts of the model on each stage, for "interleaved".
        mesh: a text such as ``"data=2,pipeline=2"`` or ``"data=2,pipeline=2,model=2"``, a dictionary or a
            `tfdist.cluster.mesh.Mesh`. None takes the variable ``TFDIST_MESH`` (`tfdist run --mesh`), or else as many
            replicas as fit the processes. Processes along "model", the last axis, have the same rows, and each holds a
            part of the weights of their stage.
        recompute: whether a backward pass repeats its forward pass, with the same random numbers. Then a stage keeps
            only its inputs of a micro-batch.
        replicas_per_worker: devices of a single process with all stages, otherwise 1; None: one for each stage.
        timeout_seconds: see `MultiWorkerMirroredStrategy`.
        collectives: "native" or "auto": the native backend.
        bucket_bytes: see `MultiWorkerMirroredStrategy`.
        shard_optimizer: None or 1. With 1, each of the D replicas of a stage holds 1 / D of the optimizer's slots,
            updates that part of the stage's weights, and receives the other parts.
        loss_reduction: how a loss function of yours that returns one number depends on examples: "mean" or "sum".
        shares: the weight of each replica's part of a batch, such as ``(3, 1)``; see `shares`. None: equal parts.

    Raises:
        ConfigError: processes, mesh and stages do not fit together. In `fit`: the model cannot be cut this way.
        UnsupportedError: other collectives are chosen. In `fit`: a model, step, layer or optimizer cannot be computed
            in stages or micro-batches. The message says what to do instead.

    Example:
        >>> strategy = PipelineStrategy(stages=2, microbatches=8)                # doctest: +SKIP
        >>> with strategy.scope():                                                # doctest: +SKIP
        ...     model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1024), keras.layers.Dense(2)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, batch_size=64)                                        # doctest: +SKIP

    Source: Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019; D.
    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021. There a
    stage exchanges tensors only with its neighbours. Here a tensor goes straight to each stage that uses it.
    """

    def __init__(
        self,
        cluster: "clusters.Cluster | None" = None,
        *,
        stages: Any = "auto",
        layout_map: Any = None,
        microbatches: int = 8,
        schedule: str | Callable[..., Schedule] = "1f1b",
        chunks: int = 1,
        mesh: Any = None,
        recompute: bool = False,
        replicas_per_worker: int | None = None,
        timeout_seconds: float = 1800.0,
        collectives: str | None = None,
        bucket_bytes: int | str = buckets.DEFAULT_BYTES,
        shard_optimizer: int | None = None,
        loss_reduction: str = "detect",
        shares: Sequence[int] | str | None = None,
    ) -> None:
        stage_placement.require_slots_alone(shard_optimizer)
        cluster = clusters.from_environment() if cluster is None else cluster
        places = 1 if cluster.num_workers > 1 else replicas_per_worker or local_replicas.devices_to_come()
        self._mesh = stage_placement.mesh_of(mesh, stages, chunks, cluster, places)
        devices = stage_placement.devices_of(self._mesh, cluster, replicas_per_worker)
        self._chunks = validation.integer("chunks", chunks, minimum=1)
        self._microbatches = validation.integer("microbatches", microbatches, minimum=1)
        self._stages = "auto" if isinstance(stages, int) else stages
        self._schedule = _made_by(schedule, self._mesh.size_of(PIPELINE), self._chunks)
        found = self._schedule(self._microbatches)
        self._layouts = stage_placement.layouts_of(self._mesh, layout_map, cluster)
        if self._copies > 1 and found.updates_each:
            raise UnsupportedError(
                f"the schedule {found.name!r} keeps older values of whole weights, and the mesh {self._mesh} has parts "
                f"of weights. Choose '1f1b', or leave {MODEL} out of the mesh.",
                name="mesh",
                received=str(self._mesh),
            )
        if devices and found.updates_each:
            raise UnsupportedError(
                f"the schedule {found.name!r} updates each stage after each micro-batch, and the stages of one process "
                "share one optimizer, which counts its updates. Start a process for "
                f"each stage (tfdist run -n {found.stages}), or choose '1f1b'.",
                name="schedule",
                received=found.name,
            )
        self._has_microbatches = self._microbatches > 1
        backend = validation.one_of("collectives", collectives or "auto", ("auto", "native", "tensorflow", "horovod"))
        if backend not in ("auto", "native"):
            raise UnsupportedError(
                f"collectives is {backend!r}; stages send to each other in any order, which the native engine alone "
                "carries. Leave collectives out, or choose 'native'.",
                name="collectives",
                received=backend,
            )
        self._job = mesh_jobs.join(
            cluster,
            None,
            1,
            "native" if cluster.num_workers > 1 else "auto",
            timeout_seconds=timeout_seconds,
            bucket_bytes=bucket_bytes,
            loss_reduction=loss_reduction,
        )
        self.loss_reduction = loss_reduction
        self._workers, chosen = self._job.workers, self._job.bucket_bytes
        tf_strategies.claim_collective_keys(self, within_worker=True)
        processes = Mesh(((PIPELINE, 1),)) if devices else self._mesh
        ends = {axis: mesh_axes.along(self._workers.collective, processes, [axis]) for axis in processes.names}
        between, others = ends[PIPELINE], ends.get(DATA, LocalCollective())
        along = TracedCollective(between, bucket_bytes=chosen)
        # each stage reduces other gradients, so the collectives of a stage have keys of their own
        replicas = TracedCollective(others, bucket_bytes=chosen, replica=1)
        traced = {PIPELINE: along, DATA: replicas}
        if MODEL in ends:  # stages trace other functions, so these collectives have keys of their own, too
            traced[MODEL] = TracedCollective(ends[MODEL], bucket_bytes=chosen, replica=2)
        self._axes = Axes(
            processes,
            self._workers.index,
            {axis: traced[axis] for axis in ends},
            self._workers.waiting,
            late=Late(may_wait=False),  # parts of the model are functions, in which no tensor can be replaced
        )
        slots = StageSlots(self._workers, replicas) if shard_optimizer and others.size > 1 else None
        self._pipe = Pipe(
            workers=self._workers,
            everybody=self._job.everybody,
            traced=along,
            between=between,
            stage=between.rank,
            stages=between.size,
            replica=others.rank,
            replicas=others.size,
            copies=self._copies,
            copy=processes.coordinates(self._workers.index).get(MODEL, 0),
            schedule=self._schedule,
            microbatches=self._microbatches,
            recompute=recompute,
            devices=devices,
        )
        self._begin(
            PipelineReplicas,
            examples=[others.rank],
            late=self._axes.late,
            collective=replicas,
            traced=[replicas],
            sharding=slots,
            staged=self._staged,
            shards_slots_of=lambda optimizer: optimizer is not None and UPDATES in vars(optimizer),
        )
        self._begin_shares(shares)

    @property
    def mesh(self) -> Mesh:
        """The mesh of processes."""
        return self._mesh

    @property
    def stage(self) -> int:
        """The number of this process's stage, counted from 0; 0 for a process with all stages."""
        return self._pipe.stage

    @property
    def cuts_weights(self) -> bool:
        """Whether weights may be on other processes, or on other devices of this one."""
        return self._mesh.size_of(PIPELINE) > 1 or self.sharding is not None or self._copies > 1

    @property
    def _copies(self) -> int:
        """The number of processes of a stage that have the same part of a batch."""
        return stage_placement.size_of(self._mesh, MODEL)

    @property
    def _position(self) -> tuple[int, int]:
        return self._pipe.replica, self._pipe.replicas

    def division_of(self, model: keras.Model) -> Division:
        """Return the division of a model, which is decided once; see `Division.stages`."""
        state = planted.of_model(model)
        if state.division is None or state.division[0] is not self:
            with self.scope():  # blocks that a model names may make their weights now
                division = Division(model, self._mesh.size_of(PIPELINE) * self._chunks, self._stages)
            state.division = (self, division)
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
        assert state.division is not None
        found: Division = state.division[1]
        return found

    def before_build(self, model: Any) -> None:
        """Assign each weight of a model to the stages that use it, before the optimizer makes the weight's slots.

        Then all weights are made, in the order of the model.
        """
        were_called = graphs.graph_of(model) is not None or has_named(model)  # its layers
        if not (were_called and self.cuts_weights):
            return
        holders = self.division_of(model).holders(self._mesh.size_of(PIPELINE))
        weights = list(model.weights)
        paths = relative_paths([weight.path for weight in weights])
        for weight, path in zip(weights, paths, strict=True):
            sharding = sharded_variable.sharding_of(weight)
            if sharding is not None and sharding.holders is None:
                sharding.label = path
                if sharding.within is not None:
                    sharding.within.label = path
                held = holders.get(id(weight), (0,))
                sharding.holders = (0,) if self._pipe.devices else held
                sharding.device = self._pipe.devices[held[0]] if self._pipe.devices else None
        self.extended.settle()
        for weight in weights:  # an optimizer that was built earlier refers to the former variable
            former = getattr(keras_variables.value_of(weight), "former", None)
            if former is not None:
                keras_variables.value_of(weight).former = None
                for optimizer in keras_trainer.optimizers(model):
                    keras_optimizer.moved(optimizer, weight, former)

    def ready(self, model: Any) -> None:
        """Check that a model can be computed in stages, and assign each weight to its stages.

        Raises:
            UnsupportedError: the model cannot be computed in stages.
        """
        self._require_possible(model)
        if self._copies > 1:
            every = keras_trainer.layers(model)
            sequence_parallel.adapt(every, sequence_parallel.Placing(self._layouts.outputs, lambda axis, label: None))
            if all(layer.built for layer in every):
                self._layouts.require_all_matched()
                self._log_proposal(model)
        self.before_build(model)

    _goes_ahead = False  # the first stage takes the inputs, the last one the labels

    def own_step(self, model: Any, kind: str, unseeded: Any) -> Callable[[Any, int], Any]:
        """Return the step of a stage.

        Args:
            model: the model.
            kind: "train", "test" or "predict".
            unseeded: Keras' generator for random numbers without a seed.
        """
        if kind == "train" and model.optimizer is not None and not model.optimizer.built:
            with self.scope():  # all processes must make slots in one order, which a step cannot ensure
                keras_optimizer.build(model.optimizer, model.trainable_weights)
        division, reduction = self.division_of(model), self.loss_reduction
        made = StageStep(
            model, division, self._pipe, unseeded, loss_reduction=reduction, shares=lambda: self.share.shares
        )
        step: Callable[[Any, int], Any] = getattr(made, kind)
        return step

    def _require_possible(self, model: Any) -> None:
        own = keras_trainer.has_own_step(model)
        if own is not None:
            raise UnsupportedError(
                f"the model {model.name!r} has a {own} of its own, and a pipeline computes a step in stages: no "
                "process can run all of it. Train by compile() and fit() alone, or take another strategy.",
                name=model.name,
                received=own,
            )
        if model.run_eagerly or (model.jit_compile is True):
            what = "run_eagerly" if model.run_eagerly else "jit_compile"
            raise UnsupportedError(
                f"{what} is True; the stages of a pipeline send to each other in the middle of a graph of TensorFlow. "
                f"Pass {what}=False to model.compile().",
                name=what,
                received=True,
            )
        counting = next(filter(layer_methods.has_metrics, keras_trainer.layers(model)), None)
        if counting is not None:
            raise UnsupportedError(
                f"the layer {counting.name!r} of the model {model.name!r} has metrics of its own, and a pipeline "
                "counts metrics on its last stage alone. Let the layer return what they count as an output of the "
                "model, and pass metrics to compile(), or take another strategy.",
                name=counting.name,
                received=model.name,
            )
        self._tell_of_whole_batches(model, self.division_of(model))

    def _tell_of_whole_batches(self, model: Any, division: Division) -> None:
        """Warn once about layers and losses that use several examples at once."""
        if self._microbatches == 1 or self._schedule(self._microbatches).updates_each:
            return
        told = self.loss_reduction != "detect"
        whole = division.needs_whole_batch(losses_are_told=told) or whole_batches.comparing_call(division)
        self._has_microbatches = not whole
        if whole:
            step_probe.warn_once(
                model,
                self._workers,
                f"micro-batches cannot be cut for {whole} so the model {model.name!r} trains with one micro-batch, and "
                "its stages compute one after the other. LayerNormalization and GroupNormalization work with "
                "micro-batches, and so do losses that strategy.loss_reduction declares.",
            )

    @property
    def normalizes_by(self) -> str | None:
        """The rows whose statistics batch normalization takes in a step; None: those of the whole batch."""
        return "each micro-batch" if self._has_microbatches else super().normalizes_by

    def _staged(self, path: str, shape: tuple[int, ...], dtype: tf.DType) -> StageLayout | None:
        del dtype
        if not self.cuts_weights:
            return None
        layout = self._layouts.of(path, shape) if self._copies > 1 else ()
        return StageLayout(
            self._axes,
            self._pipe.traced,
            is_first_replica=self._pipe.replica == 0,
            shape=shape,
            path=path,
            replicas=None if self.sharding is None else self.sharding.traced,
            within=MeshLayout(self._axes, layout, shape, path) if any(layout) else None,
        )


def _made_by(schedule: str | Callable[..., Schedule], stages: int, chunks: int) -> Callable[[int], Schedule]:
    """Return a function that maps the number of micro-batches to a sound schedule."""

    @functools.cache
    def made(microbatches: int) -> Schedule:
        found = (
            schedule(stages, microbatches, chunks)
            if callable(schedule)
            else schedules.named(
                # a small last batch may have another number of micro-batches
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
