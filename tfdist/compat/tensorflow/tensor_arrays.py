"""Access to tensors as arrays without a copy.

Private names, read in TensorFlow 2.21.0: `EagerTensor._numpy`, a view of a tensor's memory, while `numpy` copies (the
public buffer protocol does not support bfloat16); `ResourceVariable`, a variable that is not a strategy's collection of
copies.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.ops.resource_variable_ops import ResourceVariable


def held(value: Any) -> NDArray[Any]:
    """Return the present value of a variable as an array, which does not change with the variable."""
    return _array(tf.convert_to_tensor(value))


def holder(variables: Sequence[Any]) -> Callable[[], list[NDArray[Any]]]:
    """Return a function that returns the present values of variables as `held` does, in a third of the time.

    One TensorFlow call reads all variables of this process. Variables in parts or on parameter servers are read one by
    one.
    """
    are_near = [_is_near(variable) for variable in variables]
    near = list(itertools.compress(variables, are_near))

    @tf.function(autograph=False)
    def read() -> list[tf.Tensor]:
        return [variable.read_value() for variable in near]

    read_near = read.get_concrete_function() if near else list

    def hold() -> list[NDArray[Any]]:
        found: Iterator[tf.Tensor] = iter(read_near())
        both = zip(variables, are_near, strict=True)
        return [_array(next(found)) if is_near else held(variable) for variable, is_near in both]

    return hold


def _is_near(variable: Any) -> bool:
    return isinstance(variable, ResourceVariable) and "/job:ps/" not in variable.device


def _array(tensor: Any) -> NDArray[Any]:
    array = np.asarray(tensor._numpy())
    array.flags.writeable = False
    return array


def as_dtype(array: NDArray[Any], dtype: str) -> tf.Tensor:
    """Return an array as a tensor of the given dtype, which its bytes have already."""
    if dtype == "bfloat16" and array.dtype != ml_dtypes.bfloat16:
        array = array.view(ml_dtypes.bfloat16)
    return tf.constant(array, tf.as_dtype(dtype))
