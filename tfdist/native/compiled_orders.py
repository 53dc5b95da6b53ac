"""Orders of examples in compiled code, part of the library that reads records; loads no TensorFlow itself."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.native.ops import records

_Ids = NDArray[np.int64]


class CompiledOrders:
    """Computes orders as `tfdist.data.order` does in NumPy, bit for bit, without Python's lock.

    ``portable`` allows only instructions that all processors of this architecture have.
    """

    def __init__(self, path: Path, *, portable: bool = False) -> None:
        self.path = path
        self._portable = portable
        library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._permute, self._mix = library.tfdist_permute, library.tfdist_mix
        self._permute.restype, self._mix.restype = ctypes.c_bool, ctypes.c_int
        self._permute.argtypes = [pointer, number, pointer, number, pointer, ctypes.c_bool]
        self._mix.argtypes = [pointer, number, pointer, number, *[pointer] * 7, ctypes.c_bool]

    def permuted(self, keys: Sequence[int], size: int, positions: NDArray[Any]) -> _Ids:
        """Return the values of a permutation of 0 to ``size - 1`` at positions, by the network of these keys."""
        at = np.ascontiguousarray(positions, np.int64)
        of_rounds, found = np.array(keys, np.uint32), np.empty(at.shape, np.int64)
        if not self._permute(_of(of_rounds), size, _of(at), at.size, _of(found), self._portable):
            raise IndexError(f"positions of a permutation must be from 0 to {size - 1}.")
        return found

    def mixed(
        self,
        windows: Sequence[tuple[NDArray[np.uint16], int, int, int, int, int, int]],
        met: _Ids,
        *,
        firsts: _Ids,
        sizes: _Ids,
        begins: _Ids,
        numbers: _Ids,
        keys: NDArray[np.uint32],
        tables: Sequence[_Ids | None],
    ) -> _Ids:
        """Return the examples at positions of a mixture that follow each other.

        ``met`` says how often each source comes before each window and after the last one, ``[windows + 1, sources]``.
        """
        # A window has the spread order of its values and the number of their bits, the digits of places and of values
        # that it flips, its size, and how many of its positions are left out and then asked for. A source has the
        # number of its first example, the number of its examples, the place of its first lap in `keys` (and last the
        # number of laps), and which of its laps that is. A lap has the keys of a network, or a table of few values.
        rows = np.array([(_of(spread), *about) for spread, *about in windows], np.int64)
        found = np.empty(int(rows[:, -1].sum()), np.int64)
        listed = np.array([0 if table is None else _of(table) for table in tables], np.uint64)
        arrays = [np.ascontiguousarray(one, np.int64) for one in (met, firsts, sizes, begins, numbers)]
        at_met, *of_sources = map(_of, arrays)
        words = np.ascontiguousarray(keys, np.uint32)
        into = (_of(words), _of(listed), _of(found), self._portable)
        done = self._mix(_of(rows), len(rows), at_met, len(sizes), *of_sources, *into)
        if done < 0:
            raise MemoryError(f"there is no memory for the order of {len(found)} positions.")
        if not done:
            raise ValueError("windows, sources and laps of a mixture do not fit each other.")
        return found


def _of(array: NDArray[Any]) -> int:
    """The address of an array."""
    return int(array.ctypes.data)


def compiled_orders() -> CompiledOrders | None:
    """Return the compiled orders, or None where `records` returns None."""
    ops = records()
    return None if ops is None else _loaded(ops.path)


@cache
def _loaded(path: Path) -> CompiledOrders:
    return CompiledOrders(path)
