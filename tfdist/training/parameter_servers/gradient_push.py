"""A worker's results under parameter servers: gradients to the servers, and a few numbers and logs to the chief."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.wire_dtypes import has_fractions
from tfdist.compat.keras import keras_trainer, keras_variables, stateless_scope
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.tensorflow import new_variables, replay, traced_uses
from tfdist.compression.codec import Codec
from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import compressed_reducer, reducer, replica_sums
from tfdist.monitor.recording.stamp_rows import PassesRow
from tfdist.training import loss_scale
from tfdist.training.parameter_servers import transport
from tfdist.training.parameter_servers.batch_plan import (
    MakesVariablesError,
    NotBuiltError,
    Plan,
    ReducesInTheMiddleError,
    UsesItsUpdatesError,
)
from tfdist.training.replica import current_step, replica_metrics, replica_optimizers


class Logs:
    """The metrics whose results a step has asked for, and the logs of the step.

    A worker's metrics have counted a part of a batch, from zero. So results are only marked there, and the chief
    computes the logs that depend on them again, of its own metrics. All other logs are means over the parts.
    """

    def __init__(self) -> None:
        self._results: list[tuple[keras.Metric, int, tf.Tensor]] = []
        self._structure: Any = None
        self._leaves: list[tf.Tensor | None] = []
        self._sent: list[tf.Tensor] = []
        self._replay: replay.Replay | None = None

    def result(self, metric: keras.Metric) -> Any:
        """Return the result of a metric of this part, marked."""
        found = metric_weights.own_result(metric)
        marked = [tf.identity(value) for value in tf.nest.flatten(found)]
        self._results += [(metric, place, value) for place, value in enumerate(marked)]
        return tf.nest.pack_sequence_as(found, marked)

    def take(self, logs: Any, current: current_step.Step) -> Iterator[tf.Tensor]:
        """Take the step's logs; yield this part's share of each number whose sum over parts `put` needs."""
        self._structure = logs
        self._leaves = [None if leaf is None else tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(logs)]
        marked = {id(value) for _, _, value in self._results}
        if not tf.executing_eagerly():
            self._replay = replay.Replay(self._symbolic(), [value for _, _, value in self._results])
            if any(not _averages(tensor) for tensor in self._replay.given):
                self._replay = None
        replayed = self._replay.depends if self._replay else [False] * len(self._leaves)
        scalars = [leaf for leaf in self._symbolic() if leaf.shape.rank == 0 and (_averages(leaf) or _counts(leaf))]
        weights = {id(leaf): _weight(leaf, current) for leaf in scalars}
        again = {id(leaf) for leaf, made in zip(self._symbolic(), replayed, strict=False) if made} | marked
        self._sent = [leaf for leaf in scalars if id(leaf) not in again]
        self._sent += self._replay.given if self._replay else []
        for tensor in self._sent:
            value = tf.cast(tensor, tf.float64) if _counts(tensor) else tensor
            yield replica_sums.weighted(value, weights.get(id(tensor), current.share))

    def _symbolic(self) -> list[tf.Tensor]:
        return [leaf for leaf in self._leaves if leaf is not None]

    def put(self, means: list[tf.Tensor]) -> Any:
        """Return the logs, of the chief's metrics and the sums of what `take` gave; None for what has no mean."""
        values = {id(tensor): mean for tensor, mean in zip(self._sent, means, strict=True)}
        answers: dict[int, list[Any]] = {}
        for metric, place, value in self._results:
            if id(metric) not in answers:
                answers[id(metric)] = tf.nest.flatten(metric_weights.own_result(metric))
            values[id(value)] = tf.convert_to_tensor(answers[id(metric)][place])
        if self._replay is not None:
            sources = [values[id(value)] for _, _, value in self._results]
            made = self._replay(sources, [values[id(tensor)] for tensor in self._replay.given])
            values |= {id(leaf): value for leaf, value in zip(self._symbolic(), made, strict=True) if value is not None}
        return tf.nest.pack_sequence_as(
            self._structure, [None if leaf is None else values.get(id(leaf)) for leaf in self._leaves]
        )


def _averages(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating)


def _counts(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_integer)


def _weight(number: tf.Tensor, current: current_step.Step) -> tf.Tensor:
    """Return the weight of a part's number in the logs; whole numbers are counts or the same in all parts."""
    if _averages(number):
        return current.weight_of("log", number)
    return current.present if current.is_sum("count", number) else current.share


