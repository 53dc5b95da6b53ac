"""The tracing of several parts of a batch at once, each as a replica computes it, for steps in which replicas meet.

A step that gathers rows, or reduces its gradients by itself, cannot be tried on one part alone. So the parts are traced
into one graph, by a thread each. One thread runs at a time, until its step meets the others, or ends.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from tfdist.errors import UnsupportedError

Traced = TypeVar("Traced")
_Combine = Callable[[list[Any]], Any]


class Part:
    """A part of a batch, traced together with others; as a `current_step.Group`, it takes the place of a replica."""

    def __init__(self, index: int, size: int, meet: Callable[[Any, _Combine], Any]) -> None:
        self.index = index
        self.size = size
        self._meet = meet

    def rows(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        return self._meet(tensor, lambda every: tf.concat(every, axis=0))

    def total(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        return self._meet(tensor, tf.add_n)

    def all_reduce(self, tensors: list[Any]) -> list[Any]:
        """Return the sums over parts of a list of tensors, or of `tf.IndexedSlices`."""
        return list(self._meet(tensors, lambda every: [_sum(several) for several in zip(*every, strict=True)]))


def traced_together(functions: Sequence[Callable[[Part], Traced]]) -> list[Traced]:
    """Return the results of functions, each traced for one part into the current graph.

    Example:
        >>> def sums(value):
        ...     return lambda part: part.all_reduce([tf.constant(value)])[0]
        >>> tf.function(lambda: traced_together([sums(1.0), sums(2.0)]))()[1].numpy().item()
        3.0
    """
    graph = tf.compat.v1.get_default_graph()
    graph.switch_to_thread_local()
    parts = [_Thread(function, index, len(functions), graph) for index, function in enumerate(functions)]
    try:
        while True:
            for part in parts:
                part.go_on()
            waiting = [part for part in parts if part.waits]
            if not waiting:
                return [part.result for part in parts]
            if len(waiting) < len(parts):
                raise UnsupportedError("parts of a batch gather, or reduce gradients, different numbers of times")
            combined = parts[0].combine([part.given for part in parts])
            for part in parts:
                part.given = combined
    finally:
        for part in parts:
            part.end()


class _EndedError(BaseException):
    """Raised to end the trace of a part after another part's has failed."""


class _Thread(Generic[Traced]):
    """A part's trace, which runs until it meets the others or ends.

    Attributes:
        waits: whether it has met the others, and has not ended.
        given: its contribution to a meeting, or the result of one.
        combine: the function that turns contributions into results.
    """

    result: Traced
    combine: _Combine

    def __init__(self, function: Callable[[Part], Traced], index: int, size: int, graph: Any) -> None:
        self.waits = False
        self.given: Any = None
        self._error: BaseException | None = None
        self._is_done = self._is_ended = False
        self._may_run, self._has_paused = threading.Event(), threading.Event()
        self._part = Part(index, size, self._met)
        self._thread = threading.Thread(target=self._run, args=(function, graph), name=f"tfdist part {index}")
        self._thread.start()

    def go_on(self) -> None:
        """Let the trace run until it meets the others or ends; raise its error."""
        if self._is_done:
            return
        self._has_paused.clear()
        self._may_run.set()
        self._has_paused.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Wait for the end of the thread; an incomplete trace is abandoned."""
        self._is_ended = True
        self._may_run.set()
        self._thread.join()

    def _run(self, function: Callable[[Part], Traced], graph: Any) -> None:
        try:
            self._pause()
            with graph.as_default():
                self.result = function(self._part)
        except _EndedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error
        finally:
            self.waits, self._is_done = False, True
            self._has_paused.set()

    def _pause(self) -> None:
        self._may_run.wait()
        self._may_run.clear()
        if self._is_ended:
            raise _EndedError

    def _met(self, value: Any, combine: _Combine) -> Any:
        self.waits, self.given, self.combine = True, value, combine
        self._has_paused.set()
        self._pause()
        return self.given


def _sum(several: Sequence[Any]) -> Any:
    if not isinstance(several[0], tf.IndexedSlices):
        return tf.add_n(list(several))
    values, indices = (tf.concat([getattr(one, name) for one in several], axis=0) for name in ("values", "indices"))
    return tf.IndexedSlices(values, indices, several[0].dense_shape)
