"""Tensors as arrays without a copy.

Private name, read in TensorFlow 2.21.0: `EagerTensor._numpy`, which shows the memory of a tensor; `numpy` copies it.
The buffer protocol, which is public, does not know bfloat16.
"""

from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


def held(value: Any) -> NDArray[Any]:
    """Return the present value of a variable; the array holds it, whatever becomes of the variable.

    Example:
        >>> variable = tf.Variable([1.0])
        >>> before = held(variable)
        >>> _ = variable.assign_add([1.0])
        >>> before
        array([1.], dtype=float32)
    """
    array = np.asarray(tf.convert_to_tensor(value)._numpy())
    array.flags.writeable = False
    return array


def as_dtype(array: NDArray[Any], dtype: str) -> tf.Tensor:
    """Return an array as a tensor of the dtype that a variable has, which is the array's."""
    if dtype == "bfloat16" and array.dtype != ml_dtypes.bfloat16:
        array = array.view(ml_dtypes.bfloat16)
    return tf.constant(array, tf.as_dtype(dtype))
