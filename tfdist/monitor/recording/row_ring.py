"""A fixed-size file with a worker's last rows, written by the worker and readable by others.

Neither side waits. A row's number is cleared first and written last, so a row in the making has none, and one that was
overwritten while it was read has another afterwards; both are skipped. Loads no TensorFlow.
"""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import ConfigError
from tfdist.monitor.recording.rows import WIDTH, Column

#: rows that a file holds
ROWS = 2048

_MAGIC = 0x74666472_00000001  # "tfdr", layout 1
_HEADER = 8  # words: magic, rows, width, pid, rows written, rows lost
_WRITTEN, _LOST = 4, 5
_WORDS = _HEADER + ROWS * WIDTH


class Ring:
    def __init__(self, path: Path) -> None:
        self.path = path
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        words = np.zeros(_WORDS, np.int64)
        words[:5] = _MAGIC, ROWS, WIDTH, os.getpid(), 0
        words.tofile(temporary)
        with open(temporary, "r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), 0)
        os.replace(temporary, path)
        self._view = memoryview(self._mapped)
        self._words: Any = np.frombuffer(self._view, np.int64)
        self._rows = self._words[_HEADER:].reshape(ROWS, WIDTH)
        self._written = 0

    def add(self, rows: np.ndarray) -> None:
        """Append rows, shape (n, WIDTH), in place of the oldest ones, and write their numbers."""
        rows = rows[-ROWS:]
        numbers = np.arange(self._written + 1, self._written + 1 + len(rows))
        places = (numbers - 1) % ROWS
        self._rows[places, Column.SEQUENCE] = 0
        self._rows[places, 1:] = rows[:, 1:]
        self._rows[places, Column.SEQUENCE] = numbers
        self._written += len(rows)
        self._words[_WRITTEN] = self._written

    def lose(self, count: int) -> None:
        """Record the number of steps that could not be kept."""
        self._words[_LOST] += count

    def close(self) -> None:
        del self._words, self._rows
        self._view.release()
        self._mapped.close()


def read(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the rows of a file in the order of their numbers, shape (n, WIDTH), int64."""
    with open(path, "rb") as file:
        words = np.fromfile(file, np.int64)
        file.seek(0)
        later = np.fromfile(file, np.int64)
    if len(words) != _WORDS or words[0] != _MAGIC or words[2] != WIDTH:
        raise ConfigError(
            f"{os.fspath(path)} is not a record of steps that this version of tfdist wrote. Watch the job with the "
            "version that runs it.",
            path=path,
        )
    rows, after = (part[_HEADER:].reshape(ROWS, WIDTH) for part in (words, later))
    numbers = rows[:, Column.SEQUENCE]
    rows = rows[(numbers > 0) & (numbers == after[:, Column.SEQUENCE])]
    return np.asarray(rows[np.argsort(rows[:, Column.SEQUENCE])])
