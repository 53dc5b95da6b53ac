"""Metrics in a tfdist scope, whose batch logs and epoch logs are over the examples of all replicas.

A step may log a metric under any name, or a value computed from several, and may act on it. So replicas add up their
counts where a step asks for a result: once for all metrics, and again only if one has counted since. Keras' own steps
ask for all results at their end, where the results follow from sums that travel anyway.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import traced_uses
from tfdist.errors import ConfigError
from tfdist.gradients.reduction import replica_sums
from tfdist.training.replica import across, current_step, states
from tfdist.training.replica.judging import Rules


def _adapt_results(model: keras.Model) -> None:
    """Let a step define the result of a metric, see `Step.result_of`."""

    def result(metric: keras.Metric) -> Any:
        current = current_step.current()
        if current is None or current.result_of is None:
            return metric_weights.own_result(metric)
        return current.result_of(metric)

    for metric in keras_trainer.metrics(model):
        metric_weights.override_result(metric, result)


def no_sums(model: keras.Model, rules: Rules) -> set[int]:
    """Return the identities of metrics' variables whose values over parts of a batch do not add up."""
    numbered = enumerate(keras_trainer.metrics(model))
    found = [metric for number, metric in numbered if rules.values.get(("metric", number)) in ("whole", "neither")]
    return {id(variable) for metric in found for variable in metric.variables}


class Totals:
    """The counts of a model's metrics over all replicas, at some moment of a step."""

    def __init__(
        self, model: keras.Model, before: list[tuple[keras.Variable, tf.Tensor]], current: current_step.Step
    ) -> None:
        self._model = model
        self._before = {id(variable): value for variable, value in before}
        self._current = current
        self._sums: list[tf.Tensor] = []
        self._moment: Any = None
        # the first replica has what one device has, as every replica has counted all examples
        self._of_whole = no_sums(model, current.rules)

    @property
    def variables(self) -> list[keras.Variable]:
        """The variables of the model's metrics; some may have been made in this step."""
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def known(self) -> list[tf.Tensor] | None:
        """Return the sums over all replicas, if nothing was counted since they were taken."""
        moment = traced_uses.assignments(self.variables)
        return self._sums if moment is not None and moment == self._moment else None

    def parts(self) -> list[tf.Tensor]:
        """Return this replica's contribution to each variable, by its declared aggregation."""
        return [self._part(variable) for variable in self.variables]

    def result(self, metric: keras.Metric) -> Any:
        """Return the metric over all replicas; in a condition, where replicas cannot meet, over this replica."""
        if traced_uses.in_condition():
            return metric_weights.own_result(metric)
        sums = self.known()
        if sums is None:
            parts = self.parts()
            what = f"the result of the metric {metric.name!r}"
            sums = self._sums = self._current.sum_in_the_middle(parts, what=what) if parts else []
            self._moment = traced_uses.assignments(self.variables)
        return self.over(sums, lambda: metric_weights.own_result(metric))

    def restore(self) -> None:
        """Let a replica without examples keep its former value where that is not summed."""
        for variable in self.variables:
            if id(variable) in self._before and variable.aggregation != "sum" and id(variable) not in self._of_whole:
                variable.assign(tf.where(self._current.rows > 0, variable.value, self._before[id(variable)]))

    def over(self, sums: list[tf.Tensor], ask: Callable[[], Any]) -> Any:
        """Return the result of ``ask`` while the variables have these values, also of a variable that is a result."""
        values = list(zip(self.variables, sums, strict=False))
        with self._current.own_results(), keras.StatelessScope(state_mapping=values):
            return tf.nest.map_structure(lambda one: one.value if isinstance(one, keras.Variable) else one, ask())

    def _part(self, variable: keras.Variable) -> tf.Tensor:
        value = tf.convert_to_tensor(variable.value)
        if id(variable) in self._of_whole:
            return value if tf_strategies.index_here() == 0 else tf.zeros_like(value)
        if id(variable) in self._before:  # a replica without examples has counted a copy of one
            value = tf.where(self._current.rows > 0, value, self._before[id(variable)])
        if variable.aggregation == "sum":
            return value
        if variable.aggregation == "mean":
            return value / tf.cast(tf_strategies.replicas_here(), value.dtype)
        return value if tf_strategies.index_here() == 0 else tf.zeros_like(value)


