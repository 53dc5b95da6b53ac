"""Variables that live for one step, on the device that computes it.

Private names, read in TensorFlow 2.21.0: `BaseResourceVariable`, a variable around a handle, since `tf.Variable` makes
one handle for all calls of a function; `context.anonymous_name`, which gives each call its own resource.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable


def create(like: Any, value: tf.Tensor) -> tf.Variable:
    """Return a variable of this step that stands for another one, to tapes and to optimizers."""
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


def end(variable: tf.Variable) -> None:
    """Give back a variable's memory; what comes before it in the function may still use the variable."""
    tf.raw_ops.DestroyResourceOp(resource=variable.handle)
