"""Which collectives are under way in this process, for engines that do not tell themselves.

A function counts when it comes to a collective and when it has its results, in memory of TensorFlow's that a thread of
the host may read while the function runs. Nothing waits for the counts. Where nobody asks for stacks, or GPUs compute,
whose kernels begin and end unseen, nothing is counted and no graph is another.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tfdist.monitor.recording import graph
from tfdist.monitor.stacks.waits import VARIABLE

#: collectives that are told apart; what comes later is not counted
PLACES = 1024
_MOST_LETTERS = 200
_CAME, _WENT = 0, 1

_Results = TypeVar("_Results", bound=Sequence[Any])


class Board:
    """Counts how often this process came to each collective, and how often it had its results.

    Args:
        independent: takes an operation with effects, and lets it wait for its inputs alone.

    Example:
        >>> import tensorflow as tf
        >>> board, seen = Board(independent=lambda counted: counted), []
        >>> def peers_come_late(value):
        ...     seen.append(board.waits_in())
        ...     return value
        >>> @tf.function
        ... def step(value):
        ...     run = lambda: [tf.numpy_function(peers_come_late, [value], value.dtype)]
        ...     return board.around("sum of x", [value], run)
        >>> result = step(tf.constant(1.0))
        >>> seen, board.waits_in()
        (['sum of x'], '')
    """

    def __init__(self, independent: Callable[[Any], Any]) -> None:
        import tensorflow as tf

        self._independent = independent
        self._names: dict[str, int] = {}
        self._before: Any = 0  # counts that are not believed: of steps that have failed
        with tf.init_scope(), tf.device("/device:CPU:0"):
            self._counts = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[PLACES, 2], shared_name="tfdist_under_way")
            tf.raw_ops.AssignVariableOp(resource=self._counts, value=tf.zeros([PLACES, 2], tf.int64))

    def around(self, what: str, tensors: Sequence[Any], run: Callable[[], _Results]) -> _Results:
        """Trace a collective, and count before and behind it; return what it returns.

        Args:
            what: it is, equal on every worker.
            tensors: that it waits for.
            run: traces it, and returns tensors that are there when it is done.
        """
        import tensorflow as tf

        if tf.executing_eagerly() or (len(self._names) == PLACES and what not in self._names):
            return run()
        place = self._names.setdefault(what[:_MOST_LETTERS], len(self._names))
        self._count(place, _CAME, tensors)
        results = run()
        self._count(place, _WENT, results)
        return results

    def _count(self, place: int, side: int, after: Sequence[Any]) -> None:
        import tensorflow as tf

        leaves = [one.values if isinstance(one, tf.IndexedSlices) else one for one in after]
        update = [1 - side, side]
        with tf.device("/device:CPU:0"), tf.control_dependencies(leaves):
            added = tf.raw_ops.ResourceScatterAdd(
                resource=self._counts, indices=place, updates=tf.constant(update, tf.int64)
            )
        self._independent(added)

    def forget(self) -> None:
        """Take all that is under way for failed: what is counted from now on is another step's."""
        self._before = self._read()

    def waits_in(self) -> str:
        """Return in which collective this process waits now, from any thread; empty if in none that is known."""
        counts = self._read() - self._before
        names = [name for name, place in self._names.copy().items() if counts[place, _CAME] > counts[place, _WENT]]
        if not names:
            return ""
        return names[0] + (f", and in {len(names) - 1} more" if len(names) > 1 else "")

    def _read(self) -> Any:
        import tensorflow as tf

        with tf.device("/device:CPU:0"):
            return tf.raw_ops.ReadVariableOp(resource=self._counts, dtype=tf.int64).numpy()


_board: Board | None = None


@functools.cache
def is_asked_for() -> bool:
    """Return whether somebody may ask in what this process waits, and it can be known."""
    return bool(os.environ.get(VARIABLE)) and graph.can_stamp()


def around(
    what: str, tensors: Sequence[Any], run: Callable[[], _Results], independent: Callable[[Any], Any]
) -> _Results:
    """Trace a collective, counted if somebody may ask; see `Board.around`."""
    global _board
    if not is_asked_for():
        return run()
    if _board is None:
        _board = Board(independent)
    return _board.around(what, tensors, run)


def waits_in() -> str:
    """Return in which collective this process waits now; empty if in none that is known."""
    return "" if _board is None else _board.waits_in()


def forget() -> None:
    """Learn that a step has failed."""
    if _board is not None:
        _board.forget()
