"""Compiled losses in a tfdist scope: divided by what all replicas saw, not by what one did.

With S_r the sum of a replica's weighted values, D_r what it would divide by (elements, valid mask entries, weights)
and p_r its share of the examples, the loss of the global batch is L = sum_r S_r / sum_r D_r. Replicas are summed with
weights p_r (see `step`), so a replica returns L_r = S_r / (p_r * sum D_r). For an unmasked mean D_r is proportional
to the number of examples, L_r is the replica's own mean, and nothing needs to be asked of the other replicas.

A function of the user's own that returns one number has reduced already. Whether that is a mean or a sum over examples
is found out by trying (`probe`); what is neither is taken for a mean.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import loss as keras_loss
from tfdist.compat.keras import model as keras_model
from tfdist.training.replica import step


def adapt(model: keras.Model) -> None:
    """Let the losses given to `compile`, and a `compute_loss` of the user's, reduce over all replicas."""
    container = keras_model.compiled_losses(model)
    if container is not None:
        keras_loss.replace_compiled(container, lambda loss: loss if isinstance(loss, GlobalLoss) else GlobalLoss(loss))
    keras_model.override_compute_loss(model, _computed)


def _computed(value: Any, y_pred: Any) -> Any:
    current = step.current()
    return value if current is None else _reduced(tf.convert_to_tensor(value), "compute_loss", y_pred, current)


def _reduced(value: tf.Tensor, name: str, y_pred: Any, current: step.Step) -> tf.Tensor:
    """Return what code of the user's has reduced to one number, so that replicas add up to one device's.

    Where a step is tried, a mean takes its place: what is found out besides is how the rest of the step reduces.
    """
    if value.shape.rank != 0 or not value.dtype.is_floating:
        return value
    is_sum = current.is_sum("loss", value, name=name)
    if current.noted is not None:
        outputs = [tf.reduce_sum(tf.cast(leaf, value.dtype)) for leaf in tf.nest.flatten(y_pred) if leaf is not None]
        return tf.add_n(outputs) / tf.cast(current.rows, value.dtype) if outputs else value
    return tf.math.divide_no_nan(value, tf.cast(current.share, value.dtype)) if is_sum else value


class GlobalLoss:
    """A loss function that, in a step, reduces over the examples of all replicas; elsewhere it is the one it wraps."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    @property
    def tfdist_wraps(self) -> Any:
        """The loss function that it wraps."""
        return self._loss

    @property
    def _name(self) -> str:
        return str(getattr(self._loss, "name", type(self._loss).__name__))

    def __getattr__(self, name: str) -> Any:  # name, reduction, dtype: Keras reads them
        if name == "_loss":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loss, name)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        current = step.current()
        if current is None:
            return self._loss(y_true, y_pred, sample_weight)
        if not keras_loss.reduces_by_itself(self._loss):
            value = tf.convert_to_tensor(self._loss(y_true, y_pred, sample_weight))
            return _reduced(value, self._name, y_pred, current)
        parts = keras_loss.parts(self._loss, y_true, y_pred, sample_weight)
        if parts.values.shape.rank == 0:
            return _reduced(parts.values, self._name, y_pred, current)
        if current.noted is not None:  # what is found out is how the rest of the step reduces
            return tf.reduce_sum(parts.values) / tf.cast(current.rows, parts.values.dtype)
        return _reduce(parts, self._loss, self._name, current)


def _reduce(parts: keras_loss.Parts, loss: Any, name: str, current: step.Step) -> tf.Tensor:
    values, reduction_name = parts.values, loss.reduction
    share = tf.cast(current.share, values.dtype)
    if reduction_name in (None, "none"):
        # Keras differentiates the sum of what is left, so the gradient is a sum over replicas while the values stay.
        scaled = tf.math.divide_no_nan(values, share)
        return scaled + tf.stop_gradient(values - scaled)
    total = tf.reduce_sum(values)
    if reduction_name == "sum":
        return tf.math.divide_no_nan(total, share)
    elements, mask_size, valid = parts.counts

    def over_replicas(*counts: Any) -> list[tf.Tensor]:
        present = [count * tf.cast(current.present, count.dtype) for count in counts]
        return current.sum_in_the_middle(present, what=f"the loss {name!r} (a mask, or a mean with sample weights)")

    if reduction_name == "mean_with_sample_weight" and parts.weight_sum is not None:
        (divisor,) = over_replicas(parts.weight_sum)
    elif mask_size is not None:
        elements, mask_size, valid = over_replicas(elements, mask_size, valid)
        # Keras scales the valid entries by size/valid of the mask and divides by the elements, which the mask may
        # broadcast to.
        divisor = tf.math.divide_no_nan(elements * valid, mask_size)
    elif all(dim is not None for dim in values.shape[1:]) and (
        keras_loss.keeps_examples(loss) or current.has_row_of_each(values)
    ):
        return tf.math.divide_no_nan(total, elements)
    else:
        (divisor,) = over_replicas(elements)
    return tf.math.divide_no_nan(total, share * divisor)
