"""The conversions and assignments of a variable that lies in parts and that Keras sees whole.

Private names, read in TensorFlow 2.21.0: `_should_act_as_resource_variable` and `_in_graph_mode`, by which TensorFlow
treats an object as a resource variable.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np
import tensorflow as tf


def let_operate(kind: type, operators: Iterable[str], read: Callable[[Any], tf.Tensor]) -> None:
    """Let objects of a class take part in operations as the tensors that ``read`` returns for them."""
    for name in operators:
        setattr(kind, name, lambda self, *others, _name=name: getattr(read(self), _name)(*others))


class WholeVariable:
    """The base of variables in parts. A subclass reads the whole, and changes its parts by a value for the whole."""

    _should_act_as_resource_variable = True
    _in_graph_mode = False

    def read_value(self) -> tf.Tensor:
        """Return the whole, as one tensor."""
        raise NotImplementedError

    def _changed(self, how: str, value: Any) -> Self:
        """Call a method of each part, such as `assign`, with its part of a value for the whole."""
        raise NotImplementedError

    def value(self) -> tf.Tensor:
        return self.read_value()

    def numpy(self) -> Any:
        return self.read_value().numpy()

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        del name
        value = self.read_value()
        return value if dtype is None or dtype == value.dtype else tf.cast(value, dtype)

    def __array__(self, dtype: Any = None) -> Any:
        return np.asarray(self.numpy(), dtype)

    def assign(self, value: Any, *_: Any, **__: Any) -> Self:
        return self._changed("assign", value)

    def assign_add(self, value: Any, *_: Any, **__: Any) -> Self:
        return self._changed("assign_add", value)

    def assign_sub(self, value: Any, *_: Any, **__: Any) -> Self:
        return self._changed("assign_sub", value)
