"""Cross-entropy and accuracy from logits in parts, computed without gathering the logits.

With z the logits of an example, M_i the maximum of member i's part, t its target, the loss is
    M + log(sum_i exp(M_i - M) * sum_j exp(z_ij - M_i)) - z_t,    M = max_i M_i,
for which each member sends three numbers: M_i, its sum, and z_t, or 0 if the target belongs to another member. The
gradient of its part needs nothing more: softmax(z)_j, less 1 at the target.

Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
2019; there the maxima and the sums are reduced one after the other, here gathered at once.
"""

import math
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras import loss as keras_loss
from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.tensorflow.meshes.graph_rewrites import Late
from tfdist.parallel.compute.activations import Along


@dataclass(frozen=True)
class Logits:
    """This process's part of logits, shape (..., classes / members)."""

    part: tf.Tensor
    along: Along

    @property
    def _width(self) -> int:
        return int(self.part.shape[-1])

    def _own(self, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return targets counted from this member's first class, and whether they are its own."""
        own = target - self.along.place * self._width
        is_mine = (own >= 0) & (own < self._width)
        return tf.where(is_mine, own, tf.zeros_like(own)), is_mine

    def crossentropy(self, target: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Return the loss of each example, shape (...)."""
        classes = tf.constant(self._width * self.along.size, tf.int64)
        known = tf.debugging.Assert(
            tf.reduce_all((target >= 0) & (target < classes)),
            [f"a target is no class: the {self.along.label} have 0 to", classes - 1, "and targets are", target],
            summarize=8,
        )
        with tf.control_dependencies([known] if known is not None else []):
            own, is_mine = self._own(target)

        @tf.custom_gradient
        def loss(part: tf.Tensor) -> Any:
            highest = tf.reduce_max(part, axis=-1)
            # a member may have nothing but words of probability 0, and -inf less itself is no number
            beside = tf.where(highest == -math.inf, tf.zeros_like(highest), highest)
            total = tf.reduce_sum(tf.exp(part - beside[..., tf.newaxis]), axis=-1)
            at_target = tf.where(is_mine, tf.gather(part, own, axis=-1, batch_dims=own.shape.rank), 0)
            found = self.along.all(tf.stack([highest, total, at_target]))
            top = tf.reduce_max(found[:, 0], axis=0)
            scale = tf.reduce_sum(found[:, 1] * tf.exp(found[:, 0] - top), axis=0)

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                shares = tf.exp(part - top[..., tf.newaxis]) / scale[..., tf.newaxis]
                hit = tf.one_hot(tf.where(is_mine, own, -1), self._width, dtype=part.dtype)
                return upstream[..., tf.newaxis] * (shares - hit)

            return top + tf.math.log(scale) - tf.reduce_sum(found[:, 2], axis=0), gradient

        return loss(tf.cast(self.part, dtype))

    def best(self) -> tf.Tensor:
        """Return the class with the largest logit, the first of several, int64, shape (...)."""
        place = tf.argmax(self.part, axis=-1)
        highest = self.along.all(tf.reduce_max(self.part, axis=-1))
        places = self.along.all(place + self.along.place * self._width)
        return tf.gather(tf.reshape(places, [-1]), _first_largest(highest))


def _first_largest(highest: tf.Tensor) -> tf.Tensor:
    """Return the index, in the flattened tensor, of the first largest number along the first dim."""
    shape = tf.shape(highest)[1:]
    count = tf.reduce_prod(shape)
    member = tf.argmax(highest, axis=0, output_type=tf.int32)
    return member * count + tf.reshape(tf.range(count), shape)


def adapt(model: keras.Model, late: Late) -> None:
    """Make compiled losses and metrics that take logits accept parts of them."""
    container = keras_trainer.compiled_losses(model)
    for loss in [] if container is None else keras_loss.compiled(container):
        if type(loss) is keras.losses.SparseCategoricalCrossentropy and loss.ignore_class is None:
            keras_loss.override_values(loss, lambda own, y_true, y_pred: _values(late, own, y_true, y_pred))
    for metric in keras_trainer.metrics(model):
        if type(metric) is keras.metrics.SparseCategoricalAccuracy:
            metric_weights.override_function(metric, lambda own, y_true, y_pred: _matches(late, own, y_true, y_pred))


def _values(late: Late, own: Any, y_true: Any, y_pred: Any) -> Any:
    logits = y_pred if own.from_logits else keras_loss.logits_of(y_pred)
    found = late.source_of(logits)
    if not isinstance(found, Logits):
        return type(own).call(own, y_true, y_pred)
    return found.crossentropy(tf.cast(_classes(y_true, found), tf.int64), y_pred.dtype)


def _matches(late: Late, own: Any, y_true: Any, y_pred: Any) -> Any:
    found = late.source_of(y_pred)
    if not isinstance(found, Logits):
        return own(y_true, y_pred)
    classes = _classes(y_true, found)
    matches = tf.cast(tf.cast(classes, tf.int64) == found.best(), keras.config.floatx())
    return tf.squeeze(matches, axis=-1) if matches.shape.rank > 1 and matches.shape[-1] == 1 else matches


def _classes(y_true: Any, logits: Logits) -> tf.Tensor:
    target = tf.convert_to_tensor(y_true)
    return tf.squeeze(target, axis=-1) if target.shape.rank == logits.part.shape.rank else target
