"""Attributes of a symbolic tensor: masks and logits that layers set, and the activation that made it.

Private names, read in Keras 3.15.1: `_keras_mask` (`keras/src/backend/common/masking.py`) and `_keras_logits`
(`keras/src/activations/activations.py`). Cross-entropies find logits by that attribute, or by the operation `Softmax`
or `Sigmoid` that made a tensor (`_get_logits` in `keras/src/backend/tensorflow/nn.py`). In TensorFlow 2.21.0 a tensor
of a graph has an empty `__dict__`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

#: the attribute that is the mask
MASK = "_keras_mask"

#: the operations by which Keras finds logits, and what makes them again
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}


def attributes_of(tensor: Any) -> dict[str, Any]:
    """Return the attributes that were set on a tensor; None stands for one that was taken off."""
    own = vars(tensor) if tf.is_symbolic_tensor(tensor) else {}
    return {name: value for name, value in own.items() if value is not None}


def with_attributes(tensor: Any, attributes: Mapping[str, Any]) -> Any:
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


def activated(tensor: Any) -> tuple[str, Any] | None:
    """Return the activation that made a tensor, and its argument; None for what anything else made."""
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type not in ACTIVATIONS:
        return None
    return tensor.op.type, tensor.op.inputs[0]
