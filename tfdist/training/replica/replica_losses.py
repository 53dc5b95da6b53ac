"""Compiled losses in a tfdist scope, divided by the divisors of all replicas together.

With S_r the sum of a replica's weighted values, D_r its divisor (elements, valid mask entries, weights) and p_r its
share of the examples, the loss of the global batch is L = sum_r S_r / sum_r D_r. Gradients are summed with weights p_r
(see `gradients.reduction.reducer`), so a replica returns L_r = S_r / (p_r * sum D_r). For an unmasked mean D_r is
proportional to the number of examples, L_r is the replica's own mean, and no other replica is asked.

A function of the user's that returns one number has reduced already; a trial shows whether that is a mean or a sum over
examples (`step_probe`). A loss that is neither, and a loss of Keras that compares examples, gets the whole batch.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, layer_methods
from tfdist.compat.keras import loss as keras_loss
from tfdist.errors import UnsupportedError
from tfdist.training.replica import across, current_step
from tfdist.training.replica.judging import Verdict


def adapt(model: keras.Model) -> None:
    """Let compiled losses, those that layers add, and a `compute_loss` of the user's reduce over all replicas."""
    container = keras_trainer.compiled_losses(model)
    if container is not None:
        keras_loss.replace_compiled(container, lambda loss: loss if isinstance(loss, GlobalLoss) else GlobalLoss(loss))
    keras_trainer.override_compute_loss(model, _computed)
    for layer in keras_trainer.layers(model):
        if layer_methods.may_add_losses(layer):
            layer_methods.override_add_loss(layer, _added)


def _added(layer: keras.layers.Layer, value: Any) -> Any:
    """Make the mean over replicas of a loss that a layer adds equal to one device's."""
    current = current_step.current()
    value = tf.convert_to_tensor(value)
    if current is None or not value.dtype.is_floating:
        return value
    total = tf.reduce_sum(value)  # as Keras takes what is no number
    share, rows = tf.cast(current.share, total.dtype), tf.cast(current.rows, total.dtype)
    regularizes = not layer_methods.calls_add_loss(layer)
    # Keras has divided what an activity regularizer returns by the rows: here by the replica's, not by the batch's
    is_sum = current.is_sum("added", total * rows if regularizes else total, name=layer.path)
    if current.noted is not None:  # what is found out besides is how the rest of the step reduces
        return tf.zeros_like(total)
    if regularizes:
        return total if is_sum else total * share
    return tf.math.divide_no_nan(total, share) if is_sum else total


def _computed(value: Any, y_pred: Any) -> Any:
    current = current_step.current()
    return value if current is None else _reduced(tf.convert_to_tensor(value), "compute_loss", y_pred, current)[0]


def _reduced(
    value: tf.Tensor, name: str, y_pred: Any, current: current_step.Step, *, can_gather: bool = False
) -> tuple[tf.Tensor, Verdict]:
    """Return the user's number, scaled so that the replicas' sum is one device's, and its rule."""
    if value.shape.rank != 0 or not value.dtype.is_floating:
        return value, "mean"
    rule = current.rule_of("loss", value, name=name, can_gather=can_gather)
    if current.noted is not None:
        return _stand_in(value, y_pred, current), rule
    return (tf.math.divide_no_nan(value, tf.cast(current.share, value.dtype)) if rule == "sum" else value), rule


def _stand_in(value: tf.Tensor, y_pred: Any, current: current_step.Step) -> tf.Tensor:
    """Return a mean over examples in place of a loss, for a trial that examines the rest of the step."""
    leaves = [tf.cast(leaf, value.dtype) for leaf in tf.nest.flatten(y_pred) if leaf is not None]
    outputs = [tf.reduce_sum(leaf * (1 + leaf)) for leaf in leaves]  # the plain sum of a softmax has no gradient
    return tf.add_n(outputs) / tf.cast(current.rows, value.dtype) if outputs else value


