"""A stage of a pipeline: its train, test and predict steps, which replace Keras' own."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.shares import Shares
from tfdist.collectives.collective import Collective
from tfdist.collectives.traced import TracedCollective
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.sparse_rows import RowKind
from tfdist.errors import ConfigError, UnsupportedError, cause_of
from tfdist.gradients.reduction import reducer, replica_sums
from tfdist.parallel.pipeline import micro_batch_updates as updates
from tfdist.parallel.pipeline import stage_run, whole_batches
from tfdist.parallel.pipeline.division import Division
from tfdist.parallel.pipeline.flow import Flow, Links
from tfdist.parallel.pipeline.microbatch import MicroBatch, MicroStep
from tfdist.parallel.pipeline.stage_gradients import Accumulated, Kind, behind, kind_of, made_in_order
from tfdist.parallel.pipeline.stage_run import Found
from tfdist.planner.schedules.schedule_table import Schedule, Work
from tfdist.planner.schedules.schedule_timeline import in_one_order
from tfdist.training.checks import step_probe
from tfdist.training.replica import batch_rows, current_step, replica_metrics, replica_step

#: of the cause of an error, as other stages tell it
_MOST_BYTES = 1000


@dataclass(frozen=True, kw_only=True)
class Pipe:
    """The place of a process in a pipeline, and its collectives."""

    workers: Workers
    everybody: TracedCollective  # of all processes
    traced: TracedCollective  # of the stages of this replica, under keys of the traced function
    between: Collective  # of the same stages
    stage: int
    stages: int
    replica: int  # the number of the part of a batch that this process has
    replicas: int  # the number of parts
    schedule: Callable[[int], Schedule]  # returns the schedule of a number of micro-batches
    microbatches: int  # the largest number of micro-batches in a batch
    recompute: bool
    # the device of each stage, if this process is alone and has all stages; `stages` is 1 then
    devices: tuple[str, ...] = ()
    # the number of processes of a stage with the same part of a batch, each with its part of the weights
    copies: int = 1
    copy: int = 0  # the number of this process among them

    @property
    def is_last(self) -> bool:
        """Whether this process has the last part of the model."""
        return self.stage == self.stages - 1

    def order(self, schedule: Schedule) -> Sequence[Work]:
        """Return the order of the passes in this process."""
        return in_one_order(schedule) if self.devices else schedule.orders[self.stage]

    def sums(self, tensors: list[tf.Tensor], what: str) -> list[tf.Tensor]:
        """Return the sums over the stages of this replica."""
        return list(self.traced.all_reduce(tensors, [what] * len(tensors)))


@dataclass(frozen=True)
class Told:
    """The facts about all passes that every stage knows."""

    has_gradient: list[bool]  # whether each trainable weight has a gradient
    draws: list[int]  # the number of draws in one forward pass through the model, for each random generator
    adds: bool  # whether layers or regularizers add something to the loss


class StageStep:
    """The work of a stage in one step."""

    def __init__(
        self,
        model: keras.Model,
        division: Division,
        pipe: Pipe,
        unseeded: Any,
        *,
        loss_reduction: str,
        shares: Callable[[], Shares],
    ) -> None:
        self._model, self._division, self._pipe, self._unseeded = model, division, pipe, unseeded
        self._loss_reduction, self._shares = loss_reduction, shares
        self._known: whole_batches.Sums = []
        self._example_weight = 1.0
        self._comparing: list[str] | None = None  # losses that compare examples, once they were tried
        self._kinds: dict[int, dict[tuple[int, int], RowKind]] = {}

    def train(self, data: Any, global_rows: int) -> Any:
        """Compute a batch in micro-batches, update the weights once, and return the logs."""
        most = self._pipe.microbatches
        schedule = self._pipe.schedule(min(most, max(self._rows(global_rows), 1)))
        if not schedule.updates_each and self._needs_whole_batch(data):
            schedule, most = self._pipe.schedule(1), 1
        microbatches = self._microbatches(data, global_rows, training=True, most=most, each_alone=schedule.updates_each)
        with self._outer(data, global_rows) as current:
            totals = self._totals(current)
        order = self._pipe.order(schedule)
        updates = self._updates(schedule)

        def passes() -> Found:
            if updates is None:
                self._count(data, global_rows, microbatches, training=True)
            with stage_run.local(self._model):
                return self._run("train", microbatches, training=True, updates=updates).train(order)

        found, told = self._passed(passes)
        with current:
            if not schedule.updates_each:
                self._update(found, told, current)
            self._apply_draws(told.draws)
            return self._logs(data, found, told, totals, microbatches)

    def _needs_whole_batch(self, data: Any) -> bool:
        if self._comparing is None:
            _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
            self._comparing = whole_batches.comparing_losses(self._model, self._division.graph, y)
        told = self._loss_reduction != "detect"
        whole = self._division.needs_whole_batch(losses_are_told=told)
        return self._compares_rows() or bool(self._comparing) or whole is not None

    def _compares_rows(self) -> bool:
        replica_step.adapt(self._model, self._unseeded)  # layers that are tried may draw, too
        whole_batches.require_rows_apart(self._division, self._pipe.replicas)
        return bool(whole_batches.comparing_call(self._division))

    def _updates(self, schedule: Schedule) -> updates.Updates | None:
        if not schedule.updates_each:
            return None
        stages, replicas = self._pipe.stages, self._pipe.replicas
        updates.require_possible(self._model, self._division, schedule, stages=stages, replicas=replicas)
        return updates.Updates(self._model, schedule, self._pipe.stage)

    def _update(self, found: Found, told: Told, current: current_step.Step) -> None:
        found.added = self._with_regularizers(found, current)
        gradients = self._gradients(found, told)
        variables = self._model.trainable_weights
        current.weighted.add(id(self._model.optimizer))
        if variables:
            self._model.optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        self._apply_states(found)

    def test(self, data: Any, global_rows: int) -> Any:
        """Compute a batch in micro-batches, and return the logs."""
        most = 1 if self._needs_whole_batch(data) else None
        microbatches = self._microbatches(data, global_rows, training=False, most=most)
        with self._outer(data, global_rows) as current:
            totals = self._totals(current)
        order = self._forwards(len(microbatches))

        def passes() -> Found:
            self._count(data, global_rows, microbatches, training=False)
            with stage_run.local(self._model):
                return self._run("test", microbatches, training=False).predict(order, with_loss=True)

        found, told = self._passed(passes)
        with current:
            found.added = self._with_regularizers(found, current, with_gradients=False)
            self._apply_draws(self._draws_in(microbatches))
            return self._logs(data, found, told, totals, microbatches)

    def predict(self, data: Any, global_rows: int) -> Any:
        """Compute a batch in micro-batches, and return the model's results on every stage."""
        most = 1 if self._compares_rows() else None
        microbatches = self._microbatches(data, global_rows, training=False, most=most, has_loss=False)
        with stage_run.local(self._model):
            found = self._run("predict", microbatches, training=False).predict(
                self._forwards(len(microbatches)), with_loss=False
            )
        self._apply_draws(self._draws_in(microbatches))
        outputs = self._known_to_all(found, microbatches)
        rows = self._rows(global_rows)
        return batch_rows.slice_rows(
            graphs.packed(self._division.graph, outputs), tf.constant(0), tf.constant(tf.int32.max if rows else 0)
        )

    def _run(
        self, name: str, microbatches: list[MicroBatch], *, training: bool, updates: updates.Updates | None = None
    ) -> stage_run.Run:
        return stage_run.Run(
            self._model,
            self._division,
            stage=self._pipe.stage,
            stages=self._pipe.stages,
            links=Links(self._pipe.between, name),
            microbatches=microbatches,
            training=training,
            unseeded=self._unseeded,
            recompute=self._pipe.recompute and training,
            updates=updates,
            kinds=self._kinds,
            devices=self._pipe.devices,
        )

    def _forwards(self, count: int) -> list[Work]:
        chunks = self._division.parts // self._pipe.stages
        return [Work("forward", number, chunk) for chunk in range(chunks) for number in range(count)]

    def _rows(self, global_rows: int) -> int:
        bounds = self._shares().bounds(global_rows)
        return bounds[self._pipe.replica + 1] - bounds[self._pipe.replica]

    def _outer(self, data: Any, global_rows: int) -> current_step.Step:
        replica_step.adapt(self._model, self._unseeded)
        return current_step.Step(
            rows=tf.constant(self._rows(global_rows)),
            global_rows=tf.constant(global_rows),
            weighs_loss=True,
            rules=whole_batches.rules_of_metrics(self._model, self._pipe.replicas),
        )

    def _microbatches(
        self,
        data: Any,
        global_rows: int,
        *,
        training: bool,
        most: int | None = None,
        each_alone: bool = False,
        has_loss: bool = True,
    ) -> list[MicroBatch]:
        """Cut this replica's batch into micro-batches; a replica without examples computes with a copy of one."""
        replica_step.adapt(self._model, self._unseeded)
        for metric in getattr(keras_trainer.compiled_losses(self._model), "metrics", ()):
            metric_weights.ignore_weights(metric)
        rows = self._rows(global_rows)
        self._example_weight = _example_weight(data, global_rows)
        there = max(rows, 1)
        count = min(self._pipe.microbatches if most is None else most, there)
        bounds = [there * number // count for number in range(count + 1)]
        flows: dict[int, Flow] = {}

        def flow_of(rows: int, inputs: list[Any]) -> Flow:
            if rows not in flows:
                flows[rows] = Flow(self._model, self._division, inputs, training=training)
            return flows[rows]

        made = []
        for number in range(count):
            begin, end = bounds[number], bounds[number + 1]
            one = MicroBatch(
                number,
                begin,
                end,
                data=data,
                division=self._division,
                begin_step=functools.partial(
                    self._micro_step, None if each_alone else global_rows, count == 1, has_loss
                ),
                index=self._pipe.replica * self._pipe.microbatches + number,
                global_rows=global_rows,
                counts=rows > 0,
                example_weight=self._example_weight,
                flow_of=functools.partial(flow_of, end - begin),
            )
            made.append(one)
        return made

    def _micro_step(
        self, global_rows: int | None, is_alone: bool, has_loss: bool, rows: int, index: tf.Tensor
    ) -> MicroStep:
        return MicroStep(
            what=self._model.name,
            is_alone=is_alone or global_rows is None,
            loss_reduction=self._loss_reduction if has_loss else "mean",  # no prediction depends on losses
            rows=tf.constant(rows),
            global_rows=tf.constant(rows if global_rows is None else global_rows),
            weighs_loss=True,
            index=index,
            known=self._known,
            comparing=self._comparing or (),
        )

    def _count(self, data: Any, global_rows: int, microbatches: list[MicroBatch], *, training: bool) -> None:
        self._known.clear()
        if len(microbatches) == 1 or not self._pipe.is_last:
            return
        rows = self._rows(global_rows)
        current = whole_batches.Counting(rows=tf.constant(rows), global_rows=tf.constant(global_rows), weighs_loss=True)
        specs = microbatches[0].flow.specs
        outputs = [tf.zeros([max(rows, 1), *spec.shape[1:]], spec.dtype) for spec in specs]
        if any(number is not None for number in microbatches[0].flow.masks):
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch_rows.plain(data))
            inputs = graphs.standardized(self._division.graph, x)
            whole = Flow(self._model, self._division, inputs, training=training)
            outputs = whole_batches.with_masks(outputs, whole, inputs)
        self._known += whole_batches.divisors(self._model, self._division, data, current, outputs)

    def _totals(self, current: current_step.Step) -> replica_metrics.Totals:
        return replica_metrics.Totals(self._model, replica_metrics.snapshot(self._model), current)

    def _passed(self, passes: Callable[[], Found]) -> tuple[Found, Told]:
        """Trace a stage's passes; return their results here, and the facts that all stages must know."""
        generators, trained = self._generators(), self._model.trainable_weights
        reducer.require_gradients(trained, "a pipeline adds up the gradients of micro-batches")
        mine, found, problem = [0] * (len(trained) + len(generators) + 1), None, ""
        try:
            found = passes()
            there = [kind_of(found.gradients.get(id(weight))) for weight in trained]
            adding = found.added is not None or any(weight.regularizer is not None for weight in trained)
            mine = [*there, *(found.draws.get(id(one), 0) for one in generators), int(adding)]
        except Exception as error:
            problem = f"{type(error).__name__}: {cause_of(str(error))}"
            raise
        finally:  # the others ask, whatever has happened here
            with tf.init_scope():
                seen = self._pipe.workers.gather([*mine, int(found is None)])
                if seen[:, -1].any():
                    told = self._pipe.workers.gather(list(problem.encode()[:_MOST_BYTES].ljust(_MOST_BYTES)))
        if seen[:, -1].any():
            failed = next(worker for worker, row in enumerate(seen) if row[-1])
            why = bytes(told[failed].astype("uint8")).decode(errors="replace").strip()
            raise UnsupportedError(f"worker {failed}, whose stage this step needs, cannot compute it: {why}.")
        alike = self._pipe.replicas * self._pipe.copies  # processes of a stage draw alike
        drawn = seen[:, len(trained) : -2].sum(axis=0) // alike
        adds = bool(seen[:, -2].any())
        if not adds and not keras_trainer.has_compiled_loss(self._model):
            raise ConfigError(
                f"the model {self._model.name!r} has no loss. Pass one to compile(loss=...), or let a layer add one.",
                name=self._model.name,
            )
        self._warn_of_tables(seen[:, : len(trained)])
        return found, Told(
            has_gradient=[bool(column.any()) for column in seen[:, : len(trained)].T],
            draws=drawn.tolist(),
            adds=adds,
        )

    def _warn_of_tables(self, kinds: Any) -> None:
        """Warn of tables of several stages: their sums are dense, where one device has the rows of lookups."""
        holders = self._division.holders(self._pipe.stages)
        if not reducer.keeps_duplicate_indices(self._model.optimizer):
            return
        for weight, column in zip(self._model.trainable_weights, kinds.T, strict=True):
            if len(holders.get(id(weight), ())) > 1 and Kind.ROWS in column and Kind.DENSE not in column:
                step_probe.warn_once(
                    self._model,
                    self._pipe.workers,
                    f"one stage of the pipeline looks up the table {weight.path!r}, and other stages call its layer, "
                    "too. So rows that a batch has several times are added up before "
                    f"{type(self._model.optimizer).__name__} gets them, which makes another update than on one device. "
                    "Make the table a layer of its own, or let one stage call the layer (stages=).",
                )

    def _generators(self) -> list[Any]:
        found = {id(one): one for one in [*keras_variables.seed_generators(self._model), self._unseeded]}
        return list(found.values())

    def _with_regularizers(self, found: Found, current: current_step.Step, *, with_gradients: bool = True) -> Any:
        """Add the gradients of regularizers; return the losses that layers and regularizers add, times the examples.

        The first stage that has a weight computes its regularizer, once in a step.
        """
        holders = self._division.holders(self._pipe.stages)
        own = [
            weight
            for weight in self._model.trainable_weights
            if weight.regularizer is not None and holders.get(id(weight), (0,))[0] == self._pipe.stage
        ]
        if not own:
            return found.added
        with stage_run.local(self._model), tf.GradientTape() as tape:
            total = tf.add_n([tf.reduce_sum(tf.cast(one.regularizer(one), keras.backend.floatx())) for one in own])
            scaled = self._model.optimizer.scale_loss(total) if with_gradients else total
        if with_gradients:
            with stage_run.local(self._model):
                gradients = tape.gradient(scaled, [one.value for one in own])
            for weight, gradient in zip(own, gradients, strict=True):
                if gradient is not None:
                    accumulated = found.gradients.setdefault(id(weight), Accumulated())
                    accumulated.add(tf.convert_to_tensor(gradient), -1, 0)
        counted = total * tf.cast(current.rows, total.dtype) * self._example_weight
        return counted if found.added is None else found.added + counted

    def _gradients(self, found: Found, told: Told) -> list[Any]:
        """Return the gradient of each trainable weight, without elements on other stages."""
        holders_of = self._division.holders(self._pipe.stages)
        gradients: list[Any] = []
        shared: dict[int, tf.Tensor] = {}
        for place, weight in enumerate(self._model.trainable_weights):
            holders, everywhere = holders_of.get(id(weight), (0,)), sharded_variable.sharding_of(weight) is None
            accumulated = found.gradients.get(id(weight))
            value = None if accumulated is None else accumulated.result()
            if value is None:
                value = tf.zeros(
                    weight.shape if everywhere else sharded_variable.sharding_of(weight).held_shape, weight.dtype
                )
            if len(holders) > 1 or (everywhere and self._pipe.stages > 1):
                shared[place] = tf.cast(tf.convert_to_tensor(value), weight.dtype)
            here = everywhere or self._pipe.stage in holders
            gradients.append(value if here else tf.zeros([0], weight.dtype))
        if shared:
            sums = self._pipe.sums(list(shared.values()), "gradients of weights of several stages")
            for place, total in zip(shared, sums, strict=True):
                if gradients[place].shape == total.shape:
                    gradients[place] = total
        known = [one if there else None for one, there in zip(gradients, told.has_gradient, strict=True)]
        return made_in_order(known) if self._pipe.replicas > 1 else behind(found.gradients_sent, known)

    def _apply_states(self, found: Found) -> None:
        """Assign changed variables the mean over replicas of the means over micro-batches."""
        holders = self._division.holders(self._pipe.stages)
        for variable, _ in found.states.values():
            everywhere = sharded_variable.sharding_of(variable) is None and self._pipe.stages > 1
            if everywhere or len(holders[id(variable)]) > 1:
                raise UnsupportedError(
                    f"the variable {variable.path!r} (shape {tuple(variable.shape)}) changes in a forward pass on one "
                    "stage, and other stages have it too: those that call its layer, and all if it is a scalar. Let "
                    "one stage call it (stages=), and give it a shape such as (1,)."
                )
        changed = [variable for variable, _ in found.states.values()]
        whole_batches.require_known_states(self._model, changed, self._pipe.replicas)
        floats = [(v, value) for v, value in found.states.values() if tf.as_dtype(v.dtype).is_floating]
        rest = [(v, value) for v, value in found.states.values() if not tf.as_dtype(v.dtype).is_floating]
        if floats and self._pipe.replicas > 1:
            sums = replica_sums.sum_over_replicas([value for _, value in floats], is_differentiable=False)
            floats = [(v, total) for (v, _), total in zip(floats, sums, strict=True)]
        with stage_run.local(self._model):
            for variable, value in [*floats, *rest]:
                variable.assign(value)

    def _draws_in(self, microbatches: Sequence[MicroBatch]) -> list[int]:
        drawn = microbatches[0].flow.draws_before(None)
        return [drawn[id(one)] for one in self._generators()]

    def _apply_draws(self, draws: Sequence[int]) -> None:
        """Move each generator on all stages to its position after a forward pass through the whole model."""
        for generator, count in zip(self._generators(), draws, strict=True):
            if count:
                generator.state.assign(stage_run.moved(generator, count, is_shared=generator is self._unseeded))

    def _logs(
        self, data: Any, found: Found, told: Told, totals: replica_metrics.Totals, microbatches: list[MicroBatch]
    ) -> Any:
        """Return the metrics over all examples, which the last stage computes and sends to all."""
        if told.adds:
            own = tf.zeros([], keras.backend.floatx()) if found.added is None else found.added
            (added,) = self._pipe.sums([own], "what layers add to the loss")
            if self._pipe.is_last:
                total = keras_trainer.loss_tracker(self._model).total
                total.assign_add(tf.cast(added, total.dtype))
        if self._pipe.is_last:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch_rows.plain(data))
            y_pred = graphs.packed(self._division.graph, _outputs(found, microbatches))
            self._model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        totals.restore()
        parts = totals.parts()
        counts = self._pipe.is_last and self._pipe.copy == 0
        mine = parts if counts else [tf.zeros_like(part) for part in parts]
        sums = list(self._pipe.everybody.all_reduce(mine, ["metrics"] * len(mine))) if mine else []
        replica_metrics.gather_in_one_place(totals.variables, sums)
        keras_trainer.note_logs(self._model, are_metrics=True)
        return totals.over(sums, lambda: keras_trainer.metrics_result(self._model))

    def _known_to_all(self, found: Found, microbatches: list[MicroBatch]) -> list[tf.Tensor]:
        outputs = []
        made = _outputs(found, microbatches) if self._pipe.is_last else []
        for number in range(len(self._division.outputs)):
            specs = [one.flow.specs[number] for one in microbatches]
            shape = [sum(spec.shape[0] for spec in specs), *specs[0].shape[1:]]
            value = made[number] if made else tf.zeros(shape, specs[0].dtype)
            value = tf.ensure_shape(value, shape)
            if self._pipe.stages > 1:
                # under its own key: replicas may have different numbers of rows, and so different signatures
                key = f"predicted output {number}"
                value = self._pipe.between.broadcast(value, key=key, root=self._pipe.stages - 1)
            outputs.append(value)
        return outputs


def _example_weight(data: Any, global_rows: int) -> float:
    """Return the weight of an example in Keras' mean of losses over batches, which counts rows of the first input."""
    whole = batch_rows.whole_first_input(data)
    return 1.0 if whole is None else int(whole.value.shape[0]) / global_rows


def _outputs(found: Found, microbatches: list[MicroBatch]) -> list[tf.Tensor]:
    of_each = [found.outputs[one.number] for one in microbatches]
    if len(of_each) == 1:
        return microbatches[0].flow.outputs(of_each[0])
    joined = []
    for same in zip(*of_each, strict=True):
        has_rows = all(one.shape.rank != 0 for one in same)
        have = zip(same, microbatches, strict=True)
        has_rows = has_rows and all(one.shape[0] in (None, of.rows) for one, of in have)
        joined.append(tf.concat(same, axis=0) if has_rows else same[0])
    return microbatches[0].flow.outputs(joined)
