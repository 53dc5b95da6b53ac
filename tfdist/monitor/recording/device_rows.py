"""Rows of stamps of steps on a GPU; see `graph_stamps.Rows`. Times are those at which the GPU had done something.

All its operations are on the GPU, which has the host's part of them in the host's memory: what crosses from a GPU to
the host waits for the GPU, and then nothing would be handed out ahead.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist.monitor.recording.device_time import DEVICE_BEGIN, DEVICE_END, DEVICE_STAMPS
from tfdist.monitor.recording.rows import ROWS_OF_STAMPS, STAMPS, Column

_FIRST = STAMPS[0]
_OPEN_ROWS = 1024  # steps that the host may be ahead
_WAIT_SECONDS = 0.005


class DeviceRows:
    """A ring in memory of this process; ``library`` is `tfdist.native.device_stamp_ops`' or like it."""

    def __init__(self, library: Any, independent: Callable[[Any], Any]) -> None:
        self._library, self._independent = library, independent
        self._number = library.stamps.make(ROWS_OF_STAMPS, len(DEVICE_STAMPS), open_rows=_OPEN_ROWS)

    def read(self) -> tuple[int, np.ndarray]:
        """Return what `Rows.read` does; the begin and the end of a step are those of the device."""
        count, found = self.read_both()
        for column, of_device in ((Column.GRAPH_BEGIN, DEVICE_BEGIN), (Column.GRAPH_END, DEVICE_END)):
            found[:, column - _FIRST] = found[:, of_device - _FIRST]
        return count, found[:, : len(STAMPS)]

    def read_both(self) -> tuple[int, np.ndarray]:
        """Return the same with the host's begin and end of a step, and those of the device in columns behind."""
        found = np.zeros([ROWS_OF_STAMPS, len(DEVICE_STAMPS)])
        return self._library.stamps.read(self._number, found, seconds=_WAIT_SECONDS), found

    def open(self) -> "DeviceRow":
        return DeviceRow(self._library, self._number, self._independent)


class DeviceRow:
    def __init__(self, library: Any, rows: int, independent: Callable[[Any], Any]) -> None:
        self._library, self._rows, self._independent = library, rows, independent
        self._others = 0
        self.names: set[str] = set()
        begin = library.stamps.ops.tfdist_stamp_begin
        self._row = self._added(begin, (), rows=rows, column=Column.GRAPH_BEGIN - _FIRST)
        self.begun = self._stamp(DEVICE_BEGIN, ())

    def mark(self, column: int, after: Sequence[Any]) -> None:
        self._stamp(column, after)

    def loss(self, value: Any) -> None:
        import tensorflow as tf

        # added up and widened where it is, so that eight bytes travel
        total = tf.cast(tf.reduce_sum(value), tf.float64)
        self._stamp(Column.FORWARD, (), values=[total], place=Column.LOSS - _FIRST)

    def norm(self, squares: Callable[[Sequence[Any]], Any], tensors: Sequence[Any], scale: Any) -> None:
        """Leave out the norm: it would take the GPU's time."""

    def end(self, after: Sequence[Any], reductions: int) -> None:
        last = self._stamp(DEVICE_END, after)
        places = {"column": Column.GRAPH_END - _FIRST, "value": Column.REDUCTIONS - _FIRST}
        stamp = self._library.stamps.ops.tfdist_stamp_end
        self._added(stamp, [last], rows=self._rows, row=self._row, count=reductions, others=self._others, **places)

    def _stamp(self, column: int, after: Sequence[Any], *, values: Sequence[Any] = (), place: int = 0) -> Any:
        self._others += 1
        where = {"rows": self._rows, "column": column - _FIRST, "place": place}
        return self._added(self._library.op, after, row=self._row, values=list(values), **where)

    def _added(self, operation: Any, after: Sequence[Any], **arguments: Any) -> Any:
        import tensorflow as tf

        with tf.control_dependencies(after):
            added = self._independent(operation(**arguments))
        self.names.add(added.name if isinstance(added, tf.Operation) else added.op.name)
        return added
