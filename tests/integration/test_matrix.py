"""The promise itself: every feature, under every strategy, has the numbers of one device."""

import pytest

from tfdist import verify
from tfdist.verify import COLUMNS, Column, Report

DEADLINE_SECONDS = 1800


@pytest.fixture(scope="module")
def report() -> Report:
    """The whole matrix, run once."""
    return verify.run()


@pytest.mark.timeout(DEADLINE_SECONDS)
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_every_feature_has_the_numbers_of_one_device(column: Column, report: Report) -> None:
    cells = [cell for cell in report.cells if cell.column == column.name]
    assert {cell.feature for cell in cells} == set(verify.feature.features())
    bad = [f"{cell.feature}: {cell.text}\n    {cell.detail[:400]}" for cell in cells if cell.is_bad]
    assert not bad, "\n".join(bad)
    assert sum(cell.status == "green" for cell in cells) > 100  # not merely left out or refused
