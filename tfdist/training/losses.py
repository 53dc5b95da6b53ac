"""Compiled losses in a tfdist scope: divided by what all replicas saw, not by what one did.

With S_r the sum of a replica's weighted values, D_r what it would divide by (elements, valid mask entries, weights)
and p_r its share of the examples, the loss of the global batch is L = sum_r S_r / sum_r D_r. Replicas are summed with
weights p_r (see `step`), so a replica returns L_r = S_r / (p_r * sum D_r). For an unmasked mean D_r is proportional
to the number of examples, L_r is the replica's own mean, and nothing needs to be asked of the other replicas.

A function of the user's own that returns one number has reduced already, and is taken for a mean over examples: a sum
cannot be told from it. A loss that sums is a `keras.losses.Loss` with ``reduction="sum"``.
"""

from typing import Any

import tensorflow as tf

from tfdist.compat import keras_loss
from tfdist.training import reduction, step


def adapt(container: Any) -> None:
    """Let the losses given to `compile` reduce over all replicas."""
    keras_loss.replace_compiled(container, lambda loss: loss if isinstance(loss, GlobalLoss) else GlobalLoss(loss))


class GlobalLoss:
    """A loss function that, in a step, reduces over the examples of all replicas; elsewhere it is the one it wraps."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def __getattr__(self, name: str) -> Any:  # name, reduction, dtype: Keras reads them
        if name == "_loss":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loss, name)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        current = step.current()
        if current is None or not keras_loss.reduces_by_itself(self._loss):
            return self._loss(y_true, y_pred, sample_weight)
        parts = keras_loss.parts(self._loss, y_true, y_pred, sample_weight)
        if parts.values.shape.rank == 0:  # the function has reduced already: a mean over this replica's examples
            return parts.values
        return _reduce(parts, self._loss.reduction, current, keras_loss.keeps_examples(self._loss))


def _reduce(parts: keras_loss.Parts, reduction_name: str | None, current: step.Step, keeps_examples: bool) -> tf.Tensor:
    values = parts.values
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
        return reduction.sum_over_replicas([count * tf.cast(current.present, count.dtype) for count in counts])

    if reduction_name == "mean_with_sample_weight" and parts.weight_sum is not None:
        (divisor,) = over_replicas(parts.weight_sum)
    elif mask_size is not None:
        elements, mask_size, valid = over_replicas(elements, mask_size, valid)
        # Keras scales the valid entries by size/valid of the mask and divides by the elements, which the mask may
        # broadcast to.
        divisor = tf.math.divide_no_nan(elements * valid, mask_size)
    elif keeps_examples and all(dim is not None for dim in values.shape[1:]):
        return tf.math.divide_no_nan(total, elements)
    else:
        (divisor,) = over_replicas(elements)
    return tf.math.divide_no_nan(total, share * divisor)
