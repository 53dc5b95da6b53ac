"""Delays tensors of a graph until others have been used up, so that few of them exist at once.

TensorFlow runs an operation as soon as its inputs exist. A backward pass faster than the network, or than another
worker, would make all gradients before the first has travelled.

Private names, read in TensorFlow 2.21.0: `Operation._add_control_inputs`; no public way changes a graph.
"""

from collections.abc import Iterable, Sequence

import tensorflow as tf

# of these the numbers of one input are made, one by one
_ELEMENTWISE = ("Cast", "Identity", "Mul", "MulNoNan", "RealDiv", "Reshape")


def hold_back(tensors: Iterable[tf.Tensor], until: Sequence[tf.Tensor]) -> None:
    """Let the operations that make tensors wait for others, unless they have effects or other uses."""
    if tf.executing_eagerly():
        return
    for tensor in tensors:
        maker = _maker(tensor)
        if maker is not None:
            maker._add_control_inputs([one.op for one in until if one.graph is maker.graph])


def _maker(tensor: tf.Tensor) -> tf.Operation | None:
    """Return the first operation of which only this tensor is made, and that takes more than its numbers one by one."""
    taken = 0
    while True:
        op = tensor.op
        if not op.inputs or len(op.outputs) != 1 or len(tensor.consumers()) != taken or op.op_def.is_stateful:
            return None
        alike = [one for one in op.inputs if one.shape.num_elements() == tensor.shape.num_elements()]
        if op.type not in _ELEMENTWISE or len(alike) != 1:
            return op
        tensor, taken = alike[0], 1
