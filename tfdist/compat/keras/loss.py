"""The weighted values of a Keras loss before reduction, and their number.

Private names, read in Keras 3.15.1 (`keras/src/losses/loss.py`): `Loss.__call__` reduces by what its own replica saw,
so its parts are recomputed with its helpers `get_keras_mask`, `apply_mask` and `squeeze_or_expand_to_same_rank`;
`_keras_logits` of a softmax; `LossFunctionWrapper._fn_kwargs`, which has the axis of a cosine similarity;
`CompileLoss._flat_losses`, what `compile` received.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import ops
from keras.src.backend import get_keras_mask
from keras.src.losses import loss as keras_loss


class Parts(NamedTuple):
    """The values of a loss before its reduction.

    Attributes:
        values: the weighted and masked values, of any shape.
        counts: ``(elements, mask size, valid mask entries)``; the last two are None without a mask.
        weight_sum: the sum of the weights and mask; None without either.
    """

    values: tf.Tensor
    counts: tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]
    weight_sum: tf.Tensor | None


def reduces_by_itself(loss: Any) -> bool:
    """Return whether this is a Keras loss that leaves its reduction to Keras (and not a callable with its own)."""
    return isinstance(loss, keras.losses.Loss) and type(loss).__call__ is keras.losses.Loss.__call__


def is_of_keras(loss: Any) -> bool:
    """Return whether a loss, or what it stands for in a scope, is one of Keras' own, of which all is known."""
    loss = getattr(loss, "tfdist_wraps", loss)
    return loss is None or (reduces_by_itself(loss) and keeps_examples(loss))


def may_be_rows(axis: Any, rank: int | None = None) -> bool:
    """Return whether an axis is the first of a tensor; of one whose rank is unknown, whether it may be.

    The last axis, from which most of Keras' code counts, is not the first one of any tensor with features.
    """
    return isinstance(axis, int) and (axis == 0 or (axis < -1 if rank is None else axis == -rank))


def compares_examples(loss: Any, outputs: Any = None) -> bool:
    """Return whether a loss of Keras, or its function, combines several examples in one value; if in doubt, True."""
    if isinstance(loss, keras.losses.Circle):
        return True
    axes = getattr(loss, "axis", None) if hasattr(loss, "axis") else getattr(loss, "_fn_kwargs", {}).get("axis")
    axes = [axes] if isinstance(axes, int) else axes
    rank = tf.TensorShape(getattr(outputs, "shape", None)).rank
    if axes is not None and any(may_be_rows(axis, rank) for axis in axes):
        return True
    if isinstance(loss, (keras.losses.Dice, keras.losses.Tversky)):
        return axes is None
    return getattr(loss, "fn", loss) in (keras.losses.dice, keras.losses.tversky, keras.losses.circle)


def keeps_examples(loss: keras.losses.Loss) -> bool:
    """Return whether the loss has a value for every example: Keras' own do, code of the user's may drop some.

    A subclass of a loss of Keras may have a `call` of its own.
    """
    used = (getattr(loss, "fn", loss), type(loss).call)
    return all(getattr(one, "__module__", "").split(".")[0] == "keras" for one in used)


def parts(loss: keras.losses.Loss, y_true: Any, y_pred: Any, sample_weight: Any) -> Parts:
    in_mask = get_keras_mask(y_pred)
    with keras.name_scope(loss.name):
        y_pred = keras.tree.map_structure(lambda x: ops.convert_to_tensor(x, dtype=loss.dtype), y_pred)
        y_true = keras.tree.map_structure(lambda x: ops.convert_to_tensor(x, dtype=loss.dtype), y_true)
        values = loss.call(y_true, y_pred)
        out_mask = get_keras_mask(values)
        mask = in_mask if out_mask is None else out_mask if in_mask is None else in_mask & out_mask
        values = ops.convert_to_tensor(values, dtype=loss.dtype)
        if sample_weight is not None:
            sample_weight = ops.convert_to_tensor(sample_weight, dtype=loss.dtype)
        if mask is not None:
            mask = ops.convert_to_tensor(mask, dtype=loss.dtype)
        # Without a reduction Keras leaves the mask at 0 and 1, which is what a sum over replicas needs.
        weight = keras_loss.apply_mask(sample_weight, mask, dtype=values.dtype, reduction=None)
        if weight is not None:
            weight = ops.cast(weight, values.dtype)
            values, weight = keras_loss.squeeze_or_expand_to_same_rank(values, weight)
            values = values * weight
        elements = tf.cast(tf.size(values), values.dtype)
        mask_size = None if mask is None else tf.cast(tf.size(mask), values.dtype)
        valid = None if mask is None else tf.reduce_sum(mask)
        return Parts(values, (elements, mask_size, valid), None if weight is None else tf.reduce_sum(weight))


def compiled(container: Any) -> list[Any]:
    return [getattr(entry.loss, "tfdist_wraps", entry.loss) for entry in container._flat_losses]


def with_inputs(container: Any, y_true: Any, y_pred: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield each loss in `compile`'s container with its name, its targets and its predictions."""
    for entry in container._flat_losses:
        loss = getattr(entry.loss, "tfdist_wraps", entry.loss)
        if loss is not None:
            given = [functools.reduce(lambda nest, key: nest[key], entry.path, nest) for nest in (y_true, y_pred)]
            yield str(getattr(loss, "name", type(loss).__name__)), loss, *given


def override_values(loss: keras.losses.Loss, values: Callable[[Any, Any, Any], Any]) -> None:
    """Let one loss object have ``values(loss, y_true, y_pred)`` as its values before the reduction, once."""
    vars(loss).setdefault("call", functools.partial(values, loss))


def logits_of(probabilities: Any) -> Any:
    """Return the logits of which Keras knows that probabilities are the softmax; else None."""
    known = getattr(probabilities, "_keras_logits", None)
    if known is not None or tf.executing_eagerly() or probabilities.op.type != "Softmax":
        return known
    return probabilities.op.inputs[0]


def replace_compiled(container: Any, wrap: Any) -> None:
    """Replace each loss function in `compile`'s container by ``wrap(loss)``, once."""
    container._flat_losses[:] = [entry._replace(loss=wrap(entry.loss)) for entry in container._flat_losses]
