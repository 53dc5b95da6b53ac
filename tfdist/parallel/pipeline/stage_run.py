"""The part of a stage in one step: the work of a schedule, in that order.

TensorFlow runs an operation as soon as it can, so control dependencies order the work. A pass begins when the previous
one has ended and its sends are under way; else these would wait for a free thread until this pass ends. A pass's inputs
are requested one pass ahead. Each part is traced once (`forward_pass`); a single micro-batch is computed in the
graph itself, where losses and layers may sum over replicas.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.wire_dtypes import has_fractions
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods, stateless_scope
from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.sparse_rows import RowKind
from tfdist.errors import UnsupportedError
from tfdist.parallel.compute import chains, keep_sharded
from tfdist.parallel.pipeline.division import Division
from tfdist.parallel.pipeline.flow import Edge, Flow, Links
from tfdist.parallel.pipeline.forward_pass import Given, Made, TracedPass
from tfdist.parallel.pipeline.micro_batch_updates import Updates
from tfdist.parallel.pipeline.microbatch import MicroBatch
from tfdist.parallel.pipeline.stage_gradients import Accumulated
from tfdist.planner.schedules.schedule_table import Work


@dataclass
class Passed:
    """The values that a forward pass leaves for its backward pass; without a tape, only its inputs."""

    given: Given
    tape: tf.GradientTape | None = None
    made: Made = field(default_factory=Made)


@dataclass
class Found:
    """The results of a step's passes on this stage."""

    # the gradients of this stage's trainable variables, by the variables' identity
    gradients: dict[int, Accumulated] = field(default_factory=dict)
    # the changed variables, by identity: the variable, and the weighted sum over micro-batches (floats) or the first
    # value
    states: dict[int, tuple[keras.Variable, tf.Tensor]] = field(default_factory=dict)
    # the flat results of each micro-batch, in the last part
    outputs: dict[int, list[tf.Tensor]] = field(default_factory=dict)
    added: tf.Tensor | None = None  # the sum over examples of the losses that layers add, or None
    # the number of draws in one forward pass, for each random generator
    draws: dict[int, int] = field(default_factory=dict)
    gradients_sent: list[tf.Operation] = field(default_factory=list)


