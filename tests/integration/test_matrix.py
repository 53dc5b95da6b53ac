"""The promise itself: under every strategy, features have the numbers of one device. Here, in one process.

`matrix.py` says which rows run where, `test_matrix_devices.py` has the rest of the columns of one process,
`test_matrix_workers.py` and `test_matrix_ring.py` those of several, and `test_matrix_numbers.py` other numbers of
replicas. They are files of their own so that tests can share them out.
"""

import itertools

import pytest

from tests.integration import matrix
from tests.integration.forks import Forks
from tfdist.cluster import strategy_table
from tfdist.verify import column, feature
from tfdist.verify.feature import Feature


def subject(row: Feature) -> str:
    """The package of features that a row belongs to."""
    return row.module.rpartition(".")[0]


def test_every_row_is_trained_and_every_strategy_trains_rows_of_every_subject() -> None:
    """No processes: what is left out in a column that does not fit it is not trained."""
    columns = {one.name: one for one in column.COLUMNS}
    cells = [(row, matrix.column_of(name)) for name, rows in matrix.shares().items() for row in rows]
    cells += [(row, columns[name]) for row in matrix.numbered() for name in row.columns]
    assert sorted(itertools.chain(*matrix.FILES)) == sorted(matrix.shares())
    trained = [(row, one) for row, one in cells if row.applies(one)]
    assert {row.name for row, _ in trained} == set(feature.features())
    assert {one.strategy for _, one in trained} == set(strategy_table.names())
    subjects = {subject(row) for row in feature.features().values()}
    assert len(subjects) > 3
    for strategy in strategy_table.names():
        missing = subjects - {subject(row) for row, one in trained if one.strategy == strategy}
        assert not missing, f"{strategy} trains no row of {missing}"
    for name, rows in matrix.shares().items():
        assert all(row.applies(matrix.column_of(name)) for row in rows), f"{name} leaves some of its rows out"


def test_rows_where_numbers_matter_are_trained_with_other_numbers_of_replicas() -> None:
    # the stages of a pipeline are one replica
    assert {one.strategy for one in matrix.NUMBERS} == set(strategy_table.names()) - {"pipeline"}
    assert {one.replicas for one in matrix.NUMBERS} == {2, 3, 4}
    assert any(one.workers > 1 and one.replicas_per_worker > 1 for one in matrix.NUMBERS)
    for row in matrix.numbered():
        chosen = column.select(row.columns)
        assert all(row.applies(one) for one in chosen), f"{row.name} is left out in a column that is named"
        assert max(one.replicas for one in chosen) > 2, row.name
        assert any(one.workers > 1 for one in chosen), f"{row.name} is never divided into processes"
    for one in matrix.NUMBERS:
        assert sum(row.applies(one) for row in matrix.numbered()) > 3, one.name
    for row in matrix.numbered(matrix.FURTHER):
        assert all(row.applies(one) for one in column.select(row.columns)), row.name
        assert not set(row.columns) & set(matrix.NUMBERED[row.name]), f"{row.name} is trained there already"


@pytest.mark.timeout(matrix.DEADLINE_SECONDS)
@pytest.mark.parametrize("name", matrix.FILES[0])
def test_its_share_has_the_numbers_of_one_device(name: str, forking: Forks) -> None:
    matrix.require_its_share(name, forking)
