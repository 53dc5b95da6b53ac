"""A stage's part of one step: it does the work of a schedule, in that order, with what other stages send.

TensorFlow runs an operation as soon as it can. So the work of a stage is put in order by control dependencies: a pass
begins when the one before has ended; what it receives is asked for one pass ahead.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import graphs
from tfdist.compat.keras import model as keras_model
from tfdist.compat.tensorflow.meshes import sharded
from tfdist.parallel.pipeline.division import Division, Edge
from tfdist.parallel.pipeline.gradients import Accumulated
from tfdist.parallel.pipeline.links import Links, float_edges
from tfdist.parallel.pipeline.microbatch import MicroBatch
from tfdist.parallel.schedules.table import Work

#: what draws of a generator that all layers share, where it begins for each part of the model
_FAR = 1_000_003


@dataclass
class Passed:
    """What a forward pass leaves for its backward pass."""

    tape: tf.GradientTape | None
    taken: dict[int, tf.Tensor]
    made: dict[int, tf.Tensor] = field(default_factory=dict)
    #: what the last part's loss and what layers add come to, scaled for the gradient
    target: tf.Tensor | None = None


@dataclass
class Found:
    """What the passes of a step have come to on this stage.

    Attributes:
        gradients: of each of this stage's trainable variables, by identity.
        states: values of variables that layers have changed, by identity: the variable, and the weighted sum over
            micro-batches for floats, else that of the first one.
        outputs: of the last part, for each micro-batch the flat results of the model.
        added: the sum over examples of what layers add to the loss; None: nothing.
        draws: how often each generator was drawn from in one forward pass.
    """

    gradients: dict[int, Accumulated] = field(default_factory=dict)
    states: dict[int, tuple[keras.Variable, tf.Tensor]] = field(default_factory=dict)
    outputs: dict[int, list[tf.Tensor]] = field(default_factory=dict)
    added: tf.Tensor | None = None
    draws: dict[int, int] = field(default_factory=dict)


class Run:
    """The passes of one step through the parts of the model on one stage.

    Args:
        model: the model.
        division: of it.
        stage: this process's number among the stages.
        stages: how many there are.
        links: to the others.
        microbatches: of this replica's batch.
        training: whether the model trains.
        unseeded: Keras' generator for random numbers without a seed.
        recompute: whether a backward pass computes its forward pass again, and only what was received is kept.
    """

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
    ) -> None:
        self._model = model
        self._division = division
        self._stage = stage
        self._stages = stages
        self._links = links
        self._microbatches = microbatches
        self._training = training
        self._unseeded = unseeded
        self._recompute = recompute
        self._passed: dict[Work, Passed] = {}
        self._received: dict[Work, dict[Edge, tf.Tensor]] = {}
        self._weights = self._trainable()
        self._seeds = {id(one.state) for one in [*keras_model.seed_generators(model), unseeded]}
        self.found = Found()

    def train(self, order: Sequence[Work]) -> Found:
        """Do forward and backward passes in order."""
        self._in_order(order, lambda work: self._forward(work) if work.kind == "forward" else self._backward(work))
        return self.found

    def predict(self, order: Sequence[Work], *, with_loss: bool) -> Found:
        """Do forward passes in order, and keep nothing for backward passes."""

        def forward(work: Work) -> list[Any]:
            passed = self._computed(work, self._received.pop(work), with_tape=False, with_loss=with_loss)
            return self._send(work, passed)

        self._in_order(order, forward)
        return self.found

    def _in_order(self, order: Sequence[Work], do: Callable[[Work], list[Any]]) -> None:
        ends: list[list[Any]] = [[], []]
        for work in order:
            with tf.control_dependencies(ends[-2]):
                self._receive(work)
            with tf.control_dependencies(ends[-1]):
                ends.append([tf.group(*do(work))])

    def _part(self, work: Work) -> int:
        return work.chunk * self._stages + self._stage

    def _receive(self, work: Work) -> None:
        part, microbatch = self._part(work), self._microbatches[work.microbatch]
        if work.kind == "forward":
            self._received[work] = {
                edge: self._links.take_activation(
                    edge, work.microbatch, microbatch.spec(edge.tensor), self._mask_rank(edge)
                )
                for edge in self._division.into(part)
            }
        else:
            edges = float_edges(self._division.out_of(part), microbatch.specs)
            self._received[work] = {
                edge: self._links.take_gradient(edge, work.microbatch, microbatch.spec(edge.tensor)) for edge in edges
            }

    def _mask_rank(self, edge: Edge) -> int:
        if not edge.has_mask:
            return 0
        made = next(one for call in self._division.calls for one in call.makes if id(one) == edge.tensor)
        return len(graphs.mask_of(made).shape)

    def _forward(self, work: Work) -> list[Any]:
        received = self._received.pop(work)
        if not self._recompute:
            passed = self._passed[work] = self._computed(work, received, with_tape=True, with_loss=True)
            return self._send(work, passed)
        taken = {edge.tensor: tensor for edge, tensor in received.items()}
        self._passed[work] = Passed(None, taken)
        if self._part(work) == self._division.parts - 1:  # its results are needed in the backward pass alone
            return list(taken.values())
        return self._send(work, self._computed(work, received, with_tape=False, with_loss=False, notes=False))

    def _send(self, work: Work, passed: Passed) -> list[Any]:
        for edge in self._division.out_of(self._part(work)):
            self._links.send_activation(passed.made[edge.tensor], edge, work.microbatch)
        ended = list(passed.made.values())
        return ended if passed.target is None else [*ended, passed.target]

    def _backward(self, work: Work) -> list[Any]:
        part, microbatch = self._part(work), self._microbatches[work.microbatch]
        received = self._received.pop(work)
        passed = self._passed.pop(work._replace(kind="forward"))
        if passed.tape is None:
            taken = {edge: passed.taken[edge.tensor] for edge in self._division.into(part)}
            passed = self._computed(work, taken, with_tape=True, with_loss=True)
        targets, upstream = [], []
        for tensor in dict.fromkeys(edge.tensor for edge in received):
            arrived = [gradient for edge, gradient in received.items() if edge.tensor == tensor]
            targets.append(passed.made[tensor])
            upstream.append(arrived[0] if len(arrived) == 1 else tf.add_n(arrived))
        if passed.target is not None:
            targets.append(passed.target)
            upstream.append(tf.ones_like(passed.target))
        back = float_edges(self._division.into(part), microbatch.specs)
        weights = self._weights[part]
        assert passed.tape is not None
        sources = [*(passed.taken[edge.tensor] for edge in back), *(weight.value for weight in weights)]
        gradients = (
            passed.tape.gradient(targets, sources, output_gradients=upstream) if targets else [None] * len(sources)
        )
        for edge, gradient in zip(back, gradients, strict=False):
            tensor = passed.taken[edge.tensor]
            whole = tf.zeros_like(tensor) if gradient is None else tf.convert_to_tensor(gradient)
            self._links.send_gradient(whole, edge, work.microbatch)
        for weight, gradient in zip(weights, gradients[len(back) :], strict=True):
            self.found.gradients.setdefault(id(weight), Accumulated()).add(gradient, work.microbatch, microbatch.rows)
        return [one.values if isinstance(one, tf.IndexedSlices) else one for one in gradients if one is not None]

    def _computed(
        self, work: Work, received: dict[Edge, tf.Tensor], *, with_tape: bool, with_loss: bool, notes: bool = True
    ) -> Passed:
        """Compute a part of the model for a micro-batch.

        Args:
            work: which part, and which micro-batch.
            received: what other parts have made.
            with_tape: whether a gradient will be taken.
            with_loss: whether the last part computes the loss.
            notes: whether what layers change and add counts; not where it is computed a second time.
        """
        part, microbatch = self._part(work), self._microbatches[work.microbatch]
        taken = {edge.tensor: tensor for edge, tensor in received.items()}
        passed = Passed(tf.GradientTape() if with_tape else None, taken)
        given = {id(key): value for key, value in zip(self._division.graph.inputs, microbatch.inputs, strict=True)}
        calls = self._division.calls_of(part)
        tape: AbstractContextManager[Any] = contextlib.nullcontext() if passed.tape is None else passed.tape
        scope = keras.StatelessScope(state_mapping=self._beginnings(part), collect_losses=True)
        before = dict(microbatch.current.draws)
        with microbatch.current, tape:
            if passed.tape is not None:
                passed.tape.watch([one for one in taken.values() if one.dtype.is_floating])
            values = {**given, **taken}
            with scope, graphs.call_of_model(self._model, training=self._training):
                for call in calls:
                    for tensor, made in zip(call.makes, call.compute(values, training=self._training), strict=True):
                        values[id(tensor)] = made
                added = [tf.reduce_sum(tf.cast(one, keras.backend.floatx())) for one in scope.losses]
            passed.made = {edge.tensor: values[edge.tensor] for edge in self._division.out_of(part)}
            losses = [tf.add_n(added)] if added else []
            if notes and added:
                self._note_added(losses[0], microbatch)
            if part == self._division.parts - 1:
                outputs = [values[id(tensor)] for tensor in self._division.graph.outputs]
                self.found.outputs[work.microbatch] = outputs
                if with_loss:
                    losses = [self._loss(outputs, microbatch), *losses]
            if with_tape and losses:
                total = losses[0] if len(losses) == 1 else tf.add_n([tf.cast(one, losses[0].dtype) for one in losses])
                passed.target = self._model.optimizer.scale_loss(total)
        if notes and self._training:
            self._note_states(scope, part, microbatch)
            if work.microbatch == 0:
                drawn = microbatch.current.draws
                for key, count in drawn.items():
                    self.found.draws[key] = self.found.draws.get(key, 0) + count - before.get(key, 0)
        return passed

    def _loss(self, outputs: list[tf.Tensor], microbatch: MicroBatch) -> tf.Tensor:
        y_pred = graphs.packed(self._division.graph, outputs)
        loss = keras_model.compiled_loss(self._model, microbatch.y, y_pred, microbatch.sample_weight)
        keras_model.loss_tracker(self._model).update_state(loss, sample_weight=microbatch.counted)
        return loss

    def _note_added(self, added: tf.Tensor, microbatch: MicroBatch) -> None:
        counted = added * tf.cast(microbatch.counted, added.dtype)
        self.found.added = counted if self.found.added is None else self.found.added + counted

    def _note_states(self, scope: keras.StatelessScope, part: int, microbatch: MicroBatch) -> None:
        """Take what layers have changed: each micro-batch begins with what the step has begun with."""
        for layer in self._division.layers_of(part):
            for variable in layer.variables:
                value = scope.get_current_value(variable)
                if value is None or id(variable) in self._seeds:
                    continue
                if not tf.as_dtype(variable.dtype).is_floating:
                    self.found.states.setdefault(id(variable), (variable, value))
                    continue
                share = tf.cast(microbatch.current.share, value.dtype)
                summed = tf.math.multiply_no_nan(value, share)
                if id(variable) in self.found.states:
                    summed = self.found.states[id(variable)][1] + summed
                self.found.states[id(variable)] = (variable, summed)

    def _beginnings(self, part: int) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Return where the generator that all layers share begins in this part."""
        if part == 0:
            return []
        state = self._unseeded.state
        moved = tf.convert_to_tensor(state.value) + tf.constant([0, _FAR * part], tf.as_dtype(state.dtype))
        return [(state, moved)]

    def _trainable(self) -> dict[int, list[keras.Variable]]:
        """Return for each part of this stage the weights that train."""
        trained = {id(weight) for weight in self._model.trainable_weights}
        found = {}
        for part in range(self._stage, self._division.parts, self._stages):
            own = {id(v): v for layer in self._division.layers_of(part) for v in layer.variables}
            found[part] = [variable for key, variable in own.items() if key in trained]
        return found


def local(model: keras.Model) -> AbstractContextManager[None]:
    """Return a context in which the weights of a model are what this stage has of them."""
    return sharded.local([*model.weights])
