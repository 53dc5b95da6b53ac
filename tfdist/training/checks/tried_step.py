"""A step that is tried: traced for one device, and run on a few rows without changing anything.

It runs in Keras' stateless scope. What it hands to its optimizers, what its losses make of a batch, the lone numbers
that it counts and logs, and what it gives to states are returned, for `judging`. Dropout is left out for that, and
batch normalisation takes fixed statistics; they are not what is asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.keras import layers as keras_layers
from tfdist.compat.keras import metrics as keras_metrics
from tfdist.compat.keras import model as keras_model
from tfdist.compat.keras import stateless_scope
from tfdist.compat.keras import variables as keras_variables
from tfdist.compat.tensorflow import data as tf_data
from tfdist.compat.tensorflow import traced_uses
from tfdist.compat.tensorflow import trial as tf_trial
from tfdist.compat.tensorflow.steps import replica_contexts
from tfdist.training.checks import state_dependence
from tfdist.training.judging import Dependence
from tfdist.training.layout import flat
from tfdist.training.replica import metrics, replica_step, step

# of random numbers, over which a step's values are averaged
_DRAWS = 8

Key = tuple[str, int]


@dataclass
class Assignment:
    """An assignment of a state.

    Attributes:
        key: "state" or "metric", and the number of the state, or of the metric whose variable it is.
        path: of the variable.
        aggregation: that the variable declares.
        dependence: of the new value on the former one.
    """

    key: Key
    path: str
    aggregation: str
    dependence: Dependence


@dataclass
class Asked:
    """What a step asks and assigns, in order.

    Attributes:
        names: of the values that were asked for, by kind and number.
        gatherable: those that can be computed of the rows of all replicas.
        assignments: of states.
    """

    names: dict[Key, str] = field(default_factory=dict)
    gatherable: set[Key] = field(default_factory=set)
    assignments: list[Assignment] = field(default_factory=list)


@dataclass
class Run:
    """What a step has made of some rows.

    Attributes:
        values: a vector for each value that was asked for.
        states: value before, value after and kept factor (smallest and largest) of each assignment.
    """

    values: dict[Key, np.ndarray]
    states: list[tuple[np.ndarray, np.ndarray, float, float]]


class TriedStep:
    """A step of a model, to be run on rows of a batch.

    Args:
        model: the model.
        strategy: in whose scope it was made.
        run: the step, on one replica.
        data: rows, whose shapes and dtypes those of all runs are.
        meets_others: whether the other workers run it too, so that it may have collectives.
        fed: for each assignment the value that states have after it where a run is fed, as if all replicas had put
            them together by then; None: nothing is fed.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        run: replica_step.ReplicaStep,
        data: Any,
        *,
        meets_others: bool,
        fed: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        self._model = model
        self._run = run
        self._fed = fed or {}
        self.asked = Asked()
        self._structure = data
        specs = [tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool)]
        specs += [tf_trial.relaxed(leaf) for leaf in flat((data,))]
        for _ in range(2):
            self._traced = tf.function(self._compute, autograph=False).get_concrete_function(*specs)
            if not made_variables(strategy):
                break
        types = tf_trial.operations(self._traced)
        if (change := tf_trial.changes(types, meets_others=meets_others)) is not None:
            raise RuntimeError(f"it changes something else than Keras variables, by the operation {change}")
        #: whether values contain random numbers
        self.is_random = tf_trial.draws(types)

    def __call__(self, rows: Any, *, is_fed: bool = False) -> Run:
        """Return what the step makes of rows; of random numbers the mean of several draws.

        Args:
            rows: a nest like the data that it was made for.
            is_fed: whether states have the values that were given for them.
        """
        draws = range(_DRAWS if self.is_random else 1)
        found = [self._traced(tf.constant(draw), tf.constant(is_fed), *flat((rows,))) for draw in draws]
        means = [np.mean([value.numpy() for value in same], axis=0) for same in zip(*found, strict=True)]
        count = len(self.asked.names)
        states = zip(*[iter(means[count:])] * 4, strict=True)
        each = [(former, value, float(least), float(most)) for former, value, least, most in states]
        return Run(dict(zip(self.asked.names, means, strict=False)), each)

    def _compute(self, draw: tf.Tensor, is_fed: tf.Tensor, *given: Any) -> list[tf.Tensor]:
        model, self.asked = self._model, Asked()
        values: list[tf.Tensor] = []
        states: list[tf.Tensor] = []
        tensors = iter(given)
        packed = [None if leaf is None else next(tensors) for leaf in leaves(self._structure)]
        data = tf.nest.pack_sequence_as(self._structure, packed)
        rows = step.rows_of(data)

        def note(kind: str, number: int, name: str, value: Any, can_gather: bool) -> None:
            key = (kind, number)
            if key in self.asked.names:  # a metric that counts more than once
                return
            self.asked.names[key] = name
            if can_gather:
                self.asked.gatherable.add(key)
            values.append(_sketch(value))

        keys = self._keys()

        def follow(variable: Any, former: Any, value: Any) -> Any:
            return self._followed(keys[id(variable)], variable, former, value, is_fed, states)

        # Metrics count from zero: what each replica has counted need not be added up for this.
        counted = [variable for metric in model.metrics for variable in metric.variables]
        fixed = keras_layers.without_chance(keras_model.layers(model))
        scope = stateless_scope.FollowedUpdates([(v, tf.zeros(v.shape, v.dtype)) for v in counted], keys, follow)
        with fixed, replica_contexts.of_no_strategy(), scope:
            self._run(data, _Noted(note), rows=rows, global_rows=rows, index=draw, all_reduce=list)
        return values + states

    def _keys(self) -> dict[int, Key]:
        """Return the key of each state whose assignments are followed, by the identity of its variable."""
        keys: dict[int, Key] = {}
        own = keras_variables.states_of_users(self._model)
        keys.update({id(v): ("state", n) for n, v in enumerate(keras_variables.states(self._model)) if id(v) in own})
        for number, metric in enumerate(keras_model.metrics(self._model)):
            if keras_metrics.counts_by_itself(metric):
                keys.update({id(variable): ("metric", number) for variable in metric.variables})
        return keys

    def _followed(
        self, key: Key, variable: Any, former: Any, value: Any, is_fed: tf.Tensor, states: list[tf.Tensor]
    ) -> tf.Tensor:
        """Note an assignment, and return what the state is from then on."""
        value = tf.convert_to_tensor(value)
        source = traced_uses.handle_of(former) if isinstance(former, tf.Variable) else former
        found = state_dependence.of(value, source)
        number = len(self.asked.assignments)
        self.asked.assignments.append(Assignment(key, variable.path, variable.aggregation, found.dependence))
        kept = tf.ones([], tf.float64) if found.kept is None else found.kept
        states.extend([tf.convert_to_tensor(former), value, tf.reduce_min(kept), tf.reduce_max(kept)])
        if number not in self._fed:
            return value
        return tf.where(is_fed, tf.constant(self._fed[number], value.dtype), value)