class Run:
    """The passes of one step through the parts of the model on one stage."""

    def __init__(
        self,
        model: keras.Model,
        division: Division,
        *,
        stage: int,
        stages: int,
        links: Links,
        microbatches: Sequence[MicroBatch],
        training: bool,
        unseeded: Any,
        recompute: bool = False,
        updates: Updates | None = None,
        kinds: dict[int, dict[tuple[int, int], RowKind]] | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._kinds = {} if kinds is None else kinds
        self._division, self._devices, self._stage, self._stages = division, devices, stage, stages
        self._links, self._microbatches, self._training = links, microbatches, training
        self._unseeded, self._recompute, self._updates = unseeded, recompute, updates
        self._passed: dict[Work, Passed] = {}
        self._received: dict[Work, dict[Edge, tf.Tensor]] = {}
        self._traced: dict[tuple[int, int, bool], TracedPass] = {}
        self._changing: dict[int, int] = {}  # the part that changes a variable, by the variable's identity
        self._weights = self._trainable()
        self._seeds = {id(one.state) for one in [*keras_variables.seed_generators(model), unseeded]}
        self.found = Found()

    def train(self, order: Sequence[Work]) -> Found:
        """Run forward and backward passes in order."""
        self._in_order(order, lambda work: self._forward(work) if work.kind == "forward" else self._backward(work))
        self.found.gradients_sent = self._links.gradients_sent
        return self.found

    def predict(self, order: Sequence[Work], *, with_loss: bool) -> Found:
        """Run forward passes in order, and keep nothing for backward passes."""

        def forward(work: Work) -> list[Any]:
            passed = self._computed(work, self._given(work), with_tape=False, with_loss=with_loss)
            self._note(work, passed.made)
            return self._send(work, passed.made)

        self._in_order(order, forward)
        return self.found

    def _in_order(self, order: Sequence[Work], do: Callable[[Work], list[Any]]) -> None:
        ends_of: dict[str | None, list[list[Any]]] = collections.defaultdict(lambda: [[], []])
        for work in order:
            device = self._devices[self._part(work) % len(self._devices)] if self._devices else None
            ends = ends_of[device]
            with contextlib.nullcontext() if device is None else tf.device(device):
                with tf.control_dependencies(ends[-2]):
                    self._receive(work)
                with tf.control_dependencies(ends[-1]):
                    ends.append([tf.group(*do(work), *self._links.started())])

    def _part(self, work: Work) -> int:
        return work.chunk * self._stages + self._stage

    def _receive(self, work: Work) -> None:
        part, flow = self._part(work), self._microbatches[work.microbatch].flow
        if work.kind == "forward":
            edges, take = flow.into(part), self._links.take_activation
        else:
            edges, take = [edge for edge in flow.out_of(part) if flow.has_gradient(edge)], self._links.take_gradient
        self._received[work] = {edge: take(edge, work.microbatch, flow.values[edge.number].spec) for edge in edges}

    def _given(self, work: Work) -> Given:
        microbatch, received = self._microbatches[work.microbatch], self._received.pop(work)
        weights = [] if self._updates is None else self._updates.weights(work, self._weights[self._part(work)])
        return Given(
            inputs=microbatch.inputs,
            y=microbatch.y,
            sample_weight=microbatch.sample_weight,
            taken=list(received.values()),
            index=tf.constant(microbatch.index),
            weights=weights,
        )

    def _forward(self, work: Work) -> list[Any]:
        given = self._given(work)
        if not self._recompute:
            passed = self._passed[work] = self._computed(work, given, with_tape=True, with_loss=True)
            self._note(work, passed.made)
            return self._send(work, passed.made)
        self._passed[work] = Passed(given)
        if self._part(work) == self._division.parts - 1:  # its results are needed in the backward pass alone
            return given.taken
        return self._send(work, self._computed(work, given, with_tape=False, with_loss=False).made)

    def _send(self, work: Work, made: Made) -> list[Any]:
        flow, part = self._microbatches[work.microbatch].flow, self._part(work)
        sent = flow.sent(part)
        for edge in flow.out_of(part):
            self._links.send_activation(made.sent[sent.index(edge.number)], edge, work.microbatch)
        return [one for one in [*made.sent, *made.outputs, made.target] if one is not None]

    def _backward(self, work: Work) -> list[Any]:
        part, microbatch = self._part(work), self._microbatches[work.microbatch]
        received = self._received.pop(work)
        passed = self._passed.pop(work._replace(kind="forward"))
        if passed.tape is None:
            passed = self._computed(work, passed.given, with_tape=True, with_loss=True)
            self._note(work, passed.made)
        targets, upstream, flow = [], [], microbatch.flow
        sent = flow.sent(part)
        for number in dict.fromkeys(edge.number for edge in received):
            arrived = [gradient for edge, gradient in received.items() if edge.number == number]
            targets.append(passed.made.sent[sent.index(number)])
            upstream.append(arrived[0] if len(arrived) == 1 else tf.add_n(arrived))
        if passed.made.target is not None:
            targets.append(passed.made.target)
            upstream.append(tf.ones_like(passed.made.target))
        into = flow.into(part)
        back = [edge for edge in into if flow.has_gradient(edge)]
        weights = self._weights[part]
        assert passed.tape is not None
        taken = dict(zip(into, passed.given.taken, strict=True))
        values = passed.given.weights or [weight.value for weight in weights]
        sources = [*(taken[edge] for edge in back), *values]
        gradients = (
            passed.tape.gradient(targets, sources, output_gradients=upstream) if targets else [None] * len(sources)
        )
        for edge, gradient in zip(back, gradients, strict=False):
            whole = tf.zeros_like(taken[edge]) if gradient is None else tf.convert_to_tensor(gradient)
            self._links.send_gradient(whole, edge, work.microbatch)
        of_weights = [_of_shape(one, weight) for one, weight in zip(gradients[len(back) :], weights, strict=True)]
        if self._updates is not None:
            with microbatch.step(passed.given.index) as current:
                current.weighted.add(id(self._model.optimizer))  # the loss was
                self._updates.apply(of_weights, weights)
            of_weights = [None] * len(weights)
        for weight, gradient in zip(weights, of_weights, strict=True):
            if id(weight) not in self.found.gradients:
                self.found.gradients[id(weight)] = Accumulated(self._kinds.setdefault(id(weight), {}))
            self.found.gradients[id(weight)].add(gradient, work.microbatch, microbatch.rows)
        return [one.values if isinstance(one, tf.IndexedSlices) else one for one in gradients if one is not None]

    def _computed(self, work: Work, given: Given, *, with_tape: bool, with_loss: bool) -> Passed:
        part, microbatch = self._part(work), self._microbatches[work.microbatch]
        compute: Callable[[Given], Made] = functools.partial(self._compute, part, microbatch, with_loss)
        if len(self._microbatches) > 1:
            key = part, microbatch.rows, with_loss
            if key not in self._traced:
                self._traced[key] = TracedPass(compute, given)
            compute = self._traced[key]
        if not with_tape:
            return Passed(given, None, compute(given))
        with tf.GradientTape() as tape:
            tape.watch([one for one in [*given.taken, *given.weights] if has_fractions(one.dtype)])
            return Passed(given, tape, compute(given))

    def _compute(self, part: int, microbatch: MicroBatch, with_loss: bool, given: Given) -> Made:
        flow, graph = microbatch.flow, self._division.graph
        weights = list(zip(self._weights[part], given.weights, strict=True)) if given.weights else []
        beginnings = [*self._beginnings(part, flow), *weights]
        scope = stateless_scope.Updates(state_mapping=beginnings, collect_losses=True)
        with microbatch.step(given.index) as current:
            inside = graphs.call_of_model(self._model, training=self._training)
            with scope, inside, keep_sharded.keeping(self._kept):
                values, numbered = flow.run(part, microbatch.marked(given.inputs), given.taken)
                regularized = [one.regularizer(value) for one, value in weights if one.regularizer is not None]
                adding = [*scope.losses, *regularized]
                parts = [tf.reduce_sum(tf.cast(one, keras.backend.floatx())) for one in adding]
            sent = [numbered[number] for number in flow.sent(part)]
            added, loss, outputs = tf.add_n(parts) if parts else None, None, []
            if part == self._division.parts - 1:
                outputs = [numbered[number] for number in flow.results.needed]
                if with_loss:
                    y_pred = graphs.packed(graph, [values[id(tensor)] for tensor in self._division.outputs])
                    loss = keras_trainer.compiled_loss(self._model, given.y, y_pred, given.sample_weight)
            losses = [one for one in (loss, added) if one is not None]
            target = None
            if self._training and with_loss and losses:
                total = losses[0] if len(losses) == 1 else tf.add_n([losses[0], tf.cast(losses[1], losses[0].dtype)])
                target = self._model.optimizer.scale_loss(total)
        changed = self._changed(scope, part, {id(one): value for one, value in weights}) if self._training else []
        states = [tf.convert_to_tensor(scope.get_current_value(variable)) for variable in changed]
        return Made(sent, outputs, loss, added, target, states, changed, dict(current.draws))

    def _note(self, work: Work, made: Made) -> None:
        """Record the results of a pass for the whole step, unless the pass is a recomputation."""
        microbatch = self._microbatches[work.microbatch]
        if made.outputs:
            self.found.outputs[work.microbatch] = made.outputs
        if made.loss is not None:
            keras_trainer.loss_tracker(self._model).update_state(made.loss, sample_weight=microbatch.weight)
        if made.added is not None:
            counted = made.added * tf.cast(microbatch.weight, made.added.dtype)
            self.found.added = counted if self.found.added is None else self.found.added + counted
        if not self._training:
            return
        for variable, value in zip(made.changed, made.states, strict=True):
            if self._updates is None:
                self._require_one_part(variable, self._part(work))
                self._note_state(variable, value, microbatch)
            else:
                variable.assign(value)
        if work.microbatch == 0:
            for key, count in made.draws.items():
                self.found.draws[key] = self.found.draws.get(key, 0) + count

    def _changed(self, scope: keras.StatelessScope, part: int, given: dict[int, tf.Tensor]) -> list[keras.Variable]:
        """Return the variables that layers have changed, except those of generators."""
        own = self._division.variables_of(part)
        changed = [one for one in own if scope.get_current_value(one) is not given.get(id(one))]
        trained = {id(one) for one in self._weights[part]}
        for one in changed:
            if id(one) in trained:
                raise UnsupportedError(
                    f"a layer changes its weight {one.path!r} (shape {tuple(one.shape)}) in the forward pass, as "
                    "SpectralNormalization does, and the micro-batches of a pipeline compute with the weights that a "
                    "step has begun with. Let such a layer change a variable with trainable=False, or take a strategy "
                    "that computes a batch at once, such as multi-worker.",
                    name=one.path,
                )
        return [one for one in changed if id(one) not in self._seeds]

    def _require_one_part(self, variable: keras.Variable, part: int) -> None:
        """Raise if several parts here change a variable: none would begin with what an earlier one has made of it."""
        if self._changing.setdefault(id(variable), part) != part:
            raise UnsupportedError(
                f"the variable {variable.path!r} (shape {tuple(variable.shape)}) changes in a forward pass, in several "
                "parts of the model, which call its layer. Let one part call it (stages=), or a layer for each call.",
                name=variable.path,
            )

    def _note_state(self, variable: keras.Variable, value: tf.Tensor, microbatch: MicroBatch) -> None:
        """Record a variable that a layer has changed; each micro-batch begins with the step's first value."""
        if not tf.as_dtype(variable.dtype).is_floating:
            self.found.states.setdefault(id(variable), (variable, value))
            return
        summed = tf.math.multiply_no_nan(value, tf.constant(microbatch.share, value.dtype))
        if id(variable) in self.found.states:
            summed = self.found.states[id(variable)][1] + summed
        self.found.states[id(variable)] = (variable, summed)

    def _beginnings(self, part: int, flow: Flow) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Move random generators to their positions at the beginning of this part, where earlier parts leave them."""
        drawn, shared = flow.draws_before(part), self._unseeded
        return [
            (one.state, moved(one, drawn[id(one)], is_shared=one is shared))
            for one in [*keras_variables.seed_generators(self._model), shared]
            if drawn[id(one)]
        ]

    @functools.cached_property
    def _kept(self) -> keep_sharded.Kept:
        part_of = {
            id(call.operation): part for part in range(self._division.parts) for call in self._division.calls_of(part)
        }
        return chains.among(
            self._division.calls,
            self._division.outputs,
            lambda one, other: part_of.get(id(one)) == part_of.get(id(other)),
        )

    def _trainable(self) -> dict[int, list[keras.Variable]]:
        trained = {id(weight) for weight in self._model.trainable_weights}
        found = {}
        for part in range(self._stage, self._division.parts, self._stages):
            found[part] = [variable for variable in self._division.variables_of(part) if id(variable) in trained]
        return found


def _of_shape(gradient: Any, weight: keras.Variable) -> Any:
    """Restore the shape of a gradient of rows, which a function's result does not have."""
    if isinstance(gradient, tf.IndexedSlices):
        sharding = sharded_variable.sharding_of(weight)  # within the stage
        shape = tuple(weight.shape) if sharding is None else sharding.local_shape
        return tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape))
    return gradient


def moved(generator: Any, count: int, *, is_shared: bool) -> tf.Tensor:
    """Return the state of a random generator after some draws; that which all layers share draws without an order."""
    state = generator.state
    with keras.StatelessScope([(state, tf.convert_to_tensor(state.value))], initialize_variables=False) as scope:
        for _ in range(count):
            layer_methods.own_next(generator, not is_shared)
    return tf.convert_to_tensor(scope.get_current_value(state))


def local(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context in which the weights of a model are the parts that this stage holds, cut or whole."""
    return sharded_variable.local([*model.weights], once=True)
