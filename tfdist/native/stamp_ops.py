"""The ops that stamp a step and note what is under way: compiled, or None, with the reason in the log."""

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

#: of what may be under way; as in stamps/ops.cc
SLOTS = 4096
#: steps under way at once whose rows are kept; as in stamps/rows.h
OPEN_ROWS = 64
_LOOK_SECONDS = 200e-6  # as in stamps/ops.cc


class StampOps:
    """The library; `stamp_ops` returns the one of this process."""

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
        """Make a ring of so many rows of numbers, which ops know by the number returned; it stays for ever.

        So many may be open at once. One that was opened before these is given up.
        """
        return int(self._library.tfdist_stamps_make(rows, width, open_rows))

    def read(self, number: int, into: np.ndarray, *, seconds: float = 1.0) -> int:
        """Copy a ring once the rows of ended steps are complete, and return how many steps have ended.

        It waits so many seconds at most, and blocks no step. A row that is overwritten meanwhile is all zeros.
        """
        return int(self._library.tfdist_stamps_read(number, into.ctypes.data, round(seconds / _LOOK_SECONDS)))

    def writers(self) -> list[int]:
        """Return the addresses of the functions by which another library writes into rows: to set, and to leave."""
        functions = (self._library.tfdist_stamps_set, self._library.tfdist_stamps_leave)
        return [int(ctypes.cast(one, ctypes.c_void_p).value or 0) for one in functions]

    def under_way(self, count: int) -> list[int]:
        """Return the last value of each slot that the ops `tfdist_note` have written: 1 or 0."""
        into = np.zeros([count], np.int64)
        self._library.tfdist_notes_read(count, into.ctypes.data)
        return list(map(int, into))


def stamp_ops() -> StampOps | None:
    """Return the library; None with TFDIST_NATIVE=0, or, after one warning, if it is unavailable."""
    if not is_wanted():
        return None
    with _alone:
        return _loaded()


def stamp_ops_if_kept() -> StampOps | None:
    """Return the library if it was compiled before; None where `stamp_ops` would compile it first."""
    if not is_wanted() or library.find(library.STAMPS, observe(), os.environ) is None:
        return None
    return stamp_ops()


@cache
def _loaded() -> StampOps | None:
    return load_or_none(library.STAMPS, StampOps, instead="Steps are stamped by TensorFlow's operations")
