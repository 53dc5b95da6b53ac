"""Steps on the time of the device that computes them: the host hands out steps ahead, so its own times say little.

A device is free from the end of a step until it comes to the next. That is the part of the host's time that nothing
hides; whatever else the host does, such as to wait for input, costs nothing. Loads no TensorFlow.
"""

import numpy as np

from tfdist.monitor.recording.rows import HOST_PHASES, STAMPS, WIDTH, Column

#: behind the words of a row, until `on_device_time` has used them: when the device came to the step, and when it ended
DEVICE_BEGIN, DEVICE_END = WIDTH, WIDTH + 1
DEVICE_STAMPS = (*STAMPS, DEVICE_BEGIN, DEVICE_END)

_EXECUTE, _AGREE = int(Column.EXECUTE), int(Column.AGREE)
_BEFORE = [column for column in HOST_PHASES if column < _EXECUTE]  # what comes before a step is handed out, in order
_AFTER = [column for column in HOST_PHASES if column > _EXECUTE and column != _AGREE]


def on_device_time(rows: np.ndarray, before: int = 0) -> np.ndarray:
    """Return successive rows of the host's time, each with two words of the device's, as rows of the device's time.

    A row without these words is as it was. ``before`` is the time at which the step before the first row ended, or 0.
    """
    found = rows[:, :WIDTH].copy()
    has = (rows[:, DEVICE_BEGIN] > 0) & (rows[:, DEVICE_END] > 0)
    reached, done = rows[:, DEVICE_BEGIN], np.maximum(rows[:, DEVICE_END], rows[:, DEVICE_BEGIN])
    begin, end = rows[:, Column.BEGIN], rows[:, Column.END]
    ends = np.where(has, np.maximum(done, end), end)  # the host may have waited for others after the device had ended
    former = np.where(rows[:, Column.IS_FIRST] > 0, 0, np.concatenate([[before], ends[:-1]]))
    begins = np.clip(begin, former, np.maximum(reached, former))
    reached = np.maximum(reached, begins)
    at, others = begin.copy(), np.zeros_like(begin)
    for column in _BEFORE:
        after = at + rows[:, column]
        exposed = np.clip(np.minimum(after, reached) - np.maximum(at, begins), 0, None)
        found[:, column] = np.where(has, exposed, rows[:, column])
        at, others = after, others + exposed
    agreed = np.minimum(rows[:, _AGREE], ends - np.maximum(done, begins))
    words = [
        (Column.BEGIN, begins),
        (Column.END, ends),
        (Column.GRAPH_BEGIN, reached),
        (Column.GRAPH_END, np.maximum(done, reached)),
        (Column.AGREE, agreed),
        (Column.EXECUTE, ends - begins - others - agreed),
        *((column, np.zeros_like(begin)) for column in _AFTER),
    ]
    for column, values in words:
        found[:, column] = np.where(has, values, found[:, column])
    return found
