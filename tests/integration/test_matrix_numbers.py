"""The promise itself, for rows that depend on the number of replicas and their division; see `test_matrix.py`."""

import pytest

from tests.integration import matrix
from tests.integration.forks import Forks
from tfdist.verify import Column, Report


@pytest.fixture(scope="module")
def reports(forking: Forks) -> dict[tuple[Column, ...], Report]:
    """These rows in their columns, which share the numbers of one device."""
    return {columns: matrix.run(rows, columns, forking, optimized=False) for columns, rows in matrix.numbered().items()}


@pytest.mark.timeout(matrix.DEADLINE_SECONDS)
@pytest.mark.parametrize("one", matrix.NUMBERS, ids=lambda one: one.name)
def test_other_numbers_of_replicas_change_nothing(one: Column, reports: dict[tuple[Column, ...], Report]) -> None:
    of_it = [report for columns, report in reports.items() if one in columns]
    assert len(of_it) == 2
    for report in of_it:
        matrix.require_the_numbers_of_one_device(report, one)
