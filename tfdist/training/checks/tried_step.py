"""The trial of a step: it is traced for one device, and run on a few rows without changing anything.

It runs in Keras' stateless scope. It returns, for `judging`, the gradients that it hands to optimizers, its losses, the
lone numbers that it counts and logs, and the new values of states. Dropout is left out, and batch normalization takes
fixed statistics; they are not in question.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import dry_run
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods, stateless_scope
from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.tensorflow import traced_uses
from tfdist.compat.tensorflow.steps import replica_contexts, row_decisions
from tfdist.training.checks import advice, row_sums, state_dependence
from tfdist.training.checks.lockstep import Part, traced_together
from tfdist.training.epoch import flat
from tfdist.training.replica import batch_rows, current_step, replica_metrics, replica_step
from tfdist.training.replica.judging import NO_RULES, Dependence, Rules, Verdict

# of random numbers, over which a step's values are averaged
_DRAWS = 8
# kinds of values whose decisions are looked for: all others are results that a trial shows, or metrics
_DECIDED = ("gradient", "loss", "values", "added")

Key = tuple[str, int]


@dataclass
class Assignment:
    """An assignment of a state.

    ``key`` is "state" or "metric", with the number of the state, or of the metric whose variable it is; ``shown`` is
    what the graph shows of the change.
    """

    key: Key
    path: str
    aggregation: str
    dependence: Dependence
    shown: Verdict = "unknown"


@dataclass
class Asked:
    """The values that a step asks for and the states that it assigns, in order.

    Attributes:
        gatherable: the values that can be computed from the rows of all replicas.
        meets: whether replicas meet in the step, to gather rows or to reduce gradients.
        uses: sentences about values that the step computes from its own gradients, see `advice.of_own_gradients`.
        decisions: the operation by which a gradient or a loss is decided, on one number of the rows; see
            `row_decisions`.
        is_conditional: whether a gradient is applied inside a condition or a loop of TensorFlow's.
        shown: the verdict of the graph on each value, see `row_sums.shown`.
    """

    names: dict[Key, str] = field(default_factory=dict)
    gatherable: set[Key] = field(default_factory=set)
    assignments: list[Assignment] = field(default_factory=list)
    meets: bool = False
    uses: dict[Key, str] = field(default_factory=dict)
    decisions: dict[Key, str] = field(default_factory=dict)
    is_conditional: bool = False
    shown: dict[Key, Verdict] = field(default_factory=dict)


@dataclass
class Run:
    """The results of a step on some rows.

    ``states`` have the value before, the value after and the kept factor (smallest and largest) of each assignment.
    """

    values: dict[Key, np.ndarray]
    states: list[tuple[np.ndarray, np.ndarray, float, float]]


class TriedStep:
    """A step of a model, to be run on rows of a batch."""

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        run: replica_step.ReplicaStep,
        data: Any,
        *,
        meets_others: bool,
        training: bool,
        fed: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        self._model = model
        self._run = run
        self._training = training
        self._fed = fed or {}
        self.asked = Asked()
        self._together: tuple[int, Rules, Any] | None = None  # what was traced last of several parts
        self._structure = data
        self._options = [tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool)]
        self._specs = [dry_run.relaxed(leaf) for leaf in flat((data,))]
        #: whether the step makes variables when it is traced first
        self.makes_variables = False
        for is_second in (False, True):
            alone = tf.function(self._alone, autograph=False)
            try:
                self._traced = alone.get_concrete_function(*self._options, *self._specs)
            except AttributeError:  # a tape takes no gradient by a variable that it has made
                if is_second or not made_variables(strategy):
                    raise
            else:
                if not made_variables(strategy):
                    break
            self.makes_variables = True
        types = dry_run.operations(self._traced)
        if (change := dry_run.changes(types, meets_others=meets_others)) is not None:
            raise advice.CannotTryError(f"it changes something else than Keras variables, by the operation {change}")
        #: whether gradients are those of a `train_step` of the user's, and not of a stand-in for the loss
        self.has_own_step = keras_trainer.has_own_train_step(model)
        #: the names of metrics that are given losses, which are values of their own
        self.of_losses = {metric.name for metric in keras_trainer.loss_metrics(model)}
        #: whether values contain random numbers
        self.is_random = dry_run.draws(types)

    def __call__(self, rows: Any, *, is_fed: bool = False) -> Run:
        """Return the results of the step on rows; with random numbers the mean of several draws."""
        return self._run_of(self._means(self._traced, is_fed, flat((rows,))))

    def of_parts(self, parts: Sequence[Any], rules: Rules, *, is_fed: bool = False) -> list[Run]:
        """Return the results of the step on each of several parts of a batch, whose replicas meet in it."""

        def together(draw: tf.Tensor, is_fed: tf.Tensor, *given: Any) -> list[tf.Tensor]:
            count = len(self._specs)
            each = [given[place * count : (place + 1) * count] for place in range(len(parts))]
            total = tf.add_n([batch_rows.rows_of(self._packed(tensors)) for tensors in each])
            run = functools.partial(self._compute, draw, is_fed, total=total, rules=rules)
            with layer_methods.without_chance(keras_trainer.layers(self._model)):
                found = traced_together([functools.partial(run, tensors) for tensors in each])
            return [value for values in found for value in values]

        if self._together is None or self._together[:2] != (len(parts), rules):
            specs = [*self._options, *(self._specs * len(parts))]
            traced = tf.function(together, autograph=False).get_concrete_function(*specs)
            self._together = (len(parts), rules, traced)
        means = self._means(self._together[2], is_fed, [leaf for part in parts for leaf in flat((part,))])
        size = len(means) // len(parts)
        return [self._run_of(means[place * size : (place + 1) * size]) for place in range(len(parts))]

    def _means(self, traced: Any, is_fed: bool, given: Sequence[Any]) -> list[np.ndarray]:
        draws = range(_DRAWS if self.is_random else 1)
        found = [traced(tf.constant(draw), tf.constant(is_fed), *given) for draw in draws]
        return [np.mean([value.numpy() for value in same], axis=0) for same in zip(*found, strict=True)]

    def _run_of(self, means: Sequence[np.ndarray]) -> Run:
        count = len(self.asked.names)
        states = zip(*[iter(means[count:])] * 4, strict=True)
        each = [(former, value, float(least), float(most)) for former, value, least, most in states]
        return Run(dict(zip(self.asked.names, means, strict=False)), each)

    def _packed(self, given: Sequence[Any]) -> Any:
        tensors = iter(given)
        packed = [None if leaf is None else next(tensors) for leaf in leaves(self._structure)]
        return tf.nest.pack_sequence_as(self._structure, packed)

    def _alone(self, draw: tf.Tensor, is_fed: tf.Tensor, *given: Any) -> list[tf.Tensor]:
        with layer_methods.without_chance(keras_trainer.layers(self._model)):
            return self._compute(draw, is_fed, given)

    def _compute(
        self,
        draw: tf.Tensor,
        is_fed: tf.Tensor,
        given: Sequence[Any],
        part: Part | None = None,
        *,
        total: tf.Tensor | None = None,
        rules: Rules = NO_RULES,
    ) -> list[tf.Tensor]:
        model, asked = self._model, Asked()
        values: dict[Key, tuple[str, Any]] = {}
        states: list[tf.Tensor] = []
        changes: list[tuple[Any, Any]] = []
        data = self._packed(given)
        rows = batch_rows.rows_of(data)

        def note(kind: str, number: int, name: str, value: Any, can_gather: bool) -> None:
            key = (kind, number)
            if key in asked.names:  # a metric that counts more than once
                return
            if traced_uses.in_condition():
                if kind != "gradient":
                    raise advice.CannotTryError(f"it makes a {kind} inside a condition or a loop of TensorFlow's")
                asked.is_conditional = True  # on what, the whole graph shows
                return
            asked.names[key] = name
            if can_gather:
                asked.gatherable.add(key)
            values[key] = (name, value)

        keys = self._keys()

        def follow(variable: Any, former: Any, value: Any) -> Any:
            return self._followed(asked, keys[id(variable)], variable, former, value, is_fed, states, changes)

        # Metrics count from zero: what each replica has counted need not be added up for this. Keras' step counts the
        # loss by its tracker, also in a model of the user's whose `metrics` does not list it.
        trackers = (*model.metrics, keras_trainer.loss_tracker(model))
        metrics = {id(metric): metric for metric in trackers if metric is not None}
        counted = [variable for metric in metrics.values() for variable in metric.variables]
        given_values = [(v, tf.zeros(v.shape, v.dtype)) for v in counted]
        # For a sharded state the graph needs one tensor that represents the whole.
        given_values += [
            (v, tf.convert_to_tensor(v.value))
            for v in keras_variables.states(model)
            if id(v) in keys and not isinstance(keras_variables.value_of(v), tf.Variable)
        ]
        scope = stateless_scope.FollowedUpdates(given_values, keys, follow)
        sink = _Noted(note, training=self._training)
        all_reduce = list if part is None else part.all_reduce
        shares = {"rows": rows, "global_rows": rows if total is None else total, "index": draw, "rules": rules}
        with replica_contexts.of_no_strategy(0 if part is None else part.index), scope:
            self._run(data, sink, all_reduce=all_reduce, group=part, **shares)
        if part is None:
            asked.meets = sink.meets
            if asked.is_conditional:
                self._require_equal_conditions(given)
            asked.uses = advice.of_own_gradients(model, values) if keras_trainer.has_own_train_step(model) else {}
            self._show(asked, values, changes, given)
            self.asked = asked
        return [_sketch(value) for _, value in values.values()] + states

    def _require_equal_conditions(self, given: Sequence[Any]) -> None:
        """Raise for gradients inside a condition: the step cannot be tried, or replicas may part there."""
        graph = tf.compat.v1.get_default_graph()
        decision = row_decisions.of_conditions(graph, _cut(given))
        if decision is not None:
            raise advice.DecidesAloneError(decision)
        raise advice.CannotTryError("it makes a gradient inside a condition or a loop of TensorFlow's")

    def _show(
        self, asked: Asked, values: dict[Key, tuple[str, Any]], changes: list[tuple[Any, Any]], given: Sequence[Any]
    ) -> None:
        """Record the verdicts of the graph on values, and on the changes of states."""
        rows = _cut(given)
        found = row_sums.shown([value for _, value in values.values()], rows)
        asked.shown = dict(zip(values, found, strict=True))
        decided = [key for key in values if key[0] in _DECIDED]
        decisions = row_decisions.of([values[key][1] for key in decided], rows)
        asked.decisions = {key: one for key, one in zip(decided, decisions, strict=True) if one is not None}
        for assignment, (value, source) in zip(asked.assignments, changes, strict=True):
            if assignment.dependence in ("none", "added", "scaled"):
                (assignment.shown,) = row_sums.shown([value], rows, source)

    def _keys(self) -> dict[int, Key]:
        """Return the key of each state whose assignments are followed, by the identity of its variable."""
        keys: dict[int, Key] = {}
        own = keras_variables.states_of_users(self._model)
        keys.update({id(v): ("state", n) for n, v in enumerate(keras_variables.states(self._model)) if id(v) in own})
        for number, metric in enumerate(keras_trainer.metrics(self._model)):
            if metric_weights.counts_by_itself(metric):
                keys.update({id(variable): ("metric", number) for variable in metric.variables})
        return keys

    def _followed(
        self,
        asked: Asked,
        key: Key,
        variable: Any,
        former: Any,
        value: Any,
        is_fed: tf.Tensor,
        states: list[tf.Tensor],
        changes: list[tuple[Any, Any]],
    ) -> tf.Tensor:
        """Record an assignment; return the state's value from then on."""
        if traced_uses.in_condition():
            raise advice.CannotTryError(f"it assigns {variable.path!r} inside a condition or a loop of TensorFlow's")
        value = tf.convert_to_tensor(value)
        source = traced_uses.handle_of(former) if isinstance(former, tf.Variable) else former
        found = state_dependence.of(value, source)
        changes.append((value, source))
        number = len(asked.assignments)
        asked.assignments.append(Assignment(key, variable.path, variable.aggregation, found.dependence))
        kept = tf.ones([], tf.float64) if found.kept is None else found.kept
        states.extend([tf.convert_to_tensor(former), value, tf.reduce_min(kept), tf.reduce_max(kept)])
        if number not in self._fed:
            return value
        return tf.where(is_fed, tf.constant(self._fed[number], value.dtype), value)