@dataclass(frozen=True)
class Note:
    """A small result for the chief.

    Attributes:
        target: the Keras variable that it changes, or the index of a number in the logs.
        mode: the way of combining parts: "add" (sum over parts, added to the variable), "average" (likewise, of shares
            that add up to one), "first" (the first part's, added), "set" (the first part's, assigned), "log" (sum of
            shares), or a number for the chief: "scale" (a loss scale) or "passes" (see `PassesRow.numbers`).
    """

    target: Any
    mode: str
    dtype: tf.DType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A call of an optimizer's `apply`: the variables, and each gradient's kind and number of parts.

    ``scale`` is the variable of the loss scale whose value the worker was given; None where there is none.
    ``in_pairs`` says that the step called an `apply_gradients` of the user's.
    """

    optimizer: Any
    variables: list[Any]
    kinds: list[transport.Kind | None]
    scale: Any
    in_pairs: bool


class ToServers(reducer.GradientReducer):
    """The exchange of a part, which leaves gradients on the servers of their variables, where the chief adds parts."""

    def __init__(self, variables: Sequence[Any], *, in_parts: bool, codec: Codec | None = None) -> None:
        self._variables = variables
        self._codec = codec
        self._in_parts = in_parts
        #: the way in which each gradient travels
        self.kinds: list[transport.Kind] = []
        #: on the servers
        self.tensors: list[tf.Tensor] = []

    def reduce(self, gradients: list[reducer.Gradient]) -> list[reducer.Gradient]:
        """Return the gradients that the chief will apply if this is the only part."""
        applied = []
        for gradient, variable in zip(gradients, self._variables, strict=True):
            kind, tensors = transport.left_on_servers(gradient, variable, in_parts=self._in_parts, codec=self._codec)
            self.kinds.append(kind)
            self.tensors.extend(tensors)
            arrived = transport.sum_of(kind, variable, [list(tensors)], self._codec) if kind[0] == "encoded" else None
            applied.append(gradient.mapped(transport.widened) if arrived is None else replace(gradient, value=arrived))
        return applied


class ToChief:
    """The sink of a worker's step, which changes nothing: every update becomes a result."""

    def __init__(
        self,
        model: keras.Model,
        scope: stateless_scope.CapturedUpdates,
        plan: Plan,
        given: list[tuple[Any, tf.Tensor]],
        *,
        alone: bool,
        passes: PassesRow | None = None,
    ) -> None:
        self._model = model
        self._scope = scope
        self._plan = plan
        self._given = {id(variable): value for variable, value in given}
        self._alone = alone
        self._passes = passes
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._asked = Logs()
        self._scales: list[tf.Tensor] = []
        self._results: list[tf.Tensor] = []
        self.calls: list[Call] = []
        self.notes: list[Note] = []
        #: the gradients of all calls, on the servers
        self.gradients: list[tf.Tensor] = []
        #: makes the logs of the sums of their numbers; None where they are the model's metrics
        self.put_logs: Callable[[list[Any]], Any] | None = None

    @property
    def all_reduce(self) -> Callable[[list[Any]], list[Any]]:
        return list if self._plan.parts == 1 else _refuse

    def begin(self, current: current_step.Step, *, asks: bool) -> None:
        """Mark the results of metrics that the step asks for."""
        self._current = current
        numbered = enumerate(keras_variables.states(self._model))
        rules = current.rules.states
        self._rules = {id(variable): rules[number].verdict for number, variable in numbered if number in rules}
        current.result_of = self._asked.result if asks else None

    def apply(self, optimizer: Any, gradients: list[Any], variables: Any) -> None:
        """Leave gradients on their servers; update stand-ins where the step uses the update."""
        if variables is not None and not optimizer.built:
            raise NotBuiltError(optimizer, list(variables))
        if self._graph is not None and self._graph is not tf.compat.v1.get_default_graph():
            raise _in_a_function_of_its_own(optimizer)
        variables = list(variables) if variables is not None else keras_optimizer.known_variables(optimizer)
        reducer.require_gradients(variables, "parameter servers add up what comes from workers")
        # the chief reads what lies on the servers in the order of the variables
        given = sorted(reducer.present(gradients, variables, optimizer), key=lambda one: one.index)
        there = [variables[one.index] for one in given]
        in_parts = keras_optimizer.takes_gradients_as_they_come(optimizer)
        servers = ToServers(there, in_parts=in_parts, codec=compressed_reducer.codec_of(optimizer))
        out = reducer.composed(replace(reducer.choices_of(optimizer), compression=None), servers)
        part = out.reduce(reducer.weighted(given, replica_optimizers.weight(optimizer, given)))
        self.gradients.extend(servers.tensors)
        kinds = dict(zip([one.index for one in given], servers.kinds, strict=True))
        self._note_call(optimizer, variables, [kinds.get(index) for index in range(len(gradients))])
        changing = [*variables, *keras_optimizer.variables_of_updates(optimizer)]
        if len(self.calls) <= self._plan.updates:
            self._scope.stand_in_for(changing, new_variables.for_step)
            with self._scope.updating():
                values = reducer.in_their_places(part, len(gradients))
                in_pairs = replica_optimizers.in_pairs(optimizer)
                replica_optimizers.own_apply(optimizer, values, variables, in_pairs=in_pairs)
        self._scope.changed(changing, len(self.calls))

    def _note_call(self, optimizer: Any, variables: list[Any], kinds: list[transport.Kind | None]) -> None:
        scale = loss_scale.variable_of(optimizer)
        held = scale if id(scale) in self._given else None
        self.calls.append(Call(optimizer, variables, kinds, held, replica_optimizers.in_pairs(optimizer)))
        present = tf.constant(1.0) if held is None else tf.convert_to_tensor(self._scope.present_value(held))
        self._scales.append(present)

    def end(self, logs: Any) -> list[tf.Tensor]:
        """Return the small results, packed, and the gradients."""
        if stateless_scope.made_variables():
            raise MakesVariablesError
        # a variable in the logs is read here, before it is known whether the step uses its updates
        logs = tf.nest.map_structure(lambda one: one.value if isinstance(one, keras.Variable) else one, logs)
        if self._scope.needed > self._plan.updates:
            used = {id(v): v for call in self.calls[: self._scope.needed] for v in call.variables}
            raise UsesItsUpdatesError(list(used.values()), self._scope.needed)
        for place, scale in enumerate(self._scales):
            self._note(place, "scale", scale)
        numbers = None if self._passes is None else self._passes.numbers(traced_uses.first_reads())
        if numbers is not None:
            self._note(None, "passes", numbers)
        counted = {id(variable): metric for metric in self._model.metrics for variable in metric.variables}
        no_sums = replica_metrics.no_sums(self._model, self._current.rules)
        touched = {metric.name for metric in self._model.metrics if not metric.variables}
        for variable in self._scope.assigned:
            if id(variable) in counted:
                touched.add(counted[id(variable)].name)
                value = tf.convert_to_tensor(self._scope.present_value(variable))
                adds = variable.aggregation == "sum" and id(variable) not in no_sums
                self._note(variable, "add" if adds else "set", value)
            elif id(variable) in self._scope.stand_ins and not self._model.jit_compile:
                self._note(variable, *self._after_its_updates(variable))
            else:
                self._note(variable, *self._change_of(variable))
        if not replica_metrics.are_metrics(self._model, logs, keras_trainer.metrics_result(self._model), touched):
            if self._current.replaced_results:
                raise current_step.not_logged_as_itself(self._current.replaced_results[0])
            self.put_logs = self._asked.put
            for place, value in enumerate(self._asked.take(logs, self._current)):
                self._note(place, "log", value)
        return [transport.packed(self._results), *self.gradients]

    def _note(self, target: Any, mode: str, value: tf.Tensor) -> None:
        if isinstance(target, keras.Variable):
            value = tf.ensure_shape(value, target.shape)
        self.notes.append(Note(target, mode, value.dtype, tuple(value.shape.as_list())))
        self._results.append(value)

    def _after_its_updates(self, variable: Any) -> tuple[str, tf.Tensor]:
        """Return the chief's change of a variable that the step assigns and updates.

        The chief repeats the updates: if they are of the same state, the variable gets the step's value.
        """
        delta = self._scope.added.get(id(variable))
        if self._alone or delta is None:
            return "set", tf.convert_to_tensor(self._scope.present_value(variable))
        return "average", replica_sums.weighted(delta, self._current.share)

    def _change_of(self, variable: Any) -> tuple[str, tf.Tensor]:
        own = keras_variables.value_of(variable)
        value = tf.cast(tf.convert_to_tensor(self._scope.present_value(variable)), own.dtype)
        old = self._given.get(id(variable))
        old = tf.convert_to_tensor(own) if old is None else old
        if self._rules.get(id(variable)) == "sum":
            change = value - old
            return "average", tf.where(self._current.rows > 0, change, tf.zeros_like(change))
        if has_fractions(value.dtype):
            # Averages over parts, as layers' moving statistics are; what the chief holds is equal on all parts.
            return "average", replica_sums.weighted(value - old, self._current.share)
        if value.dtype.is_integer and not value.dtype.is_unsigned:
            return "first", value - old
        return "set", value  # seeds, and what is no number


def _refuse(tensors: list[Any]) -> list[Any]:
    raise ReducesInTheMiddleError


def _in_a_function_of_its_own(optimizer: Any) -> UnsupportedError:
    return UnsupportedError(
        f"train_step calls apply() of the optimizer {optimizer.name!r} inside a tf.cond, a tf.while_loop or another "
        "tf.function, under ParameterServerStrategy, whose chief must be told at every step of every gradient. Call "
        "it in train_step itself: as a loop or a condition of Python's, or with gradients that are multiplied by 0 "
        "where they shall not count; or train under another strategy."
    )
