"""Lets variables that are made eagerly have no names for messages, in every process that is forked from this one.

The name is an attribute of the operation that makes the handle. TensorFlow keeps what it has prepared for an operation
with the same attributes, so with a name it prepares each handle anew. A variable itself has its name all the same.
"""

import inspect
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.ops import resource_variable_ops

_ops = resource_variable_ops.gen_resource_variable_ops
_made = _ops.var_handle_op
assert "debug_name" in inspect.signature(_made).parameters, "what makes handles of variables has changed"


def _var_handle_op(*arguments: Any, **options: Any) -> Any:
    if context.executing_eagerly():
        options.pop("debug_name", None)
    return _made(*arguments, **options)


_ops.var_handle_op = _var_handle_op
