"""The ops that take timestamps in a step and note activities under way. If they are missing, the log says why."""

import ctypes
import os
import threading
from functools import cache
from pathlib import Path

import numpy as np

from tfdist.native import library
from tfdist.native.build_target import observe
from tfdist.native.library import load_or_none, module_of
from tfdist.native.ops import is_wanted

_OPS = ("begin", "loss", "end", "norm")
_alone = threading.Lock()

#: The number of slots for activities under way; the same as in stamps/ops.cc.
SLOTS = 4096
#: The number of steps that may be under way at once, each with a row; the same as in stamps/rows.h.
OPEN_ROWS = 64
_LOOK_SECONDS = 200e-6  # the same as in stamps/ops.cc


class StampOps:
    """The loaded library; `stamp_ops` returns that of this process."""

    def __init__(self, path: Path) -> None:
        self.ops = module_of(path, ["tfdist_stamp", "tfdist_note", *(f"tfdist_stamp_{name}" for name in _OPS)])
        self._library = ctypes.CDLL(str(path))
        for name, *arguments in (
            ("stamps_make", *[ctypes.c_size_t] * 3),
            ("stamps_read", ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64),
            ("notes_read", ctypes.c_size_t, ctypes.c_void_p),
        ):
            function = getattr(self._library, f"tfdist_{name}")
            function.restype, function.argtypes = ctypes.c_int64, arguments

    def make(self, rows: int, width: int, *, open_rows: int = OPEN_ROWS) -> int:
        """Make a ring of rows of numbers, and return the number by which ops refer to it. A ring is never freed.

        At most ``open_rows`` rows are open at once. An older row is given up.
        """
        return int(self._library.tfdist_stamps_make(rows, width, open_rows))

    def read(self, number: int, into: np.ndarray, *, seconds: float = 1.0) -> int:
        """Copy a ring once the rows of ended steps are complete, and return the number of ended steps.

        The call waits at most ``seconds``, and blocks no step. A row that is overwritten meanwhile is all zeros.
        """
        return int(self._library.tfdist_stamps_read(number, into.ctypes.data, round(seconds / _LOOK_SECONDS)))

    def writers(self) -> list[int]:
        """Return the addresses of the two functions by which another library writes into rows: set and leave."""
        functions = (self._library.tfdist_stamps_set, self._library.tfdist_stamps_leave)
        return [int(ctypes.cast(one, ctypes.c_void_p).value or 0) for one in functions]

    def under_way(self, count: int) -> list[int]:
        """Return the last value, 1 or 0, that the ops `tfdist_note` have written to each slot."""
        into = np.zeros([count], np.int64)
        self._library.tfdist_notes_read(count, into.ctypes.data)
        return list(map(int, into))


def stamp_ops() -> StampOps | None:
    """Return the library. Return None if TFDIST_NATIVE=0, or, after one warning, if it is unavailable."""
    if not is_wanted():
        return None
    with _alone:
        return _loaded()


def stamp_ops_if_kept() -> StampOps | None:
    """Return the library if it is cached; return None if `stamp_ops` would have to compile it."""
    if not is_wanted() or library.find(library.STAMPS, observe(), os.environ) is None:
        return None
    return stamp_ops()


@cache
def _loaded() -> StampOps | None:
    return load_or_none(library.STAMPS, StampOps, instead="Steps are stamped by TensorFlow's operations")
