"""A worker's rows of a sparse matrix, and their least squares: compiled, or in NumPy if there is no compiler."""

import numpy as np

from tfdist.native import row_solver

ENTRIES = 1 << 13  # entries that NumPy solves at a time: their factors fit into a processor's cache
Batch = tuple[np.ndarray, np.ndarray, np.ndarray]  # columns, roots of weights and right sides of rows, padded by 0


class Block:
    """Every Nth row; all workers have the same number of rows, some of them empty."""

    def __init__(
        self, rows: np.ndarray, columns: np.ndarray, weights: np.ndarray, height: int, worker: int, workers: int
    ) -> None:
        mine = np.flatnonzero(rows % workers == worker)
        mine = mine[np.argsort(rows[mine], kind="stable")]
        lengths = np.bincount(rows[mine] // workers, minlength=-(-height // workers))
        entries = (np.append(0, np.cumsum(lengths)), columns[mine], weights[mine])
        self._entries, self._solver = (*entries, weights[mine] + 1), row_solver()
        self._batches = [] if self._solver else batches(*entries)

    def solve(self, factors: np.ndarray, regularization: float) -> np.ndarray:
        """Solve (Y'Y + regularization + Y'WY) x = Y'(W + 1) for each row, where Y is the factors of the columns."""
        gram = factors.T @ factors + regularization * np.eye(factors.shape[1], dtype=factors.dtype)
        if self._solver:
            return self._solver.solve(gram, factors, *self._entries)
        inverse = np.linalg.inv(np.linalg.cholesky(gram))  # with Y L'^-1 for Y, all rows share the identity
        white = factors @ inverse.T
        return np.concatenate([solved(white, *batch) for batch in self._batches]) @ inverse


def batches(begins: np.ndarray, columns: np.ndarray, weights: np.ndarray) -> list[Batch]:
    """Return the rows padded in batches of similar lengths; rows come in order of length, the longest first."""
    lengths, rest, found = np.diff(begins), np.arange(len(begins) - 1), []
    while len(rest):
        longest = max(1, lengths[rest].max())
        some, rest = np.split(rest, [max(1, ENTRIES // longest)])
        real = np.arange(longest) < lengths[some, np.newaxis]
        at = np.where(real, begins[some, np.newaxis] + np.arange(longest), 0)
        root = np.sqrt(np.where(real, weights[at], 0), dtype=weights.dtype)
        found.append((columns[at], root, np.divide(root**2 + 1, root, out=np.zeros_like(root), where=real)))
    return found


def solved(factors: np.ndarray, columns: np.ndarray, roots: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve (1 + B'B) x = B'r for each row, where B is the factors of its columns times the roots of their weights."""
    seen = np.take(factors, columns, axis=0)
    seen *= roots[..., np.newaxis]
    turned, right = seen.swapaxes(1, 2), right[..., np.newaxis]
    short = columns.shape[1] < factors.shape[1]  # then the equal B'(1 + BB')^-1 r has the smaller system
    system = seen @ turned if short else turned @ seen
    np.einsum("ijj->ij", system)[...] += 1
    found = np.linalg.solve(system, right if short else turned @ right)
    return (turned @ found if short else found)[..., 0]
