"""A stand-in for a variable with the shape of a part, for optimizers that build slots or update elements.

Reading it gives the part; what is assigned to it is a tensor that it keeps, so that the part takes no memory of its own
between two steps. It can be assigned in a condition only if it is used up there.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_OPERATORS = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
    *("__pow__", "__neg__", "__abs__", "__getitem__"),
)


class VariablePart:
    """Stands for a Keras variable, to an optimizer."""

    def __init__(
        self, variable: Any, shape: tuple[int, ...], read: Callable[[], tf.Tensor], *, name: str, unique_id: str
    ) -> None:
        self.whole = variable
        self.shape = tuple(shape)
        self.dtype = tf.as_dtype(variable.dtype)
        self.path = variable.path
        self.name = name
        self.trainable = True
        self._unique_id = unique_id
        self._read = read
        self._value: tf.Tensor | None = None

    def value(self) -> tf.Tensor:
        """Return what was assigned last, or else the variable's part."""
        return self._read() if self._value is None else self._value

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        del name
        value = self.value()
        return value if dtype is None or dtype == value.dtype else tf.cast(value, dtype)

    def assign(self, value: Any) -> None:
        """Keep a new value."""
        self._value = tf.ensure_shape(tf.convert_to_tensor(value, self.dtype), self.shape)

    def assign_add(self, value: Any) -> None:
        """Add a value."""
        self.assign(self.value() + value)

    def assign_sub(self, value: Any) -> None:
        """Subtract a value."""
        self.assign(self.value() - value)

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        """Replace elements."""
        self.assign(tf.tensor_scatter_nd_update(self.value(), rows.indices[:, tf.newaxis], rows.values))

    def scatter_add(self, rows: tf.IndexedSlices) -> None:
        """Add to elements, each as often as it is there."""
        self.assign(tf.tensor_scatter_nd_add(self.value(), rows.indices[:, tf.newaxis], rows.values))

    def scatter_sub(self, rows: tf.IndexedSlices) -> None:
        """Subtract from elements, each as often as it is there."""
        self.assign(tf.tensor_scatter_nd_sub(self.value(), rows.indices[:, tf.newaxis], rows.values))


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: VariablePart, *others: Any) -> Any:
        return getattr(self.value(), name)(*others)

    return apply


for _name in _OPERATORS:
    setattr(VariablePart, _name, _operator(_name))