def require_scope(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Raise if a metric was made outside the strategy's scope: replicas would share its variables."""
    for metric in reversed(keras_trainer.metrics(model)):  # a container comes before its contents
        if not all(tf_strategies.created_under(variable.value, strategy) for variable in metric.variables):
            raise ConfigError(
                f"the metric {metric.name!r} was created outside the scope of {type(strategy).__name__}; it must be "
                "created inside, so that it exists on every replica. Create metrics and call model.compile() under "
                "`with strategy.scope():`.",
                name=metric.name,
            )


def adapt(model: keras.Model) -> None:
    """Let a lone number given to a mean or a sum stand for a whole batch, weighted by the replica's share of it.

    A metric of the user's class counts as it does; it gets the rows of all replicas where its state is no sum over
    examples.
    """
    _adapt_results(model)
    for number, metric in enumerate(keras_trainer.metrics(model)):
        metric_weights.weigh_lone_numbers(metric, _weighed)
        metric_weights.override_update(metric, functools.partial(_updated, number))
    if (tracker := keras_trainer.loss_tracker(model)) is not None:
        metric_weights.scale_weights(tracker, _share_by_whole)


def _weighed(
    metric: keras.Metric,
    value: tf.Tensor,
    *,
    compute: Callable[..., Any] | None = None,
    given: Any = None,
    error: ValueError | None = None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return values of this replica's examples and their weight in the mean over all; None outside of a step.

    A number that is a sum over examples is divided by this replica's share of them. Rows count for themselves, unless
    they compare examples.
    """
    current = current_step.current()
    if error is not None and (current is None or current.next_rule("number") != "whole"):
        raise error
    if current is None:
        return value, None
    can_gather = compute is not None and across.can_gather(given)
    has_rows = value.shape.rank != 0
    number = tf.reduce_sum(tf.cast(value, tf.float32)) if has_rows else value
    rule = current.rule_of("number", number, name=metric.name, can_gather=can_gather)
    if rule == "whole" and compute is not None and can_gather:
        value = compute(*across.gathered(given, current, what=f"the metric {metric.name!r}"))
        value = tf.identity(value)  # without a mask, which Keras would apply to the weights
        if has_rows:  # Keras would count rows with one weight as one
            return value, tf.fill(tf.shape(value)[:1], current.share)
    elif has_rows:
        return value, None
    if rule == "sum":
        value = tf.math.divide_no_nan(value, tf.cast(current.share, value.dtype))
    return value, current.share


def _share_by_whole() -> tf.Tensor | None:
    """Return this replica's share, if Keras weights its loss by rows that all replicas have."""
    current = current_step.current()
    return current.share if current is not None and current.counts_by_whole else None


def _updated(number: int, metric: keras.Metric, *values: Any, **named: Any) -> None:
    """Update a metric of the user's; `Totals` has its state."""
    current = current_step.current()
    if current is not None and current.noted is not None:
        current.noted("metric", number, metric.name, tf.zeros([]), across.can_gather((values, named)))
    if current is not None and current.rules.values.get(("metric", number)) == "whole":
        values, named = across.gathered((values, named), current, what=f"the metric {metric.name!r}")
    metric_weights.own_update(metric, *values, **named)


def snapshot(model: keras.Model) -> list[tuple[keras.Variable, tf.Tensor]]:
    return [(v, tf.identity(v.value)) for metric in model.metrics for v in metric.variables]


def synchronise(
    model: keras.Model,
    logs: Any,
    totals: Totals,
    current: current_step.Step,
    *,
    before: Mapping[int, tf.Tensor],
    training: bool,
) -> Any:
    """Return the logs of a step over all replicas; layers' states become equal in the same reduction."""
    variables = totals.variables
    touched = {m.name for m in model.metrics if not m.variables or traced_uses.assigned(m.variables)}
    moved = states.Moved(model, current, before) if training else None
    parts = [] if moved is None else moved.parts
    own, structure = scalars(logs)
    known = totals.known()
    totals.restore()
    sent = ([] if known is not None else totals.parts()) + parts
    shared = [_shared(value, current) for value in own]
    sent += [value for value in shared if value is not None]
    sums = (known or []) + (current.all_reduce(sent) if sent else [])
    if moved is not None:
        moved.assign(sums[len(variables) : len(variables) + len(parts)])
    gather_in_one_place(variables, sums)
    arrived = iter(sums[len(variables) + len(parts) :])
    combined = [value if one is None else next(arrived) for value, one in zip(own, shared, strict=True)]
    found = _metric_logs(model, logs, touched, totals, sums)
    if found is None and current.replaced_results:
        raise current_step.not_logged_as_itself(current.replaced_results[0])
    keras_trainer.note_logs(model, are_metrics=found is not None)
    return structure(combined) if found is None else found


def _shared(value: tf.Tensor, current: current_step.Step) -> tf.Tensor | None:
    """Return what a replica adds to a number in the logs; None for a whole number that each replica has."""
    if value.dtype.is_floating:
        return replica_sums.weighted(value, current.weight_of("log", value))
    return value * tf.cast(current.present, value.dtype) if current.is_sum("count", value) else None


def gather_in_one_place(variables: list[keras.Variable], sums: list[tf.Tensor]) -> None:
    """Let the first of all replicas hold the sums, and the others nothing.

    So a metric's state is that of one replica, whatever their number: it can be saved, and resumed with another number.
    The sums are those of one device, too, which adds each batch to its state.
    """
    for variable, total in zip(variables, sums, strict=False):
        if variable.aggregation == "sum":
            variable.assign(total if tf_strategies.index_here() == 0 else tf.zeros_like(total))


def _metric_logs(
    model: keras.Model, logs: Any, touched: set[str], totals: Totals, sums: list[Any]
) -> dict[str, Any] | None:
    """Return the model's metrics evaluated on summed variables, if the logs are these.

    Logs that only share a name with a metric that the step has not touched do not count.
    """
    if not isinstance(logs, dict):
        return None
    found = totals.over(sums, lambda: keras_trainer.metrics_result(model))
    return found if are_metrics(model, logs, found, touched) else None


def are_metrics(model: keras.Model, logs: Any, results: dict[str, Any], touched: set[str]) -> bool:
    """True if a step's logs are exactly the model's metrics."""
    untouched = {metric.name for metric in model.metrics} - touched
    return isinstance(logs, dict) and set(results) == set(logs) and not untouched & set(logs)


def named_scalars(logs: Any) -> list[tuple[str, tf.Tensor]]:
    """Return the scalar numbers in the logs with their names, in the order of `scalars`."""
    pairs = [(name, tf.convert_to_tensor(value)) for name, value in _with_names(logs) if value is not None]
    return [(name, value) for name, value in pairs if _is_number(value)]


def _is_number(value: tf.Tensor) -> bool:
    return bool(value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer))


def _with_names(logs: Any, name: str = "") -> list[tuple[str, Any]]:
    if not isinstance(logs, dict):
        return [(name, leaf) for leaf in tf.nest.flatten(logs)]
    return [pair for key in sorted(logs) for pair in _with_names(logs[key], f"{name}/{key}" if name else str(key))]


def scalars(logs: Any) -> tuple[list[tf.Tensor], Callable[[list[Any]], Any]]:
    """Return the scalar numbers in the logs, and a function that puts other values in their place."""
    flat = tf.nest.flatten(logs)
    tensors = [None if value is None else tf.convert_to_tensor(value) for value in flat]
    index = [i for i, v in enumerate(tensors) if v is not None and _is_number(v)]

    def put(values: list[Any]) -> Any:
        leaves: list[Any] = list(tensors)
        for i, value in zip(index, values, strict=True):
            leaves[i] = value
        return tf.nest.pack_sequence_as(logs, leaves)

    return [tensors[i] for i in index], put
