"""One factorization: `python implicit_side.py implicit|implicit-cg|NumPy JSON`, in an environment that has implicit.

The peers' sweeps are timed one by one, as in the recipe, without the time to read the matrix.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as implicit requests: its own threads divide the rows

import numpy as np
from scipy import sparse


def by_implicit(matrix: Any, setup: dict[str, Any], *, use_cg: bool) -> tuple[Any, Any, Any]:
    """Implicit's own formula has the confidence of an entry, which is 1 + weight."""
    from implicit.cpu.als import AlternatingLeastSquares

    model = AlternatingLeastSquares(
        factors=setup["factors"],
        regularization=setup["regularization"],
        alpha=1.0,
        dtype=np.float32,
        use_native=True,
        use_cg=use_cg,
        iterations=setup["sweeps"],
        num_threads=setup["threads"],
        random_state=setup["seed"],
    )
    matrix.data += 1
    ends = [now()]
    model.fit(matrix.astype(np.float32), show_progress=False, callback=lambda *_: ends.append(now()))
    return model.user_factors, model.item_factors, np.diff(ends, axis=0)


def by_loop(matrix: Any, setup: dict[str, Any]) -> tuple[Any, Any, Any]:
    """A loop over rows and columns, in one process."""
    rng = np.random.default_rng(setup["seed"])
    y = rng.normal(0, 0.01, (matrix.shape[1], setup["factors"])).astype(np.float32)
    turned = matrix.T.tocsr()
    ends = [now()]
    for _ in range(setup["sweeps"]):
        x = solved(matrix, y, setup["regularization"])
        y = solved(turned, x, setup["regularization"])
        ends.append(now())
    return x, y, np.diff(ends, axis=0)


def now() -> tuple[float, float]:
    """Wall seconds and CPU seconds."""
    return time.perf_counter(), time.process_time()


def solved(rows: Any, factors: Any, regularization: float) -> Any:
    gram = factors.T @ factors + regularization * np.eye(factors.shape[1], dtype=factors.dtype)
    found = np.zeros((rows.shape[0], factors.shape[1]), factors.dtype)
    for row in range(rows.shape[0]):
        here = slice(rows.indptr[row], rows.indptr[row + 1])
        seen, weights = factors[rows.indices[here]], rows.data[here]
        found[row] = np.linalg.solve(gram + (seen * weights[:, np.newaxis]).T @ seen, seen.T @ (weights + 1))
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    data = np.load(asked["matrix"])
    matrix = sparse.csr_matrix((data["weights"], (data["rows"], data["columns"])), shape=tuple(data["shape"]))
    if sys.argv[1] == "NumPy":
        x, y, seconds = by_loop(matrix, asked)
    else:
        x, y, seconds = by_implicit(matrix, asked, use_cg=sys.argv[1] == "implicit-cg")
    np.savez(asked["factors_into"], pieces=x, words=y, seconds=seconds)
    Path(asked["into"]).write_text(json.dumps(asked["factors_into"]), encoding="utf-8")
