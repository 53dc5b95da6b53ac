"""Gives a single number in Keras' means and sums the weight of a replica's share.

Private names, read in Keras 3.15.1 (`keras/src/metrics/reduction_metrics.py`): `MeanMetricWrapper._fn` and
`_fn_kwargs`; `get_keras_mask` and `apply_mask` as `MeanMetricWrapper` uses them.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.metrics import Mean, MeanMetricWrapper, Sum
from keras.src.backend import get_keras_mask
from keras.src.losses.loss import apply_mask

from tfdist.compat import planted
from tfdist.compat.keras.loss import compares_examples, may_be_rows

#: takes a metric and its value, a lone number or rows of a user's function, with the keywords ``compute``, by which it
#: was made of ``given``, and ``error``, where it was not, as `compute` needs more rows; returns values and their weight
Weigh = Callable[..., tuple[tf.Tensor, tf.Tensor | None]]


def weigh_lone_numbers(metric: keras.Metric, weigh: Weigh) -> None:
    """Let one metric object weigh a scalar without a weight as ``weigh`` says; per-example values stay as they are."""
    updates: dict[Any, Callable[..., None]] = {
        Mean.update_state: _update_mean,
        MeanMetricWrapper.update_state: _update_wrapper,
        Sum.update_state: _update_sum,
    }
    update = updates.get(type(metric).update_state)
    if update is not None:
        weighing = functools.partial(update, metric, weigh)
        vars(metric).setdefault("update_state", planted.in_place_of(type(metric).update_state, weighing))


def ignore_weights(metric: keras.Metric) -> None:
    """Let a metric ignore weights once: Keras weighs an output's loss only if its rows are known beforehand."""
    own, state = vars(metric), planted.of_metric(metric)
    if not state.ignores_weights:
        state.ignores_weights = True
        update = own.get("update_state", functools.partial(type(metric).update_state, metric))

        def unweighted(values: Any, sample_weight: Any = None) -> None:
            update(values)

        own["update_state"] = planted.in_place_of(type(metric).update_state, unweighted)


def scale_weights(metric: keras.Metric, factor: Callable[[], tf.Tensor | None]) -> None:
    """Let one mean multiply each weight that it is given by ``factor()``, unless that is None; once."""
    own, state = vars(metric), planted.of_metric(metric)
    if not state.scales_weights:
        state.scales_weights = True
        update = own.get("update_state", functools.partial(type(metric).update_state, metric))

        def scaled(values: Any, sample_weight: Any = None) -> None:
            by = None if sample_weight is None else factor()
            weight = sample_weight if by is None else tf.cast(sample_weight, by.dtype) * by
            update(values, sample_weight=weight)

        own["update_state"] = planted.in_place_of(type(metric).update_state, scaled)


def override_result(metric: keras.Metric, result: Callable[[keras.Metric], Any]) -> None:
    """Let one metric object give ``result(metric)`` as its result, once."""
    vars(metric).setdefault("result", planted.in_place_of(type(metric).result, functools.partial(result, metric)))


def is_unknown(metric: keras.Metric) -> bool:
    """Return whether nothing says that a metric counts each example by itself, with equal weight.

    It may count by code of the user's: its `update_state`, or a function of whose values it is the mean. Functions and
    losses of Keras may compare examples, and a loss may add them up.
    """
    if counts_by_itself(metric):
        return True
    function = getattr(metric, "_fn", None)
    while isinstance(function, functools.partial):
        function = function.func
    if function is None:
        return False
    is_of_keras = str(getattr(function, "__module__", "")).startswith("keras.src.")
    over_rows = may_be_rows((getattr(metric, "_fn_kwargs", None) or {}).get("axis"))
    return not is_of_keras or over_rows or isinstance(function, keras.Loss) or compares_examples(function)


def counts_by_itself(metric: keras.Metric) -> bool:
    """Return whether a metric's `update_state` is none of Keras' own."""
    return not type(metric).update_state.__module__.startswith("keras.src.")


def override_update(metric: keras.Metric, update: Callable[..., None]) -> None:
    """Let one metric object of a class of the user's count by ``update(metric, *values)``, once."""
    if counts_by_itself(metric):
        vars(metric).setdefault("update_state", functools.partial(update, metric))


def own_update(metric: keras.Metric, *values: Any, **named: Any) -> None:
    type(metric).update_state(metric, *values, **named)


def override_function(metric: MeanMetricWrapper, function: Callable[[Any, Any, Any], Any]) -> None:
    """Let one metric object take the mean of ``function(its own function, y_true, y_pred)``, once."""
    if not isinstance(metric._fn, functools.partial):
        metric._fn = functools.partial(function, metric._fn)


def own_result(metric: keras.Metric) -> Any:
    return type(metric).result(metric)


def _update_mean(metric: Mean, weigh: Weigh, values: Any, sample_weight: Any = None) -> None:
    values = tf.convert_to_tensor(values)
    if values.shape.rank == 0 and sample_weight is None:
        values, sample_weight = weigh(metric, values)
    Mean.update_state(metric, values, sample_weight=sample_weight)


def _update_wrapper(metric: Any, weigh: Weigh, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
    mask = get_keras_mask(y_pred)
    compute = functools.partial(metric._fn, **metric._fn_kwargs)
    error: ValueError | None = None
    try:
        values = tf.convert_to_tensor(compute(y_true, y_pred))
    except ValueError as raised:  # shapes tell that there are too few rows, as for the k largest errors
        if sample_weight is not None or mask is not None:
            raise
        values, error = tf.zeros([], metric.dtype), raised
    sample_weight = apply_mask(sample_weight, mask, dtype=metric.dtype, reduction="sum")
    if values.shape.rank != 0 and is_unknown(metric):  # which may compare rows
        how: dict[str, Any] = {"compute": compute, "given": (y_true, y_pred)} if sample_weight is None else {}
        values, weight = weigh(metric, values, **how)
        sample_weight = sample_weight if weight is None else weight
    weigh_number = functools.partial(weigh, compute=compute, given=(y_true, y_pred), error=error)
    _update_mean(metric, weigh_number, values, sample_weight)


def _update_sum(metric: Sum, weigh: Weigh, values: Any, sample_weight: Any = None) -> None:
    values = tf.convert_to_tensor(values)
    if values.shape.rank == 0 and sample_weight is None:
        values, weight = weigh(metric, values)
        values *= tf.cast(1 if weight is None else weight, values.dtype)
    Sum.update_state(metric, values, sample_weight=sample_weight)