class GlobalLoss:
    """A loss function that reduces over the examples of all replicas in a step, and elsewhere is the wrapped one."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    @property
    def tfdist_wraps(self) -> Any:
        return self._loss

    @property
    def _name(self) -> str:
        return str(getattr(self._loss, "name", type(self._loss).__name__))

    def __getattr__(self, name: str) -> Any:  # name, reduction, dtype: Keras reads them
        if name == "_loss":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._loss, name)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        current = current_step.current()
        if current is None:
            return self._loss(y_true, y_pred, sample_weight)
        given = (y_true, y_pred, sample_weight)
        if keras_loss.compares_examples(self._loss, y_pred):
            return self._of_whole_batch(given, current)
        makes_parts = keras_loss.reduces_by_itself(self._loss)
        try:
            parts: Any = keras_loss.parts(self._loss, *given) if makes_parts else self._loss(*given)
        except ValueError:  # shapes tell that a replica has too few rows, as for the k largest losses
            kind = "values" if makes_parts and self._has_rows(given) else "loss"
            if current.next_rule(kind) != "whole":
                raise
            current.rule_of(kind, tf.zeros([]), name=self._name, can_gather=True)
            return self._of_whole_batch(given, current)
        if not makes_parts:
            return self._of_number(tf.convert_to_tensor(parts), given, current)
        if parts.values.shape.rank == 0:
            return self._of_number(parts.values, given, current)
        if not keras_loss.keeps_examples(self._loss):
            total, can_gather = tf.reduce_sum(parts.values), across.can_gather(given)
            if current.rule_of("values", total, name=self._name, can_gather=can_gather) == "whole":
                return self._of_whole_batch(given, current)
            if current.noted is not None:
                return _stand_in(total, y_pred, current)
        if current.noted is not None:  # what is found out is how the rest of the step reduces
            mean = tf.reduce_sum(parts.values) / tf.cast(current.rows, parts.values.dtype)
            if current.is_evaluation:  # what layers make of a batch shows in no gradient
                current.is_sum("gradient", [mean], name=self._name)
            return mean
        return _reduce(parts, self._loss, self._name, current)

    def _has_rows(self, given: tuple[Any, ...]) -> bool:
        """Return whether a loss whose shapes need more rows makes several values of them, and not one number."""
        present = [leaf for leaf in tf.nest.flatten(given) if leaf is not None]

        def values(*leaves: tf.Tensor) -> tf.Tensor:
            left = iter(leaves)
            own = tf.nest.map_structure(lambda leaf: None if leaf is None else next(left), given)
            return keras_loss.parts(self._loss, *own).values

        specs = [tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) for leaf in present]
        return bool(tf.function(values, autograph=False).get_concrete_function(*specs).output_shapes.rank != 0)

    def _of_number(self, value: tf.Tensor, given: tuple[Any, Any, Any], current: current_step.Step) -> tf.Tensor:
        reduced, rule = _reduced(value, self._name, given[1], current, can_gather=across.can_gather(given))
        return self._of_whole_batch(given, current) if rule == "whole" else reduced

    def _of_whole_batch(self, given: tuple[Any, Any, Any], current: current_step.Step) -> tf.Tensor:
        """Return the loss of the whole batch, for each replica; see `across.gathered`."""
        if current.noted is not None:
            return _stand_in(tf.zeros([]), given[1], current)
        if not across.can_gather(given):
            raise UnsupportedError(
                f"the loss {self._name!r} compares the examples of a batch, and is given what cannot be gathered from "
                "the other replicas: ragged or sparse tensors, text, or values inside a condition. Give it dense "
                "tensors, or let it look at each example by itself."
            )
        whole = across.gathered(given, current, what=f"the loss {self._name!r}")
        return across.of_each_replica(tf.convert_to_tensor(self._loss(*whole)), current)


def _reduce(parts: keras_loss.Parts, loss: Any, name: str, current: current_step.Step) -> tf.Tensor:
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
