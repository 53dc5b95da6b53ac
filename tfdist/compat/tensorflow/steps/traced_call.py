"""A traced function of tensors that is called without matching them with its parameters again.

`tf.function` binds and compares its arguments at each call, which takes as long as a short step computes. The tensors
of a layout always match.

Private names, read in TensorFlow 2.21.0: `ConcreteFunction._call_flat`, the call behind this matching.
"""

from typing import Any

import tensorflow as tf


class TracedCall:
    """A `tf.function` with an input signature; its caller has tensors of just that signature."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._concrete: Any = None

    def get_concrete_function(self) -> Any:
        """Return what the function is traced to, which the first call does."""
        if self._concrete is None:
            self._concrete = self._function.get_concrete_function()
        return self._concrete

    def __call__(self, *tensors: Any) -> Any:
        if tf.config.functions_run_eagerly():
            return self._function(*tensors)
        concrete = self.get_concrete_function()
        return concrete._call_flat(tf.nest.flatten(tensors, expand_composites=True), concrete.captured_inputs)
