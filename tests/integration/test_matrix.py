"""The promise itself: under every strategy, features have the numbers of one device.

Two columns go through all features: one with its replicas in one process, one with a process for each. The others, but
for the two that take longest, go through those in which the number of replicas matters most. `tfdist verify` runs all
in all.
"""

import pytest

from tfdist import verify
from tfdist.strategies import registry
from tfdist.verify import COLUMNS, Column, Report, column, feature

DEADLINE_SECONDS = 1800
WHOLE = column.select(["mirrored-2", "multi-worker-2x1"])
REST = tuple(one for one in COLUMNS if one not in (*WHOLE, *column.select(["ring-2x2", "parameter-server-3"])))
WHERE_NUMBERS_MATTER = feature.select(
    [
        "even",
        "partial_batch",
        "empty_replicas",
        "sync_batch_norm_partial",
        "sparse_gradients_clipped",
        "accumulation_with_clipping",
        "predict",
        "dropout",
        "loss_scale_bad_replica",
        "own_data_uneven",
        "generators_differ",
        "one_worker_stops",
    ]
)


def test_every_strategy_has_a_column() -> None:
    assert {one.strategy for one in (*WHOLE, *REST)} == set(registry.names())
    assert {registry.get(one.strategy).processes for one in WHOLE} == {"one", "workers"}


@pytest.fixture(scope="module")
def whole() -> Report:
    """All features, run once."""
    return verify.run(columns=WHOLE)


@pytest.fixture(scope="module")
def rest() -> Report:
    """The selected features in the other columns, run once."""
    return verify.run(WHERE_NUMBERS_MATTER, REST)


def bad_cells(report: Report, one: Column) -> list[str]:
    cells = [cell for cell in report.cells if cell.column == one.name]
    assert {cell.feature for cell in cells} == set(report.features)
    return [f"{cell.feature}: {cell.text}\n    {cell.detail[:400]}" for cell in cells if cell.is_bad]


@pytest.mark.timeout(DEADLINE_SECONDS)
@pytest.mark.parametrize("one", WHOLE, ids=lambda one: one.name)
def test_every_feature_has_the_numbers_of_one_device(one: Column, whole: Report) -> None:
    assert set(whole.features) == set(feature.features())
    bad = bad_cells(whole, one)
    assert not bad, "\n".join(bad)
    green = [cell for cell in whole.cells if cell.column == one.name and cell.status == "green"]
    assert len(green) > 100  # not merely left out or refused


@pytest.mark.timeout(DEADLINE_SECONDS)
@pytest.mark.parametrize("one", REST, ids=lambda one: one.name)
def test_other_numbers_of_replicas_change_nothing(one: Column, rest: Report) -> None:
    bad = bad_cells(rest, one)
    assert not bad, "\n".join(bad)
    assert len([cell for cell in rest.cells if cell.column == one.name and cell.status == "green"]) > 7
