"""Metrics in a tfdist scope: batch logs and epoch logs over the examples of all replicas."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat import keras_model
from tfdist.training import layers, reduction, step


def adapt(model: keras.Model) -> None:
    """Let trackers of the loss weigh a replica's value by its share of the examples."""
    for metric in keras_model.metrics(model):
        if type(metric) is keras.metrics.Mean:
            vars(metric).setdefault("update_state", functools.partial(_update_mean, metric))


def _update_mean(metric: keras.metrics.Mean, values: Any, sample_weight: Any = None) -> None:
    """Update as Keras does; in a step a lone number stands for a batch, and weighs as the replica's share of it."""
    current = step.current()
    if current is not None:
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0 and sample_weight is None:
            sample_weight = current.share * current.replicas
    type(metric).update_state(metric, values, sample_weight=sample_weight)


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
    for variable, value in before:  # a replica without examples has counted a copy
        variable.assign(tf.where(current.rows > 0, variable.value, value))
    variables = [v for metric in model.metrics for v in metric.variables]
    states, parts = layers.averaged_states(model, current) if training else ([], [])
    own, structure = _scalars(logs)
    sent = [tf.convert_to_tensor(v.value) for v in variables] + parts
    sent += [reduction.weighted(value, current.share) for value in own]
    sums = reduction.sum_over_replicas(sent) if sent else []
    for variable, value in zip(states, sums[len(variables) :], strict=False):
        variable.assign(value)
    means = sums[len(variables) + len(parts) :]
    return _metric_logs(model, logs, variables, sums) or structure(means)


def _metric_logs(model: keras.Model, logs: Any, variables: list[Any], sums: list[Any]) -> dict[str, Any] | None:
    """Return the metrics of the model evaluated on summed variables, if that is what the logs are."""
    if not isinstance(logs, dict):
        return None
    with keras.StatelessScope(state_mapping=list(zip(variables, sums, strict=False))):
        results = keras_model.metrics_result(model)
    return results if set(results) == set(logs) else None


def _scalars(logs: Any) -> tuple[list[tf.Tensor], Any]:
    """Return the float scalars in the logs and a function that puts others in their place."""
    flat = tf.nest.flatten(logs)
    tensors = [tf.convert_to_tensor(value) for value in flat if value is not None]
    index = [i for i, value in enumerate(tensors) if value.shape.rank == 0 and value.dtype.is_floating]

    def put(values: list[tf.Tensor]) -> Any:
        for i, value in zip(index, values, strict=True):
            tensors[i] = value
        return tf.nest.pack_sequence_as(logs, tensors)

    return [tensors[i] for i in index], put
