"""The promise itself: under every strategy, features have the numbers of one device.

Two columns share all features between them, every other one each: one has its replicas in one process, the other a
process for each. All columns but the two that take longest also go through the features in which the number of replicas
matters most. `tfdist verify` runs all in all.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.light import python_path
from tfdist import verify
from tfdist.strategies import registry
from tfdist.verify import COLUMNS, Column, Report, column, feature

DEADLINE_SECONDS = 1800
SHARING = column.select(["mirrored-2", "multi-worker-2x1"])
REST = tuple(one for one in COLUMNS if one not in (*SHARING, *column.select(["ring-2x2", "parameter-server-3"])))
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
        "accumulation_in_float16_with_a_bad_replica",
        "own_data_uneven",
        "generators_differ",
        "one_worker_stops",
    ]
)


def test_every_strategy_has_a_column() -> None:
    assert {one.strategy for one in (*SHARING, *REST)} == set(registry.names())
    assert {registry.get(one.strategy).processes for one in SHARING} == {"one", "workers"}


@pytest.fixture(scope="module", autouse=True)
def _light() -> Iterator[None]:
    """Sixteen processes start faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path())
        yield


@pytest.fixture(scope="module")
def shared() -> dict[str, Report]:
    """All features, each under one column, run once; the columns at the same time."""
    every = feature.features().values()
    parts = [
        [one for place, one in enumerate(every) if place % 2 == turn or one in WHERE_NUMBERS_MATTER] for turn in (0, 1)
    ]
    with ThreadPoolExecutor(len(SHARING)) as pool:
        reports = pool.map(lambda part, one: verify.run(part, [one]), parts, SHARING)
        return {one.name: report for one, report in zip(SHARING, reports, strict=True)}


@pytest.fixture(scope="module")
def rest() -> Report:
    """The selected features in the other columns, run once."""
    return verify.run(WHERE_NUMBERS_MATTER, REST)


def bad_cells(report: Report, one: Column) -> list[str]:
    cells = [cell for cell in report.cells if cell.column == one.name]
    assert {cell.feature for cell in cells} == set(report.features)
    return [f"{cell.feature}: {cell.text}\n    {cell.detail[:400]}" for cell in cells if cell.is_bad]


@pytest.mark.timeout(DEADLINE_SECONDS)
def test_every_feature_has_the_numbers_of_one_device(shared: dict[str, Report]) -> None:
    assert {name for report in shared.values() for name in report.features} == set(feature.features())
    bad = [line for one in SHARING for line in bad_cells(shared[one.name], one)]
    assert not bad, "\n".join(bad)
    for report in shared.values():  # not merely left out or refused
        assert len([cell for cell in report.cells if cell.status == "green"]) > 50


@pytest.mark.timeout(DEADLINE_SECONDS)
@pytest.mark.parametrize("one", REST, ids=lambda one: one.name)
def test_other_numbers_of_replicas_change_nothing(one: Column, rest: Report) -> None:
    bad = bad_cells(rest, one)
    assert not bad, "\n".join(bad)
    assert len([cell for cell in rest.cells if cell.column == one.name and cell.status == "green"]) > 7
