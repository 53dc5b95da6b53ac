"""Lets TensorFlow not look for resources of operations that have none, in every process that is forked from this one.

It looks at every operation that it traces: asks for an attribute that few have, whose absence costs an error in C++ and
another one in Python, and goes through sets that are empty. That is a tenth of tracing.
"""

import inspect
from collections.abc import Iterable
from typing import Any

from tensorflow.python.framework import auto_control_deps, dtypes

_looked = auto_control_deps._get_resource_inputs
assert "get_read_write_resource_inputs(op)" in inspect.getsource(_looked), "what looks for resources has changed"
_MAY_HAVE = (dtypes.resource, dtypes.variant)  # a dataset is a variant, which may come from a resource


def _get_resource_inputs(op: Any) -> Iterable[Any]:
    return _looked(op) if any(one.dtype in _MAY_HAVE for one in op.inputs) else ()


auto_control_deps._get_resource_inputs = _get_resource_inputs
