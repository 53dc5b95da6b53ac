"""Lets `float`, `int`, `bool` and NumPy take variables on several replicas as they take those of one device.

Private names, read in TensorFlow 2.21.0: `values.DistributedVariable`, which forwards to its first copy by
`__getattr__`; Python does not look for `__float__` there.
"""

import functools
from typing import Any

import numpy as np
from tensorflow.python.distribute import values


def as_number(variable: Any) -> Any:
    """Let one variable be converted as the number or the array that it holds; return it."""
    if isinstance(variable, values.DistributedVariable) and not isinstance(variable, _Number):
        kind: Any = type(variable)
        variable.__class__ = _kind(kind)
    return variable


class _Number:
    """What a `tf.Variable` of one device can do."""

    def __float__(self) -> float:
        return float(self.numpy())  # type: ignore[attr-defined]

    def __int__(self) -> int:
        return int(self.numpy())  # type: ignore[attr-defined]

    def __complex__(self) -> complex:
        return complex(self.numpy())  # type: ignore[attr-defined]

    def __bool__(self) -> bool:
        return bool(self.numpy())  # type: ignore[attr-defined]

    def __array__(self, dtype: Any = None) -> Any:
        return np.asarray(self.numpy(), dtype)  # type: ignore[attr-defined]


@functools.cache
def _kind(kind: Any) -> Any:
    return type(kind)(kind.__name__, (_Number, kind), {"__module__": kind.__module__})