class _Noted:
    """The sink of a step that is only tried."""

    def __init__(self, note: Callable[[str, int, str, Any, bool], None], *, training: bool) -> None:
        self._note = note
        self._training = training

    @property
    def meets(self) -> bool:
        return self._current.meetings > 0

    def begin(self, current: current_step.Step, *, asks: bool) -> None:
        """Record the values that the step asks for; results of metrics are over all replicas already."""
        self._current = current
        current.noted, current.result_of = self._note, _ones
        current.is_evaluation = not self._training

    def apply(self, optimizer: Any, gradients: list[Any], variables: Any) -> None:
        known = [] if variables is None else [variable.path for variable in variables]
        self._current.is_sum("gradient", gradients, name=", ".join(known))

    def end(self, logs: Any) -> None:
        for name, value in replica_metrics.named_scalars(logs):
            self._current.is_sum("log" if value.dtype.is_floating else "count", value, name=name)


def made_variables(strategy: tf.distribute.Strategy) -> bool:
    """True if a trace has made Keras variables, which get their first values now."""
    if not stateless_scope.made_variables():
        return False
    with strategy.scope():
        stateless_scope.initialise_made()
    return True


def _cut(given: Sequence[Any]) -> list[Any]:
    return [one for one in given if not isinstance(one, batch_rows.Whole)]


