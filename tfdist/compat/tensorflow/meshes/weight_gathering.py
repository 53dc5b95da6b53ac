"""Gathering of whole weights in a step: when a weight is gathered, how long it is kept, and when it is gathered again.

TensorFlow runs an operation as soon as its inputs exist, and frees a tensor after its last use. So all weights would be
gathered at the start of a step and kept until the backward pass. Instead, a weight is gathered only when earlier
weights have been used. The backward pass gathers its weights a second time, each after earlier operations of that pass.

Private names, read in TensorFlow 2.21.0: `Operation._update_input`, because no public way changes a graph;
`DistributedVariable._get_on_device_or_primary`; the name scope `gradient_tape` of the operations of tapes.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import traced_uses
from tfdist.errors import UnsupportedError

_BACKWARD = "gradient_tape/"
# operations of the forward pass whose result may replace a weight in the backward pass, with no more bytes
_SAME_NUMBERS = ("Cast", "Identity", "Reshape")


@dataclass(frozen=True)
class _Gathered:
    """A weight that was gathered while a graph was traced."""

    whole: tf.Tensor
    again: Callable[[], tf.Tensor]
    bytes: int


class Gathers:
    """The whole weights that the steps of a strategy gather."""

    def __init__(self, least_window_bytes: int, *, may_gather_again: bool) -> None:
        self.least_window_bytes = least_window_bytes
        self._largest = 0
        self._step: Any = None
        # each loop of the step, with a part that was gathered for it outside of it
        self._of_loops: list[tuple[Any, Any]] = []
        self._may_gather_again = may_gather_again
        self._of_graph: weakref.WeakKeyDictionary[Any, list[_Gathered]] = weakref.WeakKeyDictionary()

    def expect(self, size: int) -> None:
        """Record the size of a weight in bytes."""
        self._largest = max(self._largest, size)

    @property
    def _window_bytes(self) -> int:
        return max(self.least_window_bytes, 2 * self._largest)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Let a step be traced in the context; at its end, add the second gathering of weights.

        A weight is gathered once for all turns of a loop in the step.
        """
        before = self._step, self._of_loops
        self._step, self._of_loops = tf.compat.v1.get_default_graph(), []
        try:
            yield
            self._require_whole_in_loops()
            self.gather_again()
        finally:
            self._step, self._of_loops = before

    def read(self, variable: Any, gather: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Return the whole of a variable of which this process has a part. Its gradient has the shape of the whole.

        Weights are gathered outside of conditions and loops. These check the shapes of gradients, and a loop would
        gather in each turn. A weight that was updated inside is gathered inside.
        """
        with self._around_control_flow(variable):
            part = variable.read_value()

            @tf.custom_gradient
            def of_handle(_: tf.Tensor) -> Any:  # for a handle, TensorFlow does not compare the gradient's shape
                return gather(part), lambda gradient: gradient

            handle = variable._get_on_device_or_primary().handle
            return self.in_turn(lambda: of_handle(handle), lambda: gather(part))

    def _around_control_flow(self, variable: Any) -> AbstractContextManager[Any]:
        """Return the context of the graph in which a part is read."""
        if self._step is None or tf.executing_eagerly():
            return contextlib.nullcontext()
        inside = traced_uses.within_control_flow(self._step)
        if not inside or any(traced_uses.is_written(graph, variable) for graph in inside):
            return contextlib.nullcontext()
        self._of_loops += [(graph, variable) for graph in inside if traced_uses.is_loop(graph)]
        around: Any = inside[-1].outer_graph
        return around.as_default()

    def in_turn(self, gather: Callable[[], tf.Tensor], again: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Return the gathered weight; in a graph, after earlier weights have been used."""
        if tf.executing_eagerly():
            return gather()
        before = self._of_graph.setdefault(tf.compat.v1.get_default_graph(), [])
        with tf.control_dependencies(self._used(before)):
            whole = gather()
        before.append(_Gathered(whole, again, whole.shape.num_elements() * whole.dtype.size))
        return whole

    def gather_again(self) -> None:
        """Let the traced backward pass gather weights again, except the last ones of the forward pass that fit."""
        graph = tf.compat.v1.get_default_graph()
        found = self._of_graph.pop(graph, [])
        if not self._may_gather_again:
            return
        place = {op.name: number for number, op in enumerate(graph.get_operations())}
        taken = []
        for one in found[: len(found) - self._staying(found)]:
            uses = list(_uses(one.whole, ()))
            if uses:
                taken.append((min(place[op.name] for op, _, _ in uses), one, uses))
        taken.sort(key=lambda each: each[0])
        every = sorted({place[op.name]: op for one in found for op, _, _ in _uses(one.whole, ())}.items())
        for number, (first, one, uses) in enumerate(taken):
            # the gathering waits only for operations before its first use, so there is no cycle
            ahead, held = number, 0
            while ahead > 0 and held + one.bytes < self._window_bytes:
                ahead -= 1
                held += taken[ahead][1].bytes
            limit = taken[ahead][0] if number else first
            behind = [op for at, op in every if at < limit][-1:]
            with tf.control_dependencies(behind):
                whole = one.again()
            for op, index, ways in uses:
                value = whole
                for way in ways:
                    value = way(value)
                op._update_input(index, value)

    def _require_whole_in_loops(self) -> None:
        for graph, variable in self._of_loops:
            if traced_uses.is_written(graph, variable):
                raise UnsupportedError(
                    f"A loop that is traced in a step uses the weight {variable.name!r} and then updates it, and a "
                    "weight in parts is gathered once for all turns of a loop. Let a step update once, and have "
                    "model.fit run the steps (steps_per_execution), or take stage 2.",
                    name=variable.name,
                )

    def _used(self, before: list[_Gathered]) -> list[tf.Operation]:
        """Return the operations that must have run before another weight is gathered, because they free its memory."""
        held = 0
        for one in reversed(before):
            held += one.bytes
            if held >= self._window_bytes:
                return list(_users(one.whole))
        return []

    def _staying(self, found: list[_Gathered]) -> int:
        held, count = 0, 0
        for one in reversed(found):
            held += one.bytes
            if held > self._window_bytes:
                break
            count += 1
        return count


def _users(tensor: tf.Tensor) -> Iterable[tf.Operation]:
    """Yield the operations that use a weight, or its values in another form."""
    for op in tensor.consumers():
        if op.type in _SAME_NUMBERS and op.inputs[0] is tensor:
            yield from _users(op.outputs[0])
        else:
            yield op


def _uses(tensor: tf.Tensor, ways: tuple[Any, ...]) -> Iterable[tuple[tf.Operation, int, tuple[Any, ...]]]:
    """Yield each use of a weight in the backward pass: the operation, its input, and conversions before it."""
    for op in tensor.consumers():
        if _BACKWARD in op.name:
            yield from ((op, index, ways) for index, given in enumerate(op.inputs) if given is tensor)
        elif op.type in _SAME_NUMBERS and op.inputs[0] is tensor:
            yield from _uses(op.outputs[0], (*ways, _way(op)))


def _way(op: tf.Operation) -> Callable[[tf.Tensor], tf.Tensor]:
    if op.type == "Cast":
        return lambda value: tf.cast(value, op.outputs[0].dtype)
    if op.type == "Reshape":
        return lambda value: tf.reshape(value, op.inputs[1])
    return tf.identity
