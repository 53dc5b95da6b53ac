"""Tensors as arrays without a copy.

Private names, read in TensorFlow 2.21.0: `EagerTensor._numpy`, which shows the memory of a tensor; `numpy` copies it.
The buffer protocol, which is public, does not know bfloat16. `ResourceVariable`, a variable as such: what strategies
make of several of them is none.
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
    """Return the present value of a variable; the array holds it, whatever becomes of the variable.

    Example:
        >>> variable = tf.Variable([1.0])
        >>> before = held(variable)
        >>> _ = variable.assign_add([1.0])
        >>> before
        array([1.], dtype=float32)
    """
    return _array(tf.convert_to_tensor(value))


def holder(variables: Sequence[Any]) -> Callable[[], list[NDArray[Any]]]:
    """Return what holds the present values of variables, as `held` does of each, in a third of the time.

    One call of TensorFlow reads all that lie in this process; what is in parts, or on a parameter server, is read then.

    Example:
        >>> variables = [tf.Variable(1.0), tf.Variable([2, 3])]
        >>> hold = holder(variables)
        >>> _ = variables[0].assign_add(1.0)
        >>> [array.tolist() for array in hold()]
        [2.0, [2, 3]]
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
    """Return an array as a tensor of the dtype that a variable has, which is the array's."""
    if dtype == "bfloat16" and array.dtype != ml_dtypes.bfloat16:
        array = array.view(ml_dtypes.bfloat16)
    return tf.constant(array, tf.as_dtype(dtype))
