"""Keras' means and sums: giving a lone number the weight of a replica's share.

Private names, read in Keras 3.15.1 (`keras/src/metrics/reduction_metrics.py`): `MeanMetricWrapper._fn` and
`_fn_kwargs`, the function that `compile(metrics=[function])` was given; `get_keras_mask`, `apply_mask` as
`MeanMetricWrapper` uses them.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask
from keras.src.losses.loss import apply_mask
from keras.src.metrics.reduction_metrics import Mean, MeanMetricWrapper, Sum

# returns the replica's share of the examples, or None outside a step
Share = Callable[[], tf.Tensor | None]


def weigh_lone_numbers(metric: keras.Metric, share: Share) -> None:
    """Let one metric object weigh a scalar without a weight by ``share()``; per-example values stay as they are."""
    updates: dict[Any, Callable[..., None]] = {
        Mean.update_state: _update_mean,
        MeanMetricWrapper.update_state: _update_wrapper,
        Sum.update_state: _update_sum,
    }
    update = updates.get(type(metric).update_state)
    if update is not None:
        vars(metric).setdefault("update_state", functools.partial(update, metric, share))


def _update_mean(metric: Mean, share: Share, values: Any, sample_weight: Any = None) -> None:
    values = tf.convert_to_tensor(values)
    if values.shape.rank == 0 and sample_weight is None:
        sample_weight = share()
    Mean.update_state(metric, values, sample_weight=sample_weight)


def _update_wrapper(metric: Any, share: Share, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
    mask = get_keras_mask(y_pred)
    values = metric._fn(y_true, y_pred, **metric._fn_kwargs)
    sample_weight = apply_mask(sample_weight, mask, dtype=metric.dtype, reduction="sum")
    _update_mean(metric, share, values, sample_weight)


def _update_sum(metric: Sum, share: Share, values: Any, sample_weight: Any = None) -> None:
    values = tf.convert_to_tensor(values)
    weight = share()
    if values.shape.rank == 0 and sample_weight is None and weight is not None:
        values *= tf.cast(weight, values.dtype)
    Sum.update_state(metric, values, sample_weight=sample_weight)
