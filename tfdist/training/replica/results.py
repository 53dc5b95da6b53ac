"""Results of a metric in the middle of a user's step, over the examples of all replicas.

A step may log a metric under any name, or log what it has made of several, and may act on it. So the replicas add up
what they have counted where a step asks for a result: once for all metrics, and again only if one has counted since.
Keras' own steps ask for all results at their end, where they are made of the sums that travel then.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer as keras_model
from tfdist.compat.keras import metric_weights as keras_metrics
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import traced_uses
from tfdist.training.replica import current_step
from tfdist.training.replica.judging import Rules


def adapt(model: keras.Model) -> None:
    """Let a step say what the result of a metric is, see `Step.result_of`."""

    def result(metric: keras.Metric) -> Any:
        current = current_step.current()
        if current is None or current.result_of is None:
            return keras_metrics.own_result(metric)
        return current.result_of(metric)

    for metric in keras_model.metrics(model):
        keras_metrics.override_result(metric, result)


def no_sums(model: keras.Model, rules: Rules) -> set[int]:
    """Return the identities of those variables of metrics whose values over parts of a batch do not add up."""
    numbered = enumerate(keras_model.metrics(model))
    found = [metric for number, metric in numbered if rules.values.get(("metric", number)) in ("whole", "neither")]
    return {id(variable) for metric in found for variable in metric.variables}


class Totals:
    """What the metrics of a model have counted over all replicas, at some moment of a step."""

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
        """The variables of the model's metrics, of which some may have been made in this step."""
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def known(self) -> list[tf.Tensor] | None:
        """Return the sums of the variables over all replicas if nothing was counted since they were taken."""
        moment = traced_uses.assignments(self.variables)
        return self._sums if moment is not None and moment == self._moment else None

    def parts(self) -> list[tf.Tensor]:
        """Return what this replica adds to each variable over all replicas, by its declared aggregation."""
        return [self._part(variable) for variable in self.variables]

    def result(self, metric: keras.Metric) -> Any:
        """Return the metric over all replicas; in a condition, into which others may not come, over this one's."""
        if traced_uses.in_condition():
            return keras_metrics.own_result(metric)
        sums = self.known()
        if sums is None:
            parts = self.parts()
            what = f"the result of the metric {metric.name!r}"
            sums = self._sums = self._current.sum_in_the_middle(parts, what=what) if parts else []
            self._moment = traced_uses.assignments(self.variables)
        return self.over(sums, lambda: keras_metrics.own_result(metric))

    def restore(self) -> None:
        """Let a replica without examples hold what it held before, where that is not summed up."""
        for variable in self.variables:
            if id(variable) in self._before and variable.aggregation != "sum":
                variable.assign(tf.where(self._current.rows > 0, variable.value, self._before[id(variable)]))

    def over(self, sums: list[tf.Tensor], ask: Callable[[], Any]) -> Any:
        """Return what ``ask`` says where the variables have these values."""
        asked, self._current.result_of = self._current.result_of, None  # a metric may ask others that it is made of
        try:
            with keras.StatelessScope(state_mapping=list(zip(self.variables, sums, strict=False))):
                return ask()
        finally:
            self._current.result_of = asked

    def _part(self, variable: keras.Variable) -> tf.Tensor:
        value = tf.convert_to_tensor(variable.value)
        if id(variable) in self._of_whole:
            return value if tf_strategies.replica_index() == 0 else tf.zeros_like(value)
        if id(variable) in self._before:  # a replica without examples has counted a copy of one
            value = tf.where(self._current.rows > 0, value, self._before[id(variable)])
        if variable.aggregation == "sum":
            return value
        if variable.aggregation == "mean":
            return value / tf.cast(tf_strategies.replica_count(tf.distribute.get_strategy()), value.dtype)
        return value if tf_strategies.replica_index() == 0 else tf.zeros_like(value)
