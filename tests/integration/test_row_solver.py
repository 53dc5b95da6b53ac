"""Compiled least squares of rows, against NumPy's solution of each row: sizes, dtypes, empty rows, wrong arrays."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.native import RowSolver, row_solver

RECIPE = Path(__file__).parents[2] / "strategies" / "least_squares" / "row_blocks.py"
LENGTHS = (0, 1, 3, 64, 0, 65, 200, 7, 2)  # two groups of four and a single last row; 64 entries are packed at a time
COLUMNS = 41


@pytest.fixture
def solver() -> RowSolver:
    found = row_solver()
    assert found is not None
    return found


def problem(size: int, dtype: str, seed: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    y, count = rng.normal(size=(COLUMNS, size)).astype(dtype), sum(LENGTHS)
    return {
        "shared": y.T @ y + np.eye(size, dtype=dtype),
        "factors": y,
        "begins": np.append(0, np.cumsum(LENGTHS)),
        "columns": rng.integers(0, COLUMNS, count).astype(np.int32),
        "weights": rng.random(count).astype(dtype),
        "targets": rng.normal(size=count).astype(dtype),
    }


def by_numpy(of: dict[str, Any]) -> np.ndarray:
    """Return the solution of each row by the formula, in float64."""
    of, found = {name: one.astype(float) if one.dtype.kind == "f" else one for name, one in of.items()}, []
    for begin, end in zip(of["begins"], of["begins"][1:], strict=False):
        y, weights = of["factors"][of["columns"][begin:end]], of["weights"][begin:end]
        found.append(np.linalg.solve(of["shared"] + (y.T * weights) @ y, y.T @ of["targets"][begin:end]))
    return np.stack(found)


@pytest.mark.quick
@pytest.mark.parametrize("portable", [False, True], ids=["fast", "portable"])
@pytest.mark.parametrize(("dtype", "within"), [("float64", 1e-12), ("float32", 1e-5), (">f4", 1e-5)])
@pytest.mark.parametrize("size", [1, 5, 16, 33])
def test_rows_are_those_of_the_formula(solver: RowSolver, size: int, dtype: str, within: float, portable: bool) -> None:
    given = problem(size, dtype)
    found = solver.solve(**given, portable=portable)
    assert (found.shape, found.dtype) == ((len(LENGTHS), size), np.dtype(dtype).newbyteorder("="))
    np.testing.assert_allclose(found, by_numpy(given), rtol=within, atol=within)
    assert not found[[0, 4]].any()  # rows without entries


@pytest.mark.quick
def test_a_row_depends_on_its_entries_alone(solver: RowSolver) -> None:
    given = problem(9, "float32")
    whole, begins = solver.solve(**given), given["begins"]
    for row in range(len(LENGTHS)):
        of_row = slice(begins[row], begins[row + 1])
        entries = {name: given[name][of_row] for name in ("columns", "weights", "targets")}
        alone = solver.solve(given["shared"], given["factors"], np.array([0, LENGTHS[row]]), **entries)
        np.testing.assert_array_equal(alone[0], whole[row])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"columns": np.full(sum(LENGTHS), COLUMNS, np.int32)}, "columns"),
        ({"columns": np.full(sum(LENGTHS), -1, np.int32)}, "columns"),
        ({"weights": np.ones(3)}, "columns"),
        ({"begins": np.array([0, 5, 2, sum(LENGTHS)])}, "begins"),
        ({"begins": np.array([1, sum(LENGTHS)])}, "begins"),
        ({"begins": np.array([0, sum(LENGTHS) + 1])}, "begins"),
        ({"shared": np.eye(4)}, "shared"),
        ({"shared": -np.eye(9)}, "shared"),
        ({"weights": np.full(sum(LENGTHS), np.nan)}, "shared"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(solver: RowSolver, changed: dict[str, Any], name: str) -> None:
    with refused(ConfigError, name=name):
        solver.solve(**{**problem(9, "float64"), **changed})


@pytest.mark.quick
def test_other_dtypes_are_refused(solver: RowSolver) -> None:
    with refused(ConfigTypeError, name="factors", received="float16"):
        solver.solve(**problem(9, "float16"))


@pytest.mark.quick
@pytest.mark.parametrize("compiled", [True, False])
def test_blocks_of_the_recipe_are_dealt_out_and_those_of_the_formula(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("tfdist.native.row_solver", lambda: None)
    recipe = runpy.run_path(str(RECIPE))
    rng, regularization, workers, height = np.random.default_rng(5), 0.5, 2, len(LENGTHS)
    lengths = sorted(LENGTHS, reverse=True)
    rows = np.repeat(np.arange(height), lengths)
    columns, weights = rng.integers(0, COLUMNS, len(rows)).astype(np.int32), rng.random(len(rows)) + 0.1
    mixed = rng.permutation(len(rows))
    factors = rng.normal(size=(COLUMNS, 12))
    whole = by_numpy(
        {
            "shared": factors.T @ factors + regularization * np.eye(12),
            "factors": factors,
            "begins": np.append(0, np.cumsum(lengths)),
            "columns": columns,
            "weights": weights,
            "targets": weights + 1,
        }
    )
    for worker in range(workers):
        block = recipe["Block"](rows[mixed], columns[mixed], weights[mixed], height, worker, workers)
        found, mine = block.solve(factors, regularization), whole[worker::workers]
        assert len(found) == -(-height // workers)
        np.testing.assert_allclose(found[: len(mine)], mine, rtol=1e-10, atol=1e-10)
        assert not found[len(mine) :].any()
