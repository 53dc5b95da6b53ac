"""Gradients that a user's code defines by `tf.custom_gradient`, found in the graph of a function.

Private names, read in TensorFlow 2.21.0: `ops.gradient_registry`, in which `tf.custom_gradient` registers a function
under the name in the attribute `_gradient_op_type`; the user's function is in the closure of what is registered.
"""

import inspect
from typing import Any

from tensorflow.python.framework import ops

from tfdist.compat import dry_run

_LIBRARIES = ("tensorflow.", "keras.src.", "tfdist.")
# closures between what is registered and the user's function
_DEPTH = 3


def has_users(function: Any) -> bool:
    """Return whether a concrete function, or one that it calls, has a gradient that is of no library's."""
    marked = [node for node in dry_run.nodes(function.graph) if "_gradient_op_type" in node.attr]
    names = {node.attr["_gradient_op_type"].s.decode() for node in marked}
    return any(_is_users(_registered(name), _DEPTH) for name in names)


def _registered(name: str) -> Any:
    try:
        return ops.gradient_registry.lookup(name)
    except LookupError:
        return None


def _is_users(function: Any, depth: int) -> bool:
    if not inspect.isfunction(function):
        return False
    if not str(function.__module__).startswith(_LIBRARIES):
        return True
    cells = function.__closure__ or ()
    return depth > 0 and any(_is_users(_content(cell), depth - 1) for cell in cells)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