def leaves(data: Any) -> list[Any]:
    return list(tf.nest.flatten(data, expand_composites=False))


def some_of(slices: Sequence[tuple[Any, Any]], wanted: int) -> Any:
    """Return a few rows of the data of this worker's replicas, some of each; None if there are no examples."""
    present = [(int(rows), data) for rows, data in slices if int(rows)]
    if not present or not wanted:
        return None
    each = -(-wanted // len(present))
    some = [batch_rows.slice_rows(data, tf.constant(0), tf.constant(min(rows, each))) for rows, data in present]
    return batch_rows.slice_rows(joined(*some), tf.constant(0), tf.constant(wanted))


def joined(*nests: Any) -> Any:
    """Return the joined rows of several nests; for values without rows, the first."""
    return tf.nest.map_structure(batch_rows.joined, *nests, expand_composites=False)


def _ones(metric: keras.Metric) -> Any:
    found = metric_weights.own_result(metric)
    return tf.nest.map_structure(lambda value: tf.ones_like(tf.convert_to_tensor(value)), found)


def _sketch(value: Any) -> tf.Tensor:
    """Return a few numbers that are linear in a value, or in each of several gradients; float64 vector."""
    values = [one for one in (value if isinstance(value, list) else [value]) if one is not None]
    return tf.reshape(tf.stack([_projections(one) for one in values]), [-1]) if values else tf.zeros([1], tf.float64)


def _projections(value: Any) -> tf.Tensor:
    rows = value.indices if isinstance(value, tf.IndexedSlices) else None
    dense = tf.convert_to_tensor(value) if rows is None else value.values
    if dense.dtype.is_complex:
        dense = tf.stack([tf.math.real(dense), tf.math.imag(dense)], axis=-1)
    dense = tf.cast(dense, tf.float64)
    if rows is None:
        dense = tf.reshape(dense, [1, -1])
        rows = tf.zeros([1], tf.int64)
    dense = tf.reshape(dense, [tf.shape(dense)[0], -1])
    width = tf.shape(dense, out_type=tf.int64)[1]
    places = tf.cast(tf.cast(rows, tf.int64)[:, None] * width + tf.range(width)[None], tf.float64)
    return tf.stack([tf.reduce_sum(dense * tf.cos(places * rate + rate)) for rate in (0.7548776662, 0.5698402910)])
