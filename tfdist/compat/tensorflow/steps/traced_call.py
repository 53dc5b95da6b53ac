"""A traced function of tensors that is called without matching its arguments again.

`tf.function` binds and compares its arguments at each call, which takes as long as the computation of a short step. The
tensors of a layout always match.

Private names, read in TensorFlow 2.21.0: `ConcreteFunction._call_flat`, the call that follows the matching;
`TfMethodTarget.target`, the object to which a method that is a `tf.function` belongs.
"""

import contextlib
import functools
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


class TracedCall:
    """A `tf.function` with an input signature, whose caller always passes tensors of that signature."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._concrete: Any = None

    def get_concrete_function(self) -> Any:
        """Return the traced function; the first call traces it."""
        if self._concrete is None:
            with garbage_kept():
                self._concrete = self._function.get_concrete_function()
        return self._concrete

    def of_flat(self) -> Callable[[list[tf.Tensor]], Any]:
        """Return a function for the next call, which takes all tensors in one list, also those of composite tensors."""
        concrete = self.get_concrete_function()
        return functools.partial(concrete._call_flat, captured_inputs=concrete.captured_inputs)

    def __call__(self, *tensors: Any) -> Any:
        """Call the function like any `tf.function`."""
        return self._function(*tensors)


def written_by_user(function: Any) -> Callable[..., Any]:
    """Return the Python function or bound method that the user has decorated with `tf.function`."""
    python = function.python_function
    method = getattr(python, "__wrapped__", python)
    owner = getattr(getattr(method, "__self__", None), "target", None)
    return python if owner is None else types.MethodType(method.__func__, owner)


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Turn garbage collection off inside the block, which makes a graph.

    A graph only grows, so repeated searches of it find nothing. They take a tenth of the time to make a graph.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
