"""The collectives that this process is in, noted beside them, for engines that do not say in what they wait.

An operation of a graph is noted in memory of TensorFlow's by two operations: when what it is given is there, and when
its result is. Nothing of the step waits for them. Where nobody can ask a process where it stands there are none.
"""

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdist.monitor.stacks.waits import VARIABLE

#: operations that can be noted; those that are traced after them are not
MOST = 1024
_numbers = itertools.count()
_NAMED = 2  # of those that a process is in


class UnderWay:
    """The collectives that this process is in.

    Args:
        independent: takes an operation with effects, and lets it wait for its inputs alone.
        device: a processor of this process.

    Example:
        >>> UnderWay(lambda operation: operation, "/device:CPU:0").text()                # doctest: +SKIP
        'all_reduce (sum, float32) of 4096 bytes'
    """

    def __init__(self, independent: Callable[[Any], Any], device: str) -> None:
        import tensorflow as tf

        self._independent = independent
        self._device = device
        self._names: list[str] = []
        self._eager: dict[object, str] = {}
        self._lock = threading.Lock()
        with tf.init_scope(), tf.device(device):
            name = f"tfdist_collectives_{next(_numbers)}"
            self._is_in = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[MOST], shared_name=name)
            tf.raw_ops.AssignVariableOp(resource=self._is_in, value=tf.zeros([MOST], tf.int64))

    def noted(self, name: str, given: Sequence[Any], run: Callable[[], list[Any]]) -> list[Any]:
        """Run or trace a collective, and note when this process is in it; return what it returns.

        Args:
            name: what it is, for people.
            given: tensors for which it waits on this side.
            run: runs it, and returns its results.
        """
        import tensorflow as tf

        if tf.executing_eagerly():
            with self._eagerly(name):
                return run()
        with self._lock:
            number = len(self._names)
            if number == MOST:
                return run()
            self._names.append(name)
        begun = self._note(number, 1, given)
        results = run()
        self._note(number, 0, [*results, begun])  # behind the other, which may be late
        return results

    def text(self) -> str:
        """Return in which collectives this process is, from any thread; empty if in none."""
        import tensorflow as tf

        with tf.device(self._device):
            is_in = tf.raw_ops.ReadVariableOp(resource=self._is_in, dtype=tf.int64).numpy()
        with self._lock:
            found = [name for name, one in zip(self._names, is_in, strict=False) if one] + list(self._eager.values())
        return " and ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")

    @contextlib.contextmanager
    def _eagerly(self, name: str) -> Iterator[None]:
        one = object()
        with self._lock:
            self._eager[one] = name
        try:
            yield
        finally:
            with self._lock:
                del self._eager[one]

    def _note(self, number: int, value: int, after: Sequence[Any]) -> Any:
        import tensorflow as tf

        with tf.device(self._device), tf.control_dependencies(after):
            return self._independent(
                tf.raw_ops.ResourceScatterUpdate(
                    resource=self._is_in, indices=tf.constant(number), updates=tf.constant(value, tf.int64)
                )
            )


@functools.cache
def of_process(independent: Callable[[Any], Any], device: str) -> UnderWay | None:
    """Return what notes the collectives of this process, or None where nobody can ask for them.

    Args:
        independent: see `UnderWay`.
        device: see `UnderWay`.
    """
    return UnderWay(independent, device) if os.environ.get(VARIABLE) else None


def described(kind: str, tensors: Sequence[Any]) -> str:
    """Return the name of a collective of these tensors, for people.

    Example:
        >>> described("all_reduce (sum, float32)", [])
        'all_reduce (sum, float32) of 0 bytes'
    """
    counts = [tensor.shape.num_elements() for tensor in tensors]
    if None in counts:
        return kind
    return f"{kind} of {sum(n * tensor.dtype.size for n, tensor in zip(counts, tensors, strict=True))} bytes"
