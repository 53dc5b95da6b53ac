"""The promise itself, for rows that depend on the number of replicas and their division; see `test_matrix.py`."""

import pytest

from tests.integration import matrix
from tests.integration.forks import Forks
from tfdist.verify import Column, Report


@pytest.fixture(scope="module")
def report(forking: Forks) -> Report:
    """These rows in their columns, which share the numbers of one device."""
    return matrix.run(matrix.numbered(), matrix.NUMBERS, forking, optimized=False)


@pytest.mark.timeout(matrix.DEADLINE_SECONDS)
@pytest.mark.parametrize("one", matrix.NUMBERS, ids=lambda one: one.name)
def test_other_numbers_of_replicas_change_nothing(one: Column, report: Report) -> None:
    matrix.require_the_numbers_of_one_device(report, one, matrix.numbered())