class _Noted:
    """The sink of a step that is only tried: what it makes is looked at.

    Args:
        note: see `Step.noted`.
    """

    def __init__(self, note: Callable[[str, int, str, Any, bool], None]) -> None:
        self._note = note

    def begin(self, current: step.Step, *, asks: bool) -> None:
        """Let the step tell what it asks; what is made of results of metrics is over all replicas already."""
        self._current = current
        current.noted, current.result_of = self._note, _ones

    def apply(self, optimizer: Any, gradients: list[Any], variables: Any) -> None:
        """Note the gradients."""
        known = [] if variables is None else [variable.path for variable in variables]
        self._current.is_sum("gradient", gradients, name=", ".join(known))

    def end(self, logs: Any) -> None:
        """Note what is logged."""
        for name, value in metrics.named_scalars(logs):
            self._current.is_sum("log", value, name=name)


def made_variables(strategy: tf.distribute.Strategy) -> bool:
    """Return whether a trace has made Keras variables, which get their first values now."""
    if not stateless_scope.made_variables():
        return False
    with strategy.scope():
        stateless_scope.initialise_made()
    return True


def leaves(data: Any) -> list[Any]:
    """Return the tensors of a nest, composite ones whole."""
    return list(tf.nest.flatten(data, expand_composites=False))


def some_of(slices: Sequence[tuple[Any, Any]], wanted: int) -> Any:
    """Return a few rows of what the replicas of this worker have, some of each; None if there are no examples.

    Args:
        slices: the number of examples and the nest of each replica.
        wanted: how many rows, if there are so many.
    """
    present = [(int(rows), data) for rows, data in slices if int(rows)]
    if not present or not wanted:
        return None
    each = -(-wanted // len(present))
    some = [step.slice_rows(data, tf.constant(0), tf.constant(min(rows, each))) for rows, data in present]
    return step.slice_rows(joined(*some), tf.constant(0), tf.constant(wanted))


def joined(*nests: Any) -> Any:
    """Return the rows of several nests; of what has no rows, the first."""

    def of_leaf(*leaves: Any) -> Any:
        return leaves[0] if leaves[0] is None or leaves[0].shape.rank == 0 else tf_data.joined(*leaves)

    return tf.nest.map_structure(of_leaf, *nests, expand_composites=False)


def _ones(metric: keras.Metric) -> Any:
    """Return ones in the shape of a metric's result."""
    found = keras_metrics.own_result(metric)
    return tf.nest.map_structure(lambda value: tf.ones_like(tf.convert_to_tensor(value)), found)


def _sketch(value: Any) -> tf.Tensor:
    """Return a few numbers that are linear in a value, or in each of several gradients; float64 vector."""
    values = [one for one in (value if isinstance(value, list) else [value]) if one is not None]
    return tf.reshape(tf.stack([_projections(one) for one in values]), [-1]) if values else tf.zeros([1], tf.float64)


def _projections(value: Any) -> tf.Tensor:
    rows = value.indices if isinstance(value, tf.IndexedSlices) else None
    dense = tf.cast(tf.convert_to_tensor(value) if rows is None else value.values, tf.float64)
    if rows is None:
        dense = tf.reshape(dense, [1, -1])
        rows = tf.zeros([1], tf.int64)
    dense = tf.reshape(dense, [tf.shape(dense)[0], -1])
    width = tf.shape(dense, out_type=tf.int64)[1]
    places = tf.cast(tf.cast(rows, tf.int64)[:, None] * width + tf.range(width)[None], tf.float64)
    return tf.stack([tf.reduce_sum(dense * tf.cos(places * rate + rate)) for rate in (0.7548776662, 0.5698402910)])
