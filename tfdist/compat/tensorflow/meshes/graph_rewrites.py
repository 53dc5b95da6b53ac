"""Changes of a traced graph, so that tensors are made only if they are used, or only after other tensors are used.

TensorFlow runs an operation as soon as its inputs exist, and always runs a collective. So zeros first stand in for the
result of a collective. At the end of the step they are replaced if a result or an effect of the step depends on them.
Without control inputs, a backward pass that is faster than the network would make all gradients before the first has
travelled.

Private names, read in TensorFlow 2.21.0: `Operation._update_input`, `Operation._add_control_inputs`; no public way
changes a graph.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

# operations that use only the shape of their input, which the zeros have, too
_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


@dataclass(frozen=True)
class _Promise:
    """A stand-in for a tensor, the function that makes the tensor, and the tensor's source."""

    stand_in: tf.Tensor
    make: Callable[[], tf.Tensor]
    source: Any


class Late:
    """The tensors that the steps of a strategy make late, or not at all."""

    def __init__(self, *, may_wait: bool) -> None:
        self._may_wait = may_wait
        self._graph: Any = None
        self._promises: list[_Promise] = []

    @contextlib.contextmanager
    def step(self) -> Iterator[list[Any]]:
        """Let a step be traced in the context; put its results into the yielded list."""
        before, self._graph, self._promises = (self._graph, self._promises), tf.compat.v1.get_default_graph(), []
        returned: list[Any] = []
        try:
            yield returned
            results = {id(one) for one in tf.nest.flatten(returned, expand_composites=True)}
            for one in self._promises:
                if _matters(one.stand_in, results):
                    one.stand_in.op._update_input(0, one.make())
        finally:
            self._graph, self._promises = before

    def promise(self, make: Callable[[], tf.Tensor], shape: Any, like: tf.Tensor, source: Any) -> tf.Tensor:
        """Return the tensor that a function makes, or a stand-in for it until the end of the step."""
        is_step = self._may_wait and not tf.executing_eagerly()
        if not is_step or tf.compat.v1.get_default_graph() is not self._graph:
            return make()
        zeros = tf.zeros(shape, like.dtype)
        stand_in = tf.compat.v1.placeholder_with_default(
            zeros, zeros.shape
        )  # so that TensorFlow does not fold the zeros into other operations
        self._promises.append(_Promise(stand_in, make, source))
        return stand_in

    def source_of(self, tensor: Any) -> Any:
        """Return the source of a tensor that was promised in this step, or of a copy of it; None for any other."""
        while isinstance(tensor, tf.Tensor) and not tf.executing_eagerly() and tensor.graph is self._graph:
            for one in self._promises:
                if one.stand_in is tensor:
                    return one.source
            op = tensor.op
            if op.type not in ("Cast", "EnsureShape", "Identity", "IdentityN"):
                return None
            tensor = op.inputs[tensor.value_index] if len(op.outputs) == len(op.inputs) else None
        return None


def _matters(tensor: tf.Tensor, results: set[int]) -> bool:
    """Return whether a result, or an operation with an effect, depends on the values of a tensor."""
    seen: set[int] = set()
    left = [tensor]
    while left:
        one = left.pop()
        if id(one) in results:
            return True
        if id(one) in seen:
            continue
        seen.add(id(one))
        for op in one.consumers():
            if op.type in _SHAPES:
                continue
            if op.op_def.is_stateful:
                return True
            each = op.type == "IdentityN"  # each output depends on one input only
            left += [other for place, other in enumerate(op.outputs) if not each or op.inputs[place] is one]
    return False


# operations that compute each element from the same element of one input
_ELEMENTWISE = ("Cast", "Identity", "Mul", "MulNoNan", "RealDiv", "Reshape")


def hold_back(tensors: Iterable[tf.Tensor], until: Sequence[tf.Tensor]) -> None:
    """Let the operations that make ``tensors`` wait for ``until``, unless they have effects or other uses."""
    if tf.executing_eagerly():
        return
    for tensor in tensors:
        maker = _maker(tensor)
        if maker is not None:
            maker._add_control_inputs([one.op for one in until if one.graph is maker.graph])


def _maker(tensor: tf.Tensor) -> tf.Operation | None:
    """Return the last operation before this tensor that is not elementwise, if only this tensor depends on it."""
    taken = 0
    while True:
        op = tensor.op
        if not op.inputs or len(op.outputs) != 1 or len(tensor.consumers()) != taken or op.op_def.is_stateful:
            return None
        alike = [one for one in op.inputs if one.shape.num_elements() == tensor.shape.num_elements()]
        if op.type not in _ELEMENTWISE or len(alike) != 1:
            return op
        tensor, taken = alike[0], 1
