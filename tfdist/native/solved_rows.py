"""Least squares for many rows in compiled code: one small system for each row of a sparse matrix."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.native import library
from tfdist.native.library import load_or_none
from tfdist.native.ops import is_wanted

_LINE_BYTES = 64  # rows of systems are padded to cache lines
_DTYPES = ("float32", "float64")


class RowSolver:
    """A solver of least squares for many rows; `row_solver` returns one instance.

    For each row r of a sparse matrix, with entries n, it solves

        (shared + sum of weights[n] y y') x = sum of targets[n] y, where y is factors[columns[n]],

    by Cholesky factorization, in the dtype of the factors. Alternating least squares consists of such rows. A call runs
    on one core without Python's lock, so several threads may each solve some rows.

    Guaranteed: nothing outside the arrays is read, and the solution of a row depends only on its entries, `shared` and
    the factors.

    Attributes:
        path: the path of the library.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        for name in _DTYPES:
            function = getattr(self._library, f"tfdist_solve_rows_{name}")
            function.restype = ctypes.c_int64
            function.argtypes = [*[ctypes.c_void_p] * 6, *[ctypes.c_int64] * 2, ctypes.c_size_t]
            function.argtypes += [ctypes.c_void_p, ctypes.c_bool]

    def solve(
        self,
        shared: np.ndarray,
        factors: np.ndarray,
        begins: np.ndarray,
        columns: np.ndarray,
        weights: np.ndarray,
        targets: np.ndarray,
        *,
        portable: bool = False,
    ) -> np.ndarray:
        """Return the solution of each row.

        Args:
            shared: the symmetric matrix common to the systems of all rows, ``[k, k]``; only its upper triangle is read.
            factors: the factors of the columns, float32 or float64 ``[columns, k]``; other floats have the same dtype.
            begins: the index of the first entry of each row, then the number of entries, int64 ``[rows + 1]``.
            columns: the column of each entry, int32 ``[entries]``.
            weights: the weight of each entry, at least 0, ``[entries]``.
            targets: the target of each entry, ``[entries]``.
            portable: use only instructions that all processors of this architecture have.

        Returns:
            An array ``[rows, k]``.

        Raises:
            ConfigError: shapes of arrays do not agree, a column has no factors, or the system of a row is not positive
                definite.
            ConfigTypeError: the factors are neither float32 nor float64.

        Example:
            >>> import numpy as np
            >>> y = np.ones((1, 2))
            >>> entries = np.array([0, 1]), np.zeros(1, np.int32), np.ones(1), np.full(1, 2.0)
            >>> row_solver().solve(np.eye(2), y, *entries).round(3)  # doctest: +SKIP
            array([[0.667, 0.667]])
        """
        if factors.dtype.name not in _DTYPES:
            raise ConfigTypeError(
                f"factors are {factors.dtype}, and must be {' or '.join(_DTYPES)}. Convert them: "
                "factors.astype('float32')",
                name="factors",
                received=factors.dtype.name,
            )
        dtype, (width, size) = factors.dtype.newbyteorder("="), factors.shape
        begins, columns = np.ascontiguousarray(begins, np.int64), np.ascontiguousarray(columns, np.int32)
        weights, targets = np.ascontiguousarray(weights, dtype), np.ascontiguousarray(targets, dtype)
        _require_entries(begins, columns, weights, targets)
        if shared.shape != (size, size):
            raise ConfigError(
                f"shared has the shape {shared.shape}, and the factors {factors.shape}: it must be {(size, size)}.",
                name="shared",
                received=shared.shape,
            )
        tile = _LINE_BYTES // dtype.itemsize
        padded = -(-size // tile) * tile
        wide, square = _padded(factors, padded, dtype), np.eye(padded, dtype=dtype)
        square[:size, :size] = shared
        into = np.empty((len(begins) - 1, padded), dtype)
        arrays = (square, wide, begins, columns, weights, targets)
        solved = getattr(self._library, f"tfdist_solve_rows_{dtype.name}")(
            *(one.ctypes.data for one in arrays), len(into), width, padded, into.ctypes.data, portable
        )
        if solved < 0:
            raise MemoryError(f"there is no memory for systems of {size} unknowns.")
        if solved < len(into):
            raise _unsolved(solved, columns[begins[solved] : begins[solved + 1]], width)
        return into[:, :size]


def _require_entries(begins: np.ndarray, columns: np.ndarray, weights: np.ndarray, targets: np.ndarray) -> None:
    """Refuse arrays whose indices would point outside other arrays."""
    counts = (len(columns), len(weights), len(targets))
    if begins.ndim != 1 or len(begins) == 0 or begins[0] != 0 or begins[-1] != counts[0] or (np.diff(begins) < 0).any():
        raise ConfigError(
            f"begins must rise from 0 to the number of entries, {counts[0]}, for instance np.cumsum of the rows' "
            "lengths with a 0 before it.",
            name="begins",
            received=(begins[:1].tolist(), begins[-1:].tolist()),
        )
    if len(set(counts)) > 1:
        raise ConfigError(
            f"there are {counts[0]} columns, {counts[1]} weights and {counts[2]} targets: each entry needs all three.",
            name="columns",
            received=counts,
        )


def _padded(rows: np.ndarray, width: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the rows, each padded with zeros, in contiguous memory."""
    if rows.shape[1] == width:
        return np.ascontiguousarray(rows, dtype)
    padded = np.zeros((len(rows), width), dtype)
    padded[:, : rows.shape[1]] = rows
    return padded


def _unsolved(row: int, columns: np.ndarray, width: int) -> ConfigError:
    wrong = columns[(columns < 0) | (columns >= width)]
    if len(wrong):
        column = int(wrong[0])
        why = f"row {row} has an entry in column {column}, and the factors have rows 0 to {width - 1}."
        return ConfigError(why, name="columns", received=column)
    return ConfigError(
        f"the system of row {row} is not positive definite. Add more to the diagonal of shared (the regularization), "
        "pass weights of at least 0, or use float64.",
        name="shared",
        received=row,
    )


@cache
def row_solver() -> RowSolver | None:
    """Return the compiled solver of rows, or None if it is not available. The first process that asks compiles it.

    If it is not available, one warning gives the reason, and the recipe `least_squares` solves batches of rows in
    NumPy. The result is cached.

    Raises:
        ConfigError: TFDIST_NATIVE is neither 0 nor 1.

    Example:
        >>> solver = row_solver()  # doctest: +SKIP
    """
    if not is_wanted():
        return None
    return load_or_none(library.LEAST_SQUARES, RowSolver, instead="Rows are solved by NumPy")
