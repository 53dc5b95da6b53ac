"""The promise itself, in the other columns of one process; see `test_matrix.py`."""

import pytest

from tests.integration import matrix
from tests.integration.forks import Forks


@pytest.mark.timeout(matrix.DEADLINE_SECONDS)
@pytest.mark.parametrize("name", matrix.FILES[1])
def test_its_share_has_the_numbers_of_one_device(name: str, forking: Forks) -> None:
    matrix.require_its_share(name, forking)
