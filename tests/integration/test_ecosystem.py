"""Models that users bring, of Keras alone; `make ecosystem` has those of other packages, and all strategies."""

import pytest

from ecosystem.rows import ROWS_OF_THE_TABLE
from tests.integration import matrix
from tests.integration.forks import Forks
from tfdist.verify import Report, column, feature

ROWS = feature.select(["MobileNet_blocks", "graph_network"], ROWS_OF_THE_TABLE)
COLUMNS = column.select(["mirrored-2", "multi-worker-2x1"])


@pytest.fixture(scope="module")
def report(forking: Forks) -> Report:
    return matrix.run(ROWS, COLUMNS, forking, optimized=False)


@pytest.mark.timeout(matrix.DEADLINE_SECONDS)
@pytest.mark.parametrize("one", COLUMNS, ids=lambda one: one.name)
def test_models_of_keras_have_the_numbers_of_one_device(one: column.Column, report: Report) -> None:
    matrix.require_the_numbers_of_one_device(report, one, ROWS)
    assert {cell.status for cell in report.cells} == {"green"}
