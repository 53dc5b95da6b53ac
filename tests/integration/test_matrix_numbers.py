"""The promise itself, for rows that depend on the number of replicas and their division; see `test_matrix.py`."""

import pytest

from tests.integration import matrix
from tests.integration.forks import Forks
from tfdist.verify import Column, Report, column


@pytest.fixture(scope="module")
def report(forking: Forks) -> Report:
    """These rows in their columns, which share the numbers of one device."""
    return matrix.run(matrix.numbered(), matrix.NUMBERS, forking, optimized=False)


@pytest.mark.timeout(matrix.DEADLINE_SECONDS)
@pytest.mark.parametrize("one", matrix.NUMBERS, ids=lambda one: one.name)
def test_other_numbers_of_replicas_change_nothing(one: Column, report: Report) -> None:
    matrix.require_the_numbers_of_one_device(report, one, matrix.numbered())


@pytest.fixture(scope="module")
def further(forking: Forks) -> Report:
    """Return the report on the rows that `make test` leaves out, in their columns."""
    return matrix.run(matrix.numbered(matrix.FURTHER), matrix.NUMBERS, forking, optimized=False)


@pytest.mark.release  # one more number of replicas, or division of it, for rows that have two above
@pytest.mark.timeout(matrix.DEADLINE_SECONDS)
@pytest.mark.parametrize("name", sorted({name for names in matrix.FURTHER.values() for name in names}))
def test_one_more_number_of_replicas_changes_nothing(name: str, further: Report) -> None:
    (one,) = column.select([name])
    matrix.require_the_numbers_of_one_device(further, one, matrix.numbered(matrix.FURTHER))
