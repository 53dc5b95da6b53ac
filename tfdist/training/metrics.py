"""Metrics in a tfdist scope: batch logs and epoch logs over the examples of all replicas."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat import keras_metrics, keras_model, tf_strategies
from tfdist.errors import ConfigError
from tfdist.training import layers, reduction, step


def require_scope(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Raise if a metric was made outside the strategy's scope, where the replicas would share its variables.

    Raises:
        ConfigError: it was; so was the tracker of the loss if `compile` was called outside.
    """
    for metric in reversed(keras_model.metrics(model)):  # a container stands before what it contains
        if not all(tf_strategies.created_under(variable.value, strategy) for variable in metric.variables):
            raise ConfigError(
                f"the metric {metric.name!r} was created outside the scope of {type(strategy).__name__}; it must be "
                "created inside, so that it exists on every replica. Create metrics and call model.compile() under "
                "`with strategy.scope():`."
            )


def adapt(model: keras.Model) -> None:
    """Let a lone number given to a mean or a sum stand for a whole batch, and weigh as the replica's share of it.

    A metric of a class of the user's own is left as it is: it must be fed with values per example, or sums over them.
    """
    for metric in keras_model.metrics(model):
        keras_metrics.weigh_lone_numbers(metric, _share)


def _share() -> tf.Tensor | None:
    current = step.current()
    return None if current is None else current.share


def snapshot(model: keras.Model) -> list[tuple[keras.Variable, tf.Tensor]]:
    """Return the variables of the model's metrics with their present values on this replica."""
    return [(v, tf.identity(v.value)) for metric in model.metrics for v in metric.variables]


def synchronise(model: keras.Model, logs: Any, before: list[Any], current: step.Step, *, training: bool) -> Any:
    """Return the logs of a step over all replicas, and make the layers' states equal: one reduction for both.

    Args:
        model: the model whose step it was.
        logs: what `train_step` or `test_step` returned on this replica.
        before: the metrics' `snapshot` from before the step.
        current: the step, which has just ended.
        training: whether layers may have moved their states.
    Returns:
        The model's metrics over all examples so far, where ``logs`` holds exactly these; else ``logs`` with every float
        scalar averaged over the examples of the step.
    """
    touched = {m.name for m in model.metrics if not m.variables or tf_strategies.assigned(m.variables)}
    for variable, value in before:  # a replica without examples has counted a copy
        variable.assign(tf.where(current.rows > 0, variable.value, value))
    variables = [v for metric in model.metrics for v in metric.variables]
    states, parts = layers.averaged_states(model, current) if training else ([], [])
    own, structure = scalars(logs)
    sent = [_part(v) for v in variables] + parts
    sent += [reduction.weighted(value, current.share) for value in own]
    sums = reduction.sum_over_replicas(sent) if sent else []
    for variable, value in zip(states, sums[len(variables) :], strict=False):
        variable.assign(value)
    _gather_in_one_place(variables, sums)
    means = sums[len(variables) + len(parts) :]
    results = _metric_logs(model, logs, touched, variables, sums)
    keras_model.note_logs(model, are_metrics=results is not None)
    return structure(means) if results is None else results


def _gather_in_one_place(variables: list[keras.Variable], sums: list[tf.Tensor]) -> None:
    """Let the first replica of all hold what is summed, and the others nothing.

    So the state of a metric is that of one replica, whatever their number: it can be saved, and gone on from with
    another number. The sums are those of one device, too, which adds each batch to what there is.
    """
    for variable, total in zip(variables, sums, strict=False):
        if variable.aggregation == "sum":
            variable.assign(total if tf_strategies.replica_index() == 0 else tf.zeros_like(total))


def _part(variable: keras.Variable) -> tf.Tensor:
    """Return what this replica adds to a metric's variable over all replicas, by its declared aggregation."""
    value = tf.convert_to_tensor(variable.value)
    if variable.aggregation == "sum":
        return value
    if variable.aggregation == "mean":
        return value / tf.cast(tf_strategies.replica_count(tf.distribute.get_strategy()), value.dtype)
    return value if tf_strategies.replica_index() == 0 else tf.zeros_like(value)


def _metric_logs(
    model: keras.Model, logs: Any, touched: set[str], variables: list[Any], sums: list[Any]
) -> dict[str, Any] | None:
    """Return the metrics of the model evaluated on summed variables, if that is what the logs are.

    They are not where they only share a name with a metric that the step has not touched.
    """
    if not isinstance(logs, dict):
        return None
    with keras.StatelessScope(state_mapping=list(zip(variables, sums, strict=False))):
        results = keras_model.metrics_result(model)
    return results if are_metrics(model, logs, results, touched) else None


def are_metrics(model: keras.Model, logs: Any, results: dict[str, Any], touched: set[str]) -> bool:
    """Return whether a step's logs are exactly the model's metrics.

    Args:
        model: whose step it was.
        logs: what the step returned.
        results: the metrics as `fit` logs them.
        touched: names of the metrics that the step has updated; others may merely share a name with something logged.
    """
    untouched = {metric.name for metric in model.metrics} - touched
    return isinstance(logs, dict) and set(results) == set(logs) and not untouched & set(logs)


def scalars(logs: Any, *, keep_others: bool = True) -> tuple[list[tf.Tensor], Callable[[list[Any]], Any]]:
    """Return the float scalars in the logs, and a function that puts other values in their place.

    Args:
        logs: what a step returned.
        keep_others: whether what is no float scalar stays in the logs; else it becomes None.
    """
    flat = tf.nest.flatten(logs)
    tensors = [None if value is None else tf.convert_to_tensor(value) for value in flat]
    index = [i for i, v in enumerate(tensors) if v is not None and v.shape.rank == 0 and v.dtype.is_floating]

    def put(values: list[Any]) -> Any:
        leaves: list[Any] = list(tensors) if keep_others else [None] * len(tensors)
        for i, value in zip(index, values, strict=True):
            leaves[i] = value
        return tf.nest.pack_sequence_as(logs, leaves)

    return [tensors[i] for i in index], put
