"""The shapes and initial values of new variables, and variables that live for one step on the computing device.

Private names, read in TensorFlow 2.21.0: `CheckpointInitialValue`, the initial value from a checkpoint that was loaded
first; `BaseResourceVariable`, a variable around a handle, since `tf.Variable` makes one handle for all calls of a
function; `context.anonymous_name`, which gives each call its own resource. Of Keras 3.15.1: `Variable._shape` and
`_dtype`, for a variable without a value.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable
from tensorflow.python.trackable import base

from tfdist.compat.keras import keras_variables


def shape_of_new_variable(value: Any, shape: Any, dtype: Any) -> tuple[tf.TensorShape | None, tf.DType]:
    """Return the shape and dtype that a new variable will have; the shape is None if it is unknown."""
    if not callable(value):
        tensor = value if hasattr(value, "shape") and hasattr(value, "dtype") else tf.convert_to_tensor(value, dtype)
        return tf.TensorShape(tensor.shape), tf.as_dtype(dtype or tensor.dtype)
    known = keras_variables.being_made()
    if known is not None:
        return tf.TensorShape(known[0]._shape), tf.as_dtype(known[0]._dtype)
    return (None if shape is None else tf.TensorShape(shape)), tf.as_dtype(dtype or tf.float32)


def first_value(value: Any, dtype: Any) -> tf.Tensor:
    """Return the initial value of a variable, given a value or a function that returns one."""
    value = value() if callable(value) else value
    if isinstance(value, base.CheckpointInitialValue):
        value = value.wrapped_value
    return tf.convert_to_tensor(value, dtype)


def chief_value(
    create: Callable[..., Callable[[], tf.Tensor]],
    device: Any,
    given: dict[str, Any],
    compare: Callable[[str, Sequence[int], tf.DType], None],
) -> Any:
    """Return the chief's value by TensorFlow's broadcast, also for dtypes that TensorFlow cannot send."""
    path = keras_variables.path_of_new_variable(given.get("name") or "a variable")

    def made() -> tf.Tensor:
        with tf.device(device):
            own = first_value(given["initial_value"], given.get("dtype"))
            convert, carrier = _carrier(own.dtype)
            carried = convert(own, carrier)
        if tf.executing_eagerly():
            compare(path, own.shape.as_list(), own.dtype)
        received = create(0, device, None, **{**given, "initial_value": carried, "dtype": carrier})()
        with tf.device(device):
            return convert(received, own.dtype)

    return made


def _carrier(dtype: tf.DType) -> tuple[Callable[..., tf.Tensor], tf.DType]:
    """Return a conversion to a dtype that TensorFlow can broadcast, and that dtype; to itself if there is none."""
    if dtype.is_complex or dtype == tf.uint64:
        return tf.bitcast, tf.int64
    if dtype.is_integer and dtype.size < 4:
        return tf.cast, tf.int32
    if dtype == tf.uint32:
        return tf.cast, tf.int64
    return tf.cast, tf.float32 if dtype.is_floating and dtype.size < 4 and dtype != tf.float16 else dtype


def for_step(like: Any, value: tf.Tensor) -> tf.Variable:
    """Return a variable for this step that stands in for another one, for tapes and optimizers."""
    handle = tf.raw_ops.VarHandleOp(dtype=value.dtype, shape=like.shape, shared_name=context.anonymous_name())
    if tf.executing_eagerly():
        data = handle_data_util.create_handle_data(tf.TensorShape(like.shape), value.dtype)
        handle._handle_data = data
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    name = like.name.partition(":")[0]
    return BaseResourceVariable(
        trainable=like.trainable,
        shape=tf.TensorShape(like.shape),
        dtype=value.dtype,
        handle=handle,
        synchronization=like.synchronization,
        aggregation=like.aggregation,
        distribute_strategy=tf.distribute.get_strategy(),
        name=name,
        handle_name=name,
        unique_id=like._unique_id,
        in_graph_mode=False,
    )


def release(variable: tf.Variable) -> None:
    """Free a variable of a step; earlier operations of the function may still use it."""
    tf.raw_ops.DestroyResourceOp(resource=variable.handle)
